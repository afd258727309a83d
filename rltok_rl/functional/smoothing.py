"""Exponential smoothing of tokens along a row, as H-Net gives them back to bytes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rltok_rl.functional.returns import reverse_scan

Method = Literal["scan", "loop"]


def smooth(values: Tensor, weights: Tensor, *, fresh: Tensor | None = None, method: Method = "scan") -> Tensor:
    """Mix every token with those before it, the more the less sure its boundary was.

        z'_j = P_j z_j + (1 - P_j) z'_{j-1},        z'_{-1} = 0

    Args:
        values: [*B, S, D] tokens z.
        weights: [*B, S] the P, in [0, 1].
        fresh: [*B, S] bool, tokens that take nothing from the one before (where rows follow each other); None for none.
        method: ``"scan"`` in log2 S steps on whole tensors, or ``"loop"``, one token after the other.

    Returns:
        [*B, S, D], computed in float32 at least.

    Example:
        >>> smooth(torch.tensor([[4.0], [0.0]]), torch.tensor([1.0, 0.25])).flatten()
        tensor([4., 3.])

    Reference: https://arxiv.org/abs/2507.07955
    """
    if method not in ("scan", "loop"):
        raise ValueError(f"method must be one of ['scan', 'loop'], got {method!r}")
    if values.shape[:-1] != weights.shape:
        raise ValueError(
            f"values [*B, S, D] and weights [*B, S] must agree, got {[*values.shape]} and {[*weights.shape]}"
        )
    dtype = torch.promote_types(torch.promote_types(values.dtype, weights.dtype), torch.float32)
    weights = weights.to(dtype)
    kept = 1 - weights  # [*B, S]
    if fresh is not None:
        kept = kept.masked_fill(fresh, 0.0)
    parts = values.to(dtype) * weights.unsqueeze(-1)  # [*B, S, D]
    if method == "loop":
        return _loop(parts, kept).to(values.dtype)
    columns = parts.transpose(-1, -2)  # [*B, D, S]
    decay = kept.unsqueeze(-2).expand_as(columns)
    # The scan runs from the end, smoothing from the beginning.
    return reverse_scan(columns.flip(-1), decay.flip(-1)).flip(-1).transpose(-1, -2).to(values.dtype)


def _loop(parts: Tensor, kept: Tensor) -> Tensor:
    current = torch.zeros_like(parts[..., :1, :]).squeeze(-2)  # [*B, D]
    out = []
    for part, share in zip(parts.unbind(-2), kept.unbind(-1), strict=True):
        current = part + share.unsqueeze(-1) * current
        out.append(current)
    return torch.stack(out, -2) if out else parts

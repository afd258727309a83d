"""H-Net's rule: a boundary where neighbouring states are unlike, and what of it is differentiable.

The same for bytes that become tokens and for tokens that become tokens of tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from rltok_rl.functional.returns import reverse_scan

_SMALLEST = 1e-4  # smoothing shares keep this distance from 0 and 1


def routing_probability(queries: Tensor, keys: Tensor) -> Tensor:
    """How unlike two neighbours are, ``p_t = (1 - cos(q_{t-1}, k_t)) / 2``.

    Args:
        queries: [*L, D] of the states before.
        keys: [*L, D] of the states themselves.

    Returns:
        [*L] in [0, 1], in float32 at least.

    Example:
        >>> routing_probability(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
        tensor([0.0000, 0.5000])
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    cosine = nn.functional.cosine_similarity(queries.to(wide), keys.to(wide), dim=-1)
    return ((1 - cosine) / 2).clamp(0.0, 1.0)  # rounding may leave the interval


def confidence(probs: Tensor, boundaries: Tensor) -> Tensor:
    """How sure a decision was, straight through: 1 in value, with the gradient of ``c = p`` or ``1 - p``.

    Args:
        probs: [*L] p.
        boundaries: [*L] bool.
    """
    sure = torch.where(boundaries, probs, 1 - probs)
    return 1 + (sure - sure.detach())


def smoothing_shares(probs: Tensor) -> Tensor:
    """How much of itself each token keeps when tokens are smoothed, ``P = p`` cut to [1e-4, 1 - 1e-4].

    Args:
        probs: [*L] p.
    """
    return probs.clamp(_SMALLEST, 1 - _SMALLEST)


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

"""H-Net's routing rule: a boundary where neighbouring states differ, and its differentiable parts.

It serves bytes and, with a second level, tokens. :func:`rltok_rl.functional.rate.ratio_loss` is H-Net's rate control.
Reference: https://arxiv.org/abs/2507.07955
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltok_rl.functional.reduction import wide
from rltok_rl.functional.returns import reverse_scan
from rltok_rl.functional.takes import takes

_SMALLEST = 1e-4  # smoothing shares keep this distance from 0 and 1


@takes("queries, keys: float *L D")
def routing_probability(queries: Tensor, keys: Tensor) -> Tensor:
    """Compute the dissimilarity of neighbours, ``p_t = (1 - cos(q_{t-1}, k_t)) / 2``, [*L], at least float32.

    ``queries`` [*L, D] are those of the states before, ``keys`` [*L, D] those of the states themselves.
    """
    cosine = nn.functional.cosine_similarity(queries.to(wide(queries)), keys.to(wide(queries)), dim=-1)
    return ((1 - cosine) / 2).clamp(0.0, 1.0)  # rounding may leave the interval


@takes("probs: float *L", "boundaries: bool *L")
def confidence(probs: Tensor, boundaries: Tensor) -> Tensor:
    """Return 1 with the gradient of the decision's probability, ``c = p`` or ``1 - p`` (straight through)."""
    sure = torch.where(boundaries, probs, 1 - probs)
    return 1 + (sure - sure.detach())


@takes("probs: float *L")
def smoothing_shares(probs: Tensor) -> Tensor:
    """Return each token's own share in smoothing, ``P = p`` clipped to [1e-4, 1 - 1e-4]."""
    return probs.clamp(_SMALLEST, 1 - _SMALLEST)


@takes("values: float *B S D", "weights: float *B S", "fresh: bool *B S")
def smooth(values: Tensor, weights: Tensor, *, fresh: Tensor | None = None) -> Tensor:
    """Smooth tokens ``values`` z [*B, S, D]: a token with an uncertain boundary keeps more of those before it.

        z'_j = P_j z_j + (1 - P_j) z'_{j-1},        z'_{-1} = 0

    ``weights`` [*B, S] are the P, in [0, 1]. ``fresh`` [*B, S] bool marks tokens that are not mixed with the one before
    (the first of packed rows). A scan takes log2 S steps on whole tensors.

    Example:
        >>> smooth(torch.tensor([[4.0], [0.0]]), torch.tensor([1.0, 0.25])).flatten()
        tensor([4., 3.])
    """
    dtype = torch.promote_types(values.dtype, wide(weights))
    weights = weights.to(dtype)
    kept = 1 - weights  # [*B, S]
    if fresh is not None:
        kept = kept.masked_fill(fresh, 0.0)
    parts = values.to(dtype) * weights.unsqueeze(-1)  # [*B, S, D]
    columns = parts.transpose(-1, -2)  # [*B, D, S]
    decay = kept.unsqueeze(-2).expand_as(columns)
    # The scan runs from the end, smoothing from the beginning.
    return reverse_scan(columns.flip(-1), decay.flip(-1)).flip(-1).transpose(-1, -2).to(values.dtype)

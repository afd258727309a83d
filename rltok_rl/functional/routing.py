"""H-Net's rule: a boundary where neighbouring states are unlike, and what of it is differentiable.

The same for bytes that become tokens and for tokens that become tokens of tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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

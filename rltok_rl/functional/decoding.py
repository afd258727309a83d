"""Drawing the next byte from its logits."""

from __future__ import annotations

import torch
from torch import Tensor


def filter_logits(logits: Tensor, *, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Rule out unlikely bytes by setting their logits [*B, V] to minus infinity: by ``top_k`` first, then ``top_p``.

    ``top_k`` keeps the k largest logits (more, where some tie with the k-th). ``top_p`` keeps the smallest set of most
    likely bytes whose probabilities sum to at least p; the likeliest byte always stays.

    Example:
        >>> filter_logits(torch.tensor([0.0, 2.0, 1.0]), top_k=2)
        tensor([-inf, 2., 1.])
    """
    if top_k is not None:
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1 or None, got {top_k}")
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p is not None and top_p != 1.0:  # rounding would drop the least likely bytes at 1
        if not 0.0 < top_p <= 1.0:
            raise ValueError(f"top_p must lie in (0, 1] or be None, got {top_p}")
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        enough_before = probs.cumsum(-1) - probs >= top_p  # the likelier bytes already hold p
        enough_before[..., 0] = False
        drop = torch.zeros_like(enough_before).scatter(-1, order, enough_before)
        logits = logits.masked_fill(drop, float("-inf"))
    return logits


def sample_bytes(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw a byte per row of logits [B, V] from ``softmax(logits / temperature)``, filtered; 0 takes the likeliest."""
    if not temperature >= 0.0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    if logits.device.type == "cpu" and bool(logits.isnan().any()):
        raise ValueError(f"logits must be numbers, got nan in row {int(logits.isnan().any(-1).nonzero()[0])}")
    if temperature == 0.0:
        filter_logits(logits, top_k=top_k, top_p=top_p)  # refuse what sampling would refuse
        return logits.argmax(-1)
    # Relative to the largest, which stays 0 however cold it gets.
    relative = logits.float() - logits.float().amax(-1, keepdim=True)
    filtered = filter_logits(relative / temperature, top_k=top_k, top_p=top_p)
    return torch.multinomial(filtered.softmax(-1), 1, generator=generator).squeeze(-1)

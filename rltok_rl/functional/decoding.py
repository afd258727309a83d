"""Drawing the next byte from its logits."""

from __future__ import annotations

import torch
from torch import Tensor

from rltok_rl.functional.takes import readable, takes

_MOST_BYTES = 2**24  # that torch.multinomial chooses from


@takes("logits: float *B V+", "top_k: whole [1, inf)", "top_p: number (0, 1]")
def filter_logits(logits: Tensor, *, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Rule out unlikely bytes by setting their logits [*B, V] to minus infinity: by ``top_k`` first, then ``top_p``.

    ``top_k`` keeps the k largest logits (more, where some tie with the k-th). ``top_p`` keeps the smallest set of most
    likely bytes whose probabilities sum to at least p; the likeliest byte always stays.

    Example:
        >>> filter_logits(torch.tensor([0.0, 2.0, 1.0]), top_k=2)
        tensor([-inf, 2., 1.])
    """
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p is not None and top_p != 1.0:  # rounding would drop the least likely bytes at 1
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(-1)
        enough_before = probs.cumsum(-1) - probs >= top_p  # the likelier bytes already hold p
        enough_before[..., 0] = False
        drop = torch.zeros_like(enough_before).scatter(-1, order, enough_before)
        logits = logits.masked_fill(drop, float("-inf"))
    return logits


@takes("logits: float B V+", "temperature: number [0, inf]", "top_k: whole [1, inf)", "top_p: number (0, 1]")
def sample_bytes(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw a byte per row of logits [B, V] from ``softmax(logits / temperature)``, filtered; 0 takes the likeliest."""
    largest = logits.float().amax(-1, keepdim=True)
    if readable(logits) and not bool(largest.isfinite().all()):
        row = int((~largest.isfinite()).nonzero()[0, 0])
        raise ValueError(f"logits must be numbers with a finite maximum, got {largest[row].item()} in row {row}")
    if temperature == 0.0:
        return logits.argmax(-1)
    if logits.shape[-1] > _MOST_BYTES:
        raise ValueError(f"logits must be of at most {_MOST_BYTES} bytes, got {logits.shape[-1]}")
    # Relative to the largest, which stays 0 however cold it gets; a byte ruled out stays so however hot.
    relative = logits.float() - largest
    filtered = filter_logits(relative / min(max(temperature, 1e-30), 1e30), top_k=top_k, top_p=top_p)
    return torch.multinomial(filtered.softmax(-1), 1, generator=generator).squeeze(-1)

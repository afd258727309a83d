"""Causal attention in two of the shapes the U-Net needs: a sliding window, and rows of one length.

Shapes: B rows, T bytes, S tokens of the longest row, H heads, C channels of a head. Queries, keys and values come as
[..., length, H, C], rotated already; results have the same shape. Scores are scaled by ``C^(-1/2)`` and, where ``cap``
is given, soft-capped as in Gemma 2. Packed rows are :mod:`rltok_rl.models.varlen`'s.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.policy import soft_cap
from rltok_rl.models.layers import compiled, scores_backend, varies

# A block shorter than this spends its time in launching rather than in multiplying.
SMALLEST_BLOCK = 32
# Rows of the score matrix held at once by the capped path, which no fused kernel serves.
CAPPED_CHUNK = 256


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, cap: float | None, *, varying: tuple[int, ...] = ()
) -> Tensor:
    """Softmax attention over [.., H, length, C]; ``mask`` is True where a query may look.

    Without a cap the fused kernel of torch runs. A cap needs the scores themselves. ``varying`` are the dimensions of
    the scores, counted from the end, that have another size in every batch.
    """
    if cap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores, scale = query @ key.transpose(-1, -2), query.shape[-1] ** -0.5
    backend = scores_backend()
    if backend is None or mask is None or min(scores.shape[-2:]) < 2:  # one query or key alone: another program
        return capped_softmax(scores, mask, scale, cap, value.dtype) @ value
    scores, mask = varies(scores, *varying), varies(mask, *varying)
    return compiled(capped_softmax, backend)(scores, mask, scale, cap, value.dtype) @ value


def capped_softmax(scores: Tensor, mask: Tensor | None, scale: float, cap: float, dtype: torch.dtype) -> Tensor:
    """Weights of keys from what products with queries gave, ``softmax(cap * tanh(scale * scores / cap))``.

    Args:
        scores: [.., queries, keys].
        mask: True where a query may look; None is everywhere.
        scale: of the scores.
        cap: soft cap of the scaled scores.
        dtype: of the weights; the softmax is taken in float32 at least.
    """
    scores = soft_cap(scores * scale, cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(-1, dtype=wide).to(dtype)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, *, cap: float | None = None) -> Tensor:
    """Let every position see itself and all before it.

    Rows padded at their end need no mask: a real position never looks at what comes after it.

    Args:
        query: [B, S, H, C].
        key: [B, S, H, C].
        value: [B, S, H, C].
        cap: soft cap of the scores.

    Returns:
        [B, S, H, C].
    """
    q, k, v = (x.transpose(-3, -2) for x in (query, key, value))  # [B, H, S, C]
    if cap is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-3, -2)
    length, positions = q.shape[-2], torch.arange(q.shape[-2], device=q.device)
    chunks = []
    for start in range(0, length, CAPPED_CHUNK):  # the upper triangle beyond a chunk's end is never computed
        end = min(start + CAPPED_CHUNK, length)
        mask = positions[:end] <= positions[start:end, None]  # [chunk, end]
        chunks.append(attend(q[..., start:end, :], k[..., :end, :], v[..., :end, :], mask, cap, varying=(-2, -1)))
    return torch.cat(chunks, dim=-2).transpose(-3, -2) if chunks else query


def sliding_window_attention(
    query: Tensor, key: Tensor, value: Tensor, *, window: int, cap: float | None = None
) -> Tensor:
    """Let every position see itself and the ``window - 1`` positions before it, in O(T x window).

    The sequence is cut into blocks at least as long as the window, so that a block's queries find all their keys in
    their own and the previous block. Any T is served: the last block is padded inside.

    Args:
        query: [B, T, H, C].
        key: [B, T, H, C].
        value: [B, T, H, C].
        window: how many positions are seen, the current one included.
        cap: soft cap of the scores.

    Returns:
        [B, T, H, C].
    """
    if window < 1:
        raise ValueError(f"window must be at least 1 (a byte sees itself), got {window}")
    batch, length, heads, channels = query.shape
    if length <= window:
        return causal_attention(query, key, value, cap=cap)
    block = max(window, SMALLEST_BLOCK)
    num_blocks = -(-length // block)
    pad = num_blocks * block - length

    def blocked(x: Tensor) -> Tensor:
        x = F.pad(x.transpose(1, 2), (0, 0, 0, pad))  # [B, H, num_blocks * block, C]
        return x.reshape(batch * heads, num_blocks, block, channels)

    def with_previous(x: Tensor) -> Tensor:
        x = blocked(x)
        previous = F.pad(x[:, :-1], (0, 0, 0, 0, 1, 0))  # the first block has none: zeros, masked below
        return torch.cat((previous, x), dim=2)  # [B * H, num_blocks, 2 * block, C]

    q = blocked(query)
    mask = _block_mask(num_blocks, block, window, query.device)  # [num_blocks, block, 2 * block]
    out = attend(q, with_previous(key), with_previous(value), mask, cap, varying=(-3,))
    out = out.reshape(batch, heads, num_blocks * block, channels)[:, :, :length]
    return out.transpose(1, 2)


def _block_mask(num_blocks: int, block: int, window: int, device: torch.device) -> Tensor:
    """Which of the 2 * block keys a block's queries may see: [num_blocks, block, 2 * block]."""
    query = torch.arange(block, 2 * block, device=device)[:, None]
    key = torch.arange(2 * block, device=device)
    band = (key <= query) & (key > query - window)  # [block, 2 * block]
    exists = torch.ones(num_blocks, 1, 2 * block, dtype=torch.bool, device=device)
    exists[0, :, :block] = False
    return band & exists

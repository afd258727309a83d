"""Causal attention of rotated heads: over a sliding window, over rows of equal length, and over packed rows.

Shapes: B rows, T bytes, S tokens of the longest row, N places of all packed rows, H heads, C channels of a head.
Scores are scaled by ``C^(-1/2)`` and, with ``cap``, soft-capped as in Gemma 2.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.policy import soft_cap
from rltok_rl.models.layers import FEW, TRACED, WINDOWED, Attention, compiled, kept, scores_backend, varies

SMALLEST_BLOCK = 32  # bytes of a block of the sliding window; shorter ones cost more launches than products
CAPPED_CHUNK = 256  # rows of the score matrix that capped attention holds at once
FLEX_BLOCK = 128  # places of a block of flex attention


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, cap: float | None, *, varying: tuple[int, ...] = ()
) -> Tensor:
    """Compute softmax attention over [.., H, length, C], by torch's fused kernel unless scores are capped.

    ``mask`` is True at visible keys; ``varying`` are dimensions of the scores whose sizes change with every batch.
    """
    if cap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores, scale = query @ key.transpose(-1, -2), query.shape[-1] ** -0.5
    backend = scores_backend()
    if backend is None or mask is None or min(scores.shape[-2:]) < 2:  # a size of 1 needs a program of its own
        return capped_softmax(scores, mask, scale, cap, value.dtype) @ value
    scores, mask = varies(scores, *varying), varies(mask, *varying)
    return compiled(capped_softmax, backend)(scores, mask, scale, cap, value.dtype) @ value


def capped_softmax(scores: Tensor, mask: Tensor | None, scale: float, cap: float, dtype: torch.dtype) -> Tensor:
    """Compute ``softmax(cap * tanh(scale * scores / cap))`` over visible keys, in float32 at least, as ``dtype``."""
    scores = soft_cap(scores * scale, cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(dtype)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, *, cap: float | None = None) -> Tensor:
    """Let every position see itself and all earlier ones: [B, S, H, C] each.

    Padding at the end of rows needs no mask, because real positions never see later ones.
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
    query: Tensor, key: Tensor, value: Tensor, *, window: int, cap: float | None = None, starts: Tensor | None = None
) -> Tensor:
    """Let every position see itself and the ``window - 1`` earlier ones, in O(T x window): [B, T, H, C] each.

    With ``starts`` [B, T], a position also sees nothing before its start, which is at most the position. Blocks are at
    least as long as the window, so that queries find all their keys in their own and the previous block.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1 (a byte sees itself), got {window}")
    batch, length, heads, channels = query.shape
    if not length or length <= window and starts is None:
        return causal_attention(query, key, value, cap=cap)
    block = max(window, SMALLEST_BLOCK)
    num_blocks = -(-length // block)
    pad = num_blocks * block - length

    def blocked(x: Tensor) -> Tensor:
        x = F.pad(x.transpose(1, 2), (0, 0, 0, pad))  # [B, H, num_blocks * block, C]
        return x.reshape(batch * heads, num_blocks, block, channels)

    def by_block(x: Tensor) -> Tensor:  # [B * H, num_blocks, ...] to [B * num_blocks, H, ...]
        return x.unflatten(0, (batch, heads)).transpose(1, 2).flatten(0, 1)

    def with_previous(x: Tensor) -> Tensor:
        x = blocked(x)
        previous = F.pad(x[:, :-1], (0, 0, 0, 0, 1, 0))  # the first block has none: zeros, masked below
        return torch.cat((previous, x), dim=2)  # [B * H, num_blocks, 2 * block, C]

    at = torch.arange(2 * block, device=query.device)  # of keys; queries are the second half
    band = (at <= at[block:, None]) & (at > at[block:, None] - window)  # [block, 2 * block]
    q, k, v = blocked(query), with_previous(key), with_previous(value)
    if starts is None:
        exists = torch.ones(num_blocks, 1, 2 * block, dtype=torch.bool, device=query.device)
        exists[0, :, :block] = False
        out = attend(q, k, v, band & exists, cap, varying=(-3,))
    else:
        # One mask per row and block: heads share it, so they become the dimension that it is repeated over.
        keys = at + block * torch.arange(-1, num_blocks - 1, device=query.device)[:, None]  # [num_blocks, 2 * block]
        first = F.pad(starts, (0, pad)).view(batch, num_blocks, block, 1)  # padding sees its whole window
        mask = (band & (keys[:, None] >= first)).flatten(0, 1)[:, None]  # [B * num_blocks, 1, block, 2 * block]
        out = attend(by_block(q), by_block(k), by_block(v), mask, cap, varying=(-4,))
        out = out.unflatten(0, (batch, num_blocks)).transpose(1, 2)  # [B, H, num_blocks, block, C]
    return out.reshape(batch, heads, num_blocks * block, channels)[:, :, :length].transpose(1, 2)


WINDOWED.update({causal_attention, sliding_window_attention})

# Packed rows.


@dataclass(frozen=True)
class PackedRows:
    """Rows that follow each other in one sequence, with empty places only behind the last."""

    num_tokens: Tensor  # [B] int64, at least 1
    room: int  # N
    most: int  # upper bound of a row's tokens that the host knows

    @property
    def starts(self) -> Tensor:
        """[B] place of each row's first token."""
        return self.num_tokens.cumsum(0) - self.num_tokens

    @property
    def real(self) -> Tensor:
        """[N] bool, True at places with a token."""
        return self._places < self.num_tokens.sum()

    @property
    def row(self) -> Tensor:
        """[N] row of each place; empty places count to the last row."""
        return (torch.searchsorted(self.starts, self._places, right=True) - 1).clamp(min=0)

    @property
    def begin(self) -> Tensor:
        """[N] place of the first token of each token's row; an empty place is its own."""
        return torch.where(self.real, self.starts.index_select(0, self.row), self._places)

    @property
    def number(self) -> Tensor:
        """[N] number of earlier tokens in the row; 0 at empty places."""
        return self._places - self.begin

    @property
    def longest(self) -> int:
        """S; the host waits."""
        return int(self.num_tokens.max()) if len(self.num_tokens) else 0

    @property
    def _places(self) -> Tensor:
        return torch.arange(self.room, device=self.num_tokens.device)


METHODS = ("flex", "padded", "rows")
"""Attention of packed rows; all methods agree.

    flex     compiled flex attention with the rows as a block mask: the default on CUDA with Triton
    padded   rows padded to the longest for the attention alone: the default on other accelerators
    rows     one row after the other: the default on a CPU
"""


def packed_attention(rows: PackedRows, *, cap: float | None, head_size: int, method: str = "auto") -> Attention:
    """Return causal attention inside packed rows, [N, H, C], by one of :data:`METHODS` or ``"auto"``.

    Outputs at empty places are finite and meaningless.
    """
    method = fastest_method(rows.num_tokens.device, head_size=head_size) if method == "auto" else method
    if method not in METHODS:
        raise ValueError(f"attention must be 'auto' or one of {list(METHODS)}, got {method!r}")
    if method == "flex":
        return _flex_rows(row_block_mask(rows), cap)
    if method == "padded":
        width, num_rows = rows.longest, len(rows.num_tokens)
        slots = torch.where(rows.real, rows.row * width + rows.number, num_rows * width)  # [N] places when padded
        return partial(_padded_attention, slots=slots, shape=(num_rows, width), cap=cap)
    return partial(_row_by_row_attention, lengths=rows.num_tokens.tolist(), cap=cap)


def window_attention(
    shape: torch.Size,
    device: torch.device,
    *,
    head_size: int,
    window: int,
    cap: float | None,
    starts: Tensor | None,
    traced: bool,
) -> Attention:
    """Return :func:`sliding_window_attention` of [B, T] bytes.

    If compiled layers trace it, flex attention is faster on devices that run it; it takes flat rows, [B * T, H, C].
    """
    if not traced or shape.numel() < FEW or fastest_method(device, head_size=head_size) != "flex":
        return partial(sliding_window_attention, window=window, cap=cap, starts=starts)
    if starts is not None:
        return _flex_rows(window_block_mask(starts, window), cap)
    num_rows, length = shape
    return _flex_rows(whole_rows_mask(num_rows, length, window, device), cap)


def _flex_rows(block_mask: Any, cap: float | None) -> Attention:
    # Programs for any shape turn numbers into variables, which score functions must not have: pass the cap as text.
    return partial(flex_rows_attention, block_mask=block_mask, cap=None if cap is None else repr(cap))


def fastest_method(device: torch.device, *, head_size: int) -> str:
    """Return the default method of a device for heads of C channels."""
    if device.type == "cpu":
        return "rows"
    if device.type == "cuda" and torch.version.cuda is not None and importlib.util.find_spec("triton") is not None:
        # Triton's kernels need compute capability 7 and heads of 16 channels.
        if torch.cuda.get_device_capability(device) >= (7, 0) and head_size >= 16:
            return "flex"
    return "padded"


def row_block_mask(rows: PackedRows, block: int = FLEX_BLOCK) -> Any:
    """Return flex attention's block mask of packed rows."""
    return _block_mask(rows.begin, block)


def window_block_mask(starts: Tensor, window: int, block: int = FLEX_BLOCK) -> Any:
    """Return the block mask of a sliding window over rows that follow each other: row b's byte t is place b T + t.

    ``starts`` [B, T] holds the first byte that each byte may see; it never decreases inside a row.
    """
    num_rows, length = starts.shape
    places = torch.arange(starts.numel(), device=starts.device)
    rows = length * torch.arange(num_rows, device=starts.device)[:, None]  # [B, 1]
    return _block_mask(torch.maximum((starts + rows).flatten(), places - (window - 1)), block)


@kept
def whole_rows_mask(num_rows: int, length: int, window: int, device: torch.device) -> Any:
    """Return the block mask of a window over whole rows; those of the last few shapes are kept."""
    return window_block_mask(torch.zeros(num_rows, length, dtype=torch.int64, device=device), window)


def _block_mask(begin: Tensor, block: int) -> Any:
    """Return the mask by which place n sees the places u with begin(n) <= u <= n; ``begin`` [N] never decreases.

    A block of queries a..b therefore reads the key blocks from that of begin(a) to its own. Blocks strictly between
    that of begin(b) and its own need no mask.
    """
    from torch.nn.attention.flex_attention import BlockMask

    room = len(begin)
    begin = F.pad(begin, (0, -room % block), value=room)  # [n block]
    first, last = (begin.view(-1, block)[:, place] for place in (0, -1))  # [n] of the blocks' queries
    here = torch.arange(len(first), device=begin.device)  # [n]
    seen = (here >= first[:, None] // block) & (here <= here[:, None])  # [n, n] blocks with a visible key
    whole = (here * block >= last[:, None]) & (here < here[:, None])  # [n, n] blocks whose keys are all visible
    begin = begin.to(torch.int32)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= begin[query])

    some, full = _in_order(seen & ~whole), _in_order(seen & whole)
    return BlockMask.from_kv_blocks(*some, *full, BLOCK_SIZE=block, mask_mod=visible, seq_lengths=(room, room))


def _in_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Count [1, 1, n] and list, first, [1, 1, n, n] the True blocks of each row of [n, n]."""
    which = blocks.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32)[None, None], which.to(torch.int32)[None, None]


_compile_once = cache(torch.compile)


def flex_rows_attention(query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, cap: str | None) -> Tensor:
    """Compute attention inside packed rows by flex attention; eager on a CPU, which has no gradients for it."""
    from torch.nn.attention.flex_attention import flex_attention

    eager = query.device.type == "cpu" or torch.compiler.is_compiling()
    flex: Any = flex_attention if eager else _compile_once(flex_attention)
    limit = 0.0 if cap is None else float(cap)

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return limit * torch.tanh(score / limit)

    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))  # [1, H, N, C]
    out = flex(q, k, v, score_mod=None if cap is None else capped, block_mask=block_mask)
    return out.squeeze(0).transpose(0, 1)


TRACED.add(flex_rows_attention)


def _padded_attention(
    query: Tensor, key: Tensor, value: Tensor, *, slots: Tensor, shape: tuple[int, int], cap: float | None
) -> Tensor:
    """Move packed places [N, H, C] to their ``slots`` [N] of padded rows [B, S, H, C], attend, move back."""

    def padded(x: Tensor) -> Tensor:
        out = x.new_zeros(shape[0] * shape[1] + 1, *x.shape[1:]).index_copy(0, slots, x)[:-1]
        return out.view(*shape, *x.shape[1:])

    out = causal_attention(padded(query), padded(key), padded(value), cap=cap)  # [B, S, H, C]
    return F.pad(out.flatten(0, 1), (0, 0, 0, 0, 0, 1)).index_select(0, slots)


def _row_by_row_attention(
    query: Tensor, key: Tensor, value: Tensor, *, lengths: list[int], cap: float | None
) -> Tensor:
    """Attend in one row after the other, without padding."""
    sizes = [*lengths, len(query) - sum(lengths)]
    *rows, empty = zip(*(x[None].split(sizes, 1) for x in (query, key, value)), strict=True)
    out = [causal_attention(*heads, cap=cap)[0] for heads in rows]
    return torch.cat([*out, torch.zeros_like(empty[0][0])])

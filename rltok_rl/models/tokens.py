"""Tokens of a boundary string: their layout, pooling bytes into tokens, giving tokens back to bytes.

Shapes: B rows, T bytes, S tokens of the longest row, N places of all packed rows, D width.

Ragged rows of tokens are padded to the longest, [B, S], or packed one behind the other, [N]. N changes every batch, and
each new shape means recompilation, reallocation and a new graph capture. The room for N tokens is therefore a multiple
of m = max(16, the largest power of two that is at most N / 64): padding is below 1/64 from N = 1,024 on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.models.attention import PackedRows, causal_attention, packed_attention
from rltok_rl.models.layers import Attention
from rltok_rl.ranges import check_fields, option
from rltok_rl.renamed import warn_caller

SMALLEST_BUCKET = 16  # tokens
BUCKETS = 64  # of a total


def bucketed(total: int) -> int:
    """Return the room for a number of tokens: 0 for 0, 16 for 1, 800 for 800, 6,528 for 6,500."""
    size = max(SMALLEST_BUCKET, 1 << (total // BUCKETS).bit_length() >> 1)
    return -(-total // size) * size


def bucketed_totals(totals: Tensor) -> Tensor:
    """Return the rooms for totals [*L] int64 on a device, without reading them."""
    powers = 2 ** torch.arange(SMALLEST_BUCKET.bit_length() - 1, 40, device=totals.device)  # [p]
    fits = (powers <= totals.unsqueeze(-1) // BUCKETS).sum(-1)  # number of powers that are small enough
    size = powers[(fits - 1).clamp(min=0)]
    return -(totals // -size) * size


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Packed tokens: their room (more tokens are an error), and the method of attention inside rows.

    Example:
        >>> Packing(tokens=0.25).room_for(1000, num_rows=4)
        256
    """

    bucketed: bool = True  # round totals up, so that shapes repeat
    # Tokens per byte that fit; None fits any number, and makes the host wait.
    tokens: float | None = option(None, "(0, inf)")
    second: float | None = option(None, "(0, inf)")  # with ``tokens``: tokens of tokens per token that fit
    attention: Literal["auto", "flex", "padded", "rows"] = "auto"

    def __post_init__(self) -> None:
        """Check every field."""
        if self.attention == "varlen":
            warn_caller("attention='varlen' was removed; 'auto' is used")
            object.__setattr__(self, "attention", "auto")
        check_fields(self)
        if self.second is not None and self.tokens is None:
            raise ValueError(f"second must be None if tokens is None: no room is set aside, got {self.second}")

    def room_for(self, num_bytes: int, num_rows: int) -> int | None:
        """Return N for ``num_bytes`` bytes of all rows, or None if it is not fixed; each row's first token adds one."""
        if self.tokens is None:
            return None
        return self.rounded(min(num_bytes, math.ceil(self.tokens * num_bytes) + num_rows))

    def rounded(self, total: int) -> int:
        """Return the room for a total number of tokens."""
        return bucketed(total) if self.bucketed else total

    def places(self, total: Tensor, num_bytes: int, num_rows: int) -> Tensor:
        """Return the room for a total number of tokens on a device, without reading it."""
        room = self.room_for(num_bytes, num_rows)
        if room is not None:
            return torch.full_like(total, room)
        return bucketed_totals(total) if self.bucketed else total

    @property
    def above(self) -> Packing:
        """Packing of tokens of tokens among tokens."""
        return replace(self, tokens=None if self.tokens is None else self.second or 1.0, second=None)


Layout = Literal["padded", "packed"] | Packing
"""Layout of ragged rows: padded to the longest, packed without empty places, or a :class:`Packing`."""


def as_packing(layout: Layout) -> Packing | None:
    """Return how tokens are packed, or None if they are padded."""
    if isinstance(layout, Packing):
        return layout
    if layout not in ("padded", "packed"):
        raise ValueError(f"layout must be one of ['padded', 'packed'] or a Packing, got {layout!r}")
    return None if layout == "padded" else Packing(bucketed=False)


_watched: ContextVar[list[Tensor] | None] = ContextVar("watched", default=None)


@contextmanager
def watch_room() -> Iterator[list[Tensor]]:
    """Collect a number per fixed room in this block, on its device, instead of raising an error if it is too small.

    It is 0 if all tokens fit, else the factor that ``Packing.tokens`` lacks; the block's results are then wrong.
    """
    needs: list[Tensor] = []
    token = _watched.set(needs)
    try:
        yield needs
    finally:
        _watched.reset(token)


@dataclass(frozen=True)
class TokenLayout:
    """Where every token comes from and which token serves every byte."""

    shape: tuple[int, ...]  # (B, S) padded or (N,) packed
    boundaries: Tensor  # [B, T] bool
    num_tokens: Tensor  # [B]
    positions: Tensor  # [*shape] byte position of each token; 0 in padding
    byte_index: Tensor  # [B * S] or [N] flat index of each token's boundary byte; in padding a row's byte 0
    token_index: Tensor  # [B, T] flat index of the token that serves each byte, i(t)
    first: Tensor  # [B] flat index of each row's first token; [0] without bytes
    rows: PackedRows | None = None  # None when padded
    packing: Packing | None = None  # None when padded

    @property
    def width(self) -> int:
        """S; for packed tokens the host waits."""
        return self.shape[1] if self.rows is None else self.rows.longest

    def attention(self, cap: float | None, head_size: int = 0) -> Attention:
        """Return causal attention for this layout; packed tokens need to know the heads' size."""
        if self.rows is None or self.packing is None:
            return partial(causal_attention, cap=cap)
        return packed_attention(self.rows, cap=cap, head_size=head_size, method=self.packing.attention)


def token_layout(boundaries: Tensor, layout: Layout = "padded") -> TokenLayout:
    """Lay out the tokens of boundaries [B, T] bool, True in the first column.

    The shape depends on the boundaries, so the host waits for an accelerator here unless a ``Packing`` fixes the room.
    """
    packing = as_packing(layout)
    num_rows, length = boundaries.shape
    if packing is not None:
        served = boundaries.flatten().cumsum(0).view(num_rows, length) - 1  # [B, T] counted through all rows
        first = served[:, :1].flatten()  # [B]
        num_tokens = served[:, -1] + 1 - first if length else boundaries.new_zeros(num_rows, dtype=torch.int64)
        return _packed(boundaries, num_tokens, served, first, packing, most=length)
    token_of_byte = boundaries.cumsum(1) - 1  # [B, T], i(t)
    num_tokens = token_of_byte[:, -1] + 1 if length else boundaries.new_zeros(num_rows, dtype=torch.int64)  # [B]
    width = int(num_tokens.max()) if num_rows else 0
    row_ids = torch.arange(num_rows, device=boundaries.device)[:, None]
    token_index = token_of_byte + row_ids * width
    starts = (row_ids * length).expand(num_rows, width).flatten()  # [B * S] a row's byte 0
    byte_index = _boundary_bytes(boundaries, token_index, starts)
    positions, first = (byte_index - starts).view(num_rows, width), token_index[:, :1].flatten()
    return TokenLayout((num_rows, width), boundaries, num_tokens, positions, byte_index, token_index, first)


def layout_above(boundaries: Tensor, below: TokenLayout) -> TokenLayout:
    """Lay out tokens of tokens like the tokens ``below``, which take the place of bytes.

    Boundaries are [B, S] bool, or [1, N] of packed tokens: True at the first token of a row, never in padding.
    """
    if below.rows is None or below.packing is None:
        return token_layout(boundaries)
    served = boundaries.cumsum(1) - 1  # [1, N]
    places = (below.first, (below.first + below.num_tokens - 1).clamp(max=served.shape[1] - 1))  # [B] each
    first, last = (served[0].index_select(0, place) for place in places)
    num_tokens = (last - first + 1).clamp(min=1)  # the clamps matter only if there was too little room
    return _packed(boundaries, num_tokens, served, first, below.packing.above, most=below.rows.most)


def _packed(
    boundaries: Tensor, num_tokens: Tensor, served: Tensor, first: Tensor, packing: Packing, *, most: int
) -> TokenLayout:
    """Lay out packed tokens; ``boundaries`` and ``served`` are [B, T], or [1, N]; no row has more than ``most``."""
    room = packing.room_for(boundaries.numel(), len(num_tokens))
    if room is None:
        total, most = torch.stack((num_tokens.sum(), num_tokens.max())).tolist() if len(num_tokens) else (0, 0)
        room = packing.rounded(total)
    else:
        drawn, needs = num_tokens.sum(), _watched.get()
        message = "more tokens were drawn than there is room for (compute.token_room, Packing.tokens)"
        if needs is not None:
            expected = (packing.tokens or 0.0) * max(boundaries.numel(), 1)
            needs.append(torch.where(drawn > room, drawn.double() / expected, 0.0))
            if drawn.device.type == "cpu":  # row-by-row attention needs a place for every token
                room = max(room, packing.rounded(int(drawn)))
        elif drawn.device.type != "cpu":
            torch._assert_async(drawn <= room, message)  # without a wait for the answer
        elif int(drawn) > room:
            raise ValueError(f"{message}: {int(drawn)} of {boundaries.numel()} places closed one, room for {room}")
    empty = torch.zeros(room, dtype=torch.int64, device=boundaries.device)
    byte_index = _boundary_bytes(boundaries, served.clamp(max=room), empty)
    return TokenLayout(
        (room,),
        boundaries,
        num_tokens,
        byte_index % max(boundaries.shape[1], 1),
        byte_index,
        served.clamp(max=max(room - 1, 0)),
        first.clamp(max=max(room - 1, 0)),
        PackedRows(num_tokens, room, most),
        packing,
    )


def _boundary_bytes(boundaries: Tensor, served: Tensor, empty: Tensor) -> Tensor:
    """Return the flat index [M] of the byte that closes each token; ``empty`` [M] holds that of places without one."""
    count = len(empty)
    # Bytes without a boundary write into an extra place, which is cut off.
    slots = torch.where(boundaries, served, count).flatten()
    places = torch.arange(boundaries.numel(), device=boundaries.device)
    return F.pad(empty, (0, 1)).scatter(0, slots, places)[:count]


def downsample(
    states: Tensor,
    layout: TokenLayout,
    pooling: Literal["select", "mean"] = "select",
    *,
    weights: Tensor | None = None,
    open_first: bool = False,
) -> Tensor:
    """Pool byte states X [B, T, D] into tokens [B, S, D] or [N, D], with weights w [B, T].

        select:  X'_s = w_t X_t                              for the boundary t that closes token s       (Eq. 7)
        mean:    X'_s = sum w_u X_u / sum w_u                over the bytes u after the previous boundary, up to t

    With ``"mean"`` and ``open_first``, the first byte flows into the second token instead of closing its own. Padding
    holds copies of the row's first byte (select) or zeros (mean).
    """
    if pooling == "select":
        selected = states if weights is None else states * weights.to(states.dtype).unsqueeze(-1)
        return selected.flatten(0, 1).index_select(0, layout.byte_index).view(*layout.shape, states.shape[-1])
    closing = closing_token(layout, open_first)  # [B, T]
    last = layout.token_index[:, -1:]  # bytes after a row's last boundary flow into no token
    num_slots = layout.byte_index.shape[0]
    closing = torch.where(closing <= last, closing, num_slots).flatten()
    # Sums in float32 at least: a narrow type stops counting after a few hundred bytes.
    wide = states.flatten(0, 1).to(torch.promote_types(states.dtype, torch.float32))
    shares = wide.new_ones(len(wide)) if weights is None else weights.flatten().to(wide.dtype)  # [B * T]
    parts = wide if weights is None else wide * shares[:, None]
    sums = wide.new_zeros(num_slots + 1, wide.shape[-1]).index_add(0, closing, parts)
    counts = wide.new_zeros(num_slots + 1).index_add(0, closing, shares)
    means = (sums / torch.where(counts == 0, 1.0, counts)[:, None])[:-1].to(states.dtype)
    return means.view(*layout.shape, states.shape[-1])


def closing_token(layout: TokenLayout, open_first: bool) -> Tensor:
    """Return the flat index [B, T] of the token that pools each byte: the next one to be closed."""
    closes = layout.boundaries.to(torch.int64, copy=True)
    if open_first:
        closes[:, :1] = 0
    return layout.token_index - closes + 1


def upsample(states: Tensor, updates: Tensor, layout: TokenLayout) -> Tensor:
    """Give every byte the token that serves it, ``Y_t = X_t + U_{i(t)}`` (Eq. 9): [B, T, D] and [*shape, D]."""
    served = updates.reshape(-1, states.shape[-1]).index_select(0, layout.token_index.flatten())
    return states + served.view_as(states)

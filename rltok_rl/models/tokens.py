"""How much room packed tokens get, in shapes that repeat.

Shapes: B rows, T bytes, N tokens of all rows.

N is another number in every batch, and with every new shape programs are compiled, memory is cut and graphs are
captured anew. The room for N tokens is therefore a multiple of m tokens,

    m = max(16, the largest power of two that is at most N / 64),

which leaves fewer than m places empty: less than 1/64 of the tokens from N = 1,024 on, half of that on average. Empty
places lie behind the last row and belong to none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rltok_rl.models.attention import causal_attention
from rltok_rl.models.packed_rows import PackedRows
from rltok_rl.models.varlen import Attention, packed_attention

SMALLEST_BUCKET = 16
"""Tokens of a bucket at least."""
BUCKETS = 64
"""Buckets of a total at least, where they are no smaller than that."""


def bucketed(total: int) -> int:
    """The room for a total number of tokens: the next multiple of its bucket.

    Example:
        >>> [bucketed(n) for n in (0, 1, 800, 6500, 26000)]
        [0, 16, 800, 6528, 26112]
    """
    part = total // BUCKETS
    size = max(SMALLEST_BUCKET, 1 << part.bit_length() >> 1)
    return -(-total // size) * size


def bucketed_totals(totals: Tensor) -> Tensor:
    """The same of totals on a device, without looking at them: [*L] int64 to [*L].

    Example:
        >>> bucketed_totals(torch.tensor([0, 1, 800, 6500, 26000])).tolist()
        [0, 16, 800, 6528, 26112]
    """
    powers = 2 ** torch.arange(SMALLEST_BUCKET.bit_length() - 1, 40, device=totals.device)  # [p]
    fits = (powers <= totals.unsqueeze(-1) // BUCKETS).sum(-1)  # how many are no larger
    size = powers[(fits - 1).clamp(min=0)]
    return -(totals // -size) * size


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Packed tokens, and how much room they get.

    Example:
        >>> Packing(tokens=0.25).room_for(1000, num_rows=4)
        256
    """

    bucketed: bool = True
    """Whether totals are rounded up, so that shapes repeat."""
    tokens: float | None = None
    """Tokens per byte that there is room for; more are an error. None makes room for as many as there are, for which an
    accelerator makes the host wait."""
    second: float | None = None
    """With ``tokens``: tokens of tokens per token that there is room for; None is room for any."""
    attention: Literal["auto", "varlen", "flex", "padded", "rows"] = "auto"
    """How attention is computed, a method of ``rltok_rl.models.varlen``; ``"auto"`` takes the fastest that the device
    has."""

    def __post_init__(self) -> None:
        """Refuse what gives no room, by name."""
        for name in ("tokens", "second"):
            share = getattr(self, name)
            if share is not None and not 0 < share < math.inf:
                raise ValueError(f"{name} must be a positive number or None, got {share}")
        if self.second is not None and self.tokens is None:
            raise ValueError(f"second must be None where tokens is None: no room is set aside, got {self.second}")

    def room_for(self, num_bytes: int, num_rows: int) -> int | None:
        """Places for the tokens of ``num_bytes`` bytes in ``num_rows`` rows, where that is known beforehand.

        Args:
            num_bytes: of all rows.
            num_rows: B; each has a first token besides.
        """
        if self.tokens is None:
            return None
        return self.rounded(min(num_bytes, math.ceil(self.tokens * num_bytes) + num_rows))

    def places(self, total: Tensor, num_bytes: int, num_rows: int) -> Tensor:
        """The room that a total on a device gets, without looking at it.

        Args:
            total: number of tokens.
            num_bytes: of all rows.
            num_rows: B.
        """
        room = self.room_for(num_bytes, num_rows)
        if room is not None:
            return torch.full_like(total, room)
        return bucketed_totals(total) if self.bucketed else total

    def rounded(self, total: int) -> int:
        """The room that a total gets."""
        return bucketed(total) if self.bucketed else total

    @property
    def above(self) -> Packing:
        """That of tokens of tokens among tokens."""
        second = 1.0 if self.second is None else self.second
        return replace(self, tokens=None if self.tokens is None else second, second=None)


Layout = Literal["padded", "packed"] | Packing
"""How ragged rows of tokens are laid out: ``"padded"`` to the longest; ``"packed"``, nothing between rows and no place
empty; or packed with a room that is said."""


def as_packing(layout: Layout) -> Packing | None:
    """How tokens are packed; None where they are padded.

    Args:
        layout: ``"padded"``, ``"packed"`` or a :class:`Packing`.
    """
    if isinstance(layout, Packing):
        return layout
    if layout not in ("padded", "packed"):
        raise ValueError(f"layout must be one of ['padded', 'packed'] or a Packing, got {layout!r}")
    return Packing(bucketed=False) if layout == "packed" else None


@dataclass(frozen=True)
class TokenLayout:
    """Where every token comes from and which token serves every byte."""

    shape: tuple[int, ...]
    """(B, S) padded or (N,) packed."""
    boundaries: Tensor
    """[B, T] bool."""
    num_tokens: Tensor
    """[B] tokens of each row."""
    positions: Tensor
    """[*shape] byte position of each token; 0 in padding."""
    byte_index: Tensor
    """[B * S] or [N] flat index ``row * T + position`` of each token's boundary byte; in padding a row's byte 0."""
    token_index: Tensor
    """[B, T] flat index of the token that serves each byte, i(t)."""
    first: Tensor
    """[B] flat index of each row's first token; [0] where there are no bytes."""
    rows: PackedRows | None = None
    """Where the rows lie; None when padded."""
    packing: Packing | None = None
    """How they are packed; None when padded."""

    @property
    def width(self) -> int:
        """S; of packed tokens on an accelerator, the host waits for it."""
        return self.shape[1] if self.rows is None else self.rows.longest

    def attention(self, cap: float | None, like: Tensor | None = None, num_heads: int = 1) -> Attention:
        """The causal attention that fits this layout.

        Args:
            cap: soft cap of the scores.
            like: [*shape, D] the tokens that it is for, where they are packed: kernels differ by dtype and heads.
            num_heads: H.
        """
        if self.rows is None or self.packing is None:
            return partial(causal_attention, cap=cap)
        if like is None:
            raise ValueError("like must be the tokens that attention is for where they are packed, got None")
        dtype, head_size, method = _product_dtype(like), like.shape[-1] // num_heads, self.packing.attention
        return packed_attention(self.rows, cap=cap, dtype=dtype, head_size=head_size, method=method)


def _product_dtype(x: Tensor) -> torch.dtype:
    """What a matrix product of ``x`` comes out as."""
    kind = x.device.type
    narrowed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if narrowed and x.dtype.is_floating_point else x.dtype


def token_layout(boundaries: Tensor, layout: Layout = "padded") -> TokenLayout:
    """Lay the tokens of a boundary string out.

    Args:
        boundaries: [B, T] bool, True in the first column.
        layout: ``"padded"``, ``"packed"``, or a :class:`~rltok_rl.models.tokens.Packing`.

    Returns:
        The layout. Its shape depends on the boundaries, so that on an accelerator the host waits for them here, once;
        it does not with a ``Packing`` that says how many tokens there is room for.
    """
    packing = as_packing(layout)
    num_rows, length = boundaries.shape
    row_ids = torch.arange(num_rows, device=boundaries.device)
    if packing is not None:
        served = boundaries.flatten().cumsum(0).view(num_rows, length) - 1  # [B, T] all rows in one count
        first = served[:, :1].flatten()  # [B]
        ends = served[:, -1:].flatten() + 1
        num_tokens = ends - first if length else boundaries.new_zeros(num_rows, dtype=torch.int64)
        return _packed(boundaries, num_tokens, served, first, packing, most=length)
    token_of_byte = boundaries.cumsum(1) - 1  # [B, T], i(t)
    num_tokens = token_of_byte[:, -1] + 1 if length else boundaries.new_zeros(num_rows, dtype=torch.int64)  # [B]
    width = int(num_tokens.max()) if num_rows else 0
    token_index = token_of_byte + row_ids[:, None] * width
    starts = (row_ids[:, None] * length).expand(num_rows, width).flatten()  # [B * S] a row's byte 0
    byte_index = _boundary_bytes(boundaries, token_index, starts)
    return TokenLayout(
        (num_rows, width),
        boundaries,
        num_tokens,
        (byte_index - starts).view(num_rows, width),
        byte_index,
        token_index,
        token_index[:, :1].flatten(),
    )


def layout_above(drawn: Tensor, where: TokenLayout) -> TokenLayout:
    """Lay the tokens of tokens out, in the way of the tokens.

    Args:
        drawn: [B, S] bool, or [1, N] of packed tokens, True where a token closes a token of tokens: in padding nowhere,
            at the first token of a row always.
        where: where the tokens sit.

    Returns:
        A layout whose bytes are the tokens; of packed tokens, one row [1, N] holds all rows.
    """
    if where.rows is None or where.packing is None:
        return token_layout(drawn)
    served = drawn.cumsum(1) - 1  # [1, N]
    first, last = (served[0].index_select(0, where.first + n) for n in (0, where.num_tokens - 1))  # [B]
    return _packed(drawn, last - first + 1, served, first, where.packing.above, most=where.rows.most)


def _packed(
    boundaries: Tensor, num_tokens: Tensor, served: Tensor, first: Tensor, packing: Packing, *, most: int
) -> TokenLayout:
    """The layout of packed tokens: no more is read of the boundaries than how much room they want, if that is asked.

    Args:
        boundaries: [B, T], or [1, N] for all rows.
        num_tokens: [B].
        served: of the shape of the boundaries, which token serves each place.
        first: [B] each row's first token.
        packing: how much room they get.
        most: no row has more tokens.
    """
    room = packing.room_for(boundaries.numel(), len(num_tokens))
    if room is None:
        total, most = torch.stack((num_tokens.sum(), num_tokens.max())).tolist() if len(num_tokens) else (0, 0)
        room = packing.rounded(total)
    else:
        check_room(num_tokens.sum(), room, boundaries.numel())
    empty = torch.zeros(room, dtype=torch.int64, device=boundaries.device)
    byte_index = _boundary_bytes(boundaries, served, empty)
    return TokenLayout(
        (room,),
        boundaries,
        num_tokens,
        byte_index % max(boundaries.shape[1], 1),
        byte_index,
        served.clamp(max=max(room - 1, 0)),
        first,
        PackedRows(num_tokens, room, most),
        packing,
    )


def _boundary_bytes(boundaries: Tensor, served: Tensor, empty: Tensor) -> Tensor:
    """Flat index [M] of the byte that closes each of M tokens; that of ``empty`` [M] where there is none.

    Args:
        boundaries: [B, T].
        served: [B, T] which of the tokens serves each byte.
        empty: [M].
    """
    count = len(empty)
    # All but boundaries go into a place that is cut off again.
    slots = torch.where(boundaries, served, count).clamp(max=count).flatten()
    places = torch.arange(boundaries.numel(), device=boundaries.device)
    return torch.cat((empty, empty.new_zeros(1))).scatter(0, slots, places)[:count]


def check_room(total: Tensor, room: int, num_places: int) -> None:
    """Require that there are no more tokens than room; an accelerator is asked without waiting for it.

    Args:
        total: number of tokens.
        room: N.
        num_places: bytes, or tokens, that they were made of.
    """
    message = "more tokens were drawn than there is room for (compute.token_room, Packing.tokens)"
    if total.device.type != "cpu":
        torch._assert_async(total <= room, message)
    elif int(total) > room:
        raise ValueError(f"{message}: {int(total)} of {num_places} places closed one, room for {room}")


def downsample(
    states: Tensor,
    layout: TokenLayout,
    pooling: Literal["select", "mean"] = "select",
    *,
    weights: Tensor | None = None,
    open_first: bool = False,
) -> Tensor:
    """Pool byte states into tokens.

        select:  X'_s = w_t X_t                              for the boundary t that closes token s       (Eq. 7)
        mean:    X'_s = sum w_u X_u / sum w_u                over the bytes u after the previous boundary, up to t

    Args:
        states: [B, T, D] byte states X.
        layout: where the tokens sit.
        pooling: ``"select"`` or ``"mean"``.
        weights: [B, T] w, how much of each byte goes into its token; None for 1.
        open_first: with ``"mean"``, let the first byte flow into the second token instead of closing one of its own.

    Returns:
        [B, S, D] or [N, D] tokens; padding holds copies of the row's first byte (select) or zeros (mean).
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


def open_bytes(layout: TokenLayout, *, open_first: bool = False) -> Tensor:
    """Bytes [B, T] bool after their row's last boundary: they wait for a token.

    Args:
        layout: where the tokens sit.
        open_first: whether the first byte waits for the second token.
    """
    return closing_token(layout, open_first) > layout.token_index[:, -1:]


def closing_token(layout: TokenLayout, open_first: bool) -> Tensor:
    """Flat index [B, T] of the token that a byte flows into: the next one to be closed.

    Args:
        layout: where the tokens sit.
        open_first: let the first byte flow into the second token.
    """
    closes = layout.boundaries.to(torch.int64)
    if open_first:
        closes = closes.clone()
        closes[:, :1] = 0
    return layout.token_index - closes + 1  # the token before, at a boundary byte, hence the next but for those


def token_update(
    tokens_in: Tensor, tokens_out: Tensor, upsampling: Literal["add", "deviation", "attention"] = "add"
) -> Tensor:
    """What a token adds to every byte it serves.

        add, attention:  Mid_s                                                                           (Eq. 9)
        deviation:       Mid_s - X'_s,  the change that the token layers made

    Args:
        tokens_in: [*L, D] tokens X' before the token layers.
        tokens_out: [*L, D] tokens after them.
        upsampling: ``"add"``, ``"deviation"`` or ``"attention"``.

    Returns:
        [*L, D].
    """
    return tokens_out - tokens_in if upsampling == "deviation" else tokens_out


def upsample(states: Tensor, updates: Tensor, layout: TokenLayout) -> Tensor:
    """Give every byte the token that serves it, ``Y_t = X_t + U_{i(t)}`` (Eq. 9).

    Args:
        states: [B, T, D] byte states X.
        updates: [B, S, D] or [N, D], what each token adds.
        layout: where the tokens sit.

    Returns:
        [B, T, D].
    """
    served = updates.reshape(-1, states.shape[-1]).index_select(0, layout.token_index.flatten())
    return states + served.view_as(states)

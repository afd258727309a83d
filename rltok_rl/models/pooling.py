"""From bytes to tokens and back: where tokens sit, how they are pooled, how bytes receive them.

Shapes: B rows, T bytes, S tokens of the longest row, N tokens of all rows, D width. A boundary at byte t closes a
token at t: it is pooled from bytes up to t, keeps position t, and serves byte t and all bytes before the next boundary,

    i(t) = sum_{k <= t} a_k - 1                                                                          (Eq. 8, 9)

Rows have different numbers of tokens. They are laid out either *padded*, [B, S, D], or *packed*, [N, D] with the rows
one after the other. Everything but attention treats both as one flat list of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rltok_rl.models.attention import causal_attention, packed_causal_attention

Layout = Literal["padded", "packed"]


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
    """[B * S] or [N] flat index ``row * T + position`` of each token's boundary byte; the row's byte 0 in padding."""
    token_index: Tensor
    """[B, T] flat index of the token that serves each byte, i(t)."""
    slots: Tensor | None
    """[N] flat padded index of each packed token; None when padded."""
    width: int
    """S."""

    def attention(self, cap: float | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """The causal attention that fits this layout."""
        if self.slots is None:
            return partial(causal_attention, cap=cap)
        return partial(
            packed_causal_attention, slots=self.slots, num_rows=self.boundaries.shape[0], width=self.width, cap=cap
        )


def token_layout(boundaries: Tensor, layout: Layout = "padded") -> TokenLayout:
    """Lay the tokens of a boundary string out.

    Args:
        boundaries: [B, T] bool, True in the first column.
        layout: ``"padded"`` or ``"packed"``.

    Returns:
        The layout. Its shape depends on the boundaries, so that on an accelerator the host waits for them here.
    """
    if layout not in ("padded", "packed"):
        raise ValueError(f"layout must be one of ['padded', 'packed'], got {layout!r}")
    num_rows, length = boundaries.shape
    token_of_byte = boundaries.cumsum(1) - 1  # [B, T], i(t)
    num_tokens = token_of_byte[:, -1] + 1 if length else boundaries.new_zeros(num_rows, dtype=torch.int64)  # [B]
    rows, columns = boundaries.nonzero(as_tuple=True)  # [N] each, row after row
    width = int(num_tokens.max()) if num_rows else 0
    slots = rows * width + token_of_byte[rows, columns]  # [N]
    byte_index = rows * length + columns  # [N]
    row_ids = torch.arange(num_rows, device=boundaries.device)
    if layout == "packed":
        starts = num_tokens.cumsum(0) - num_tokens  # [B]
        return TokenLayout(
            (len(rows),),
            boundaries,
            num_tokens,
            columns,
            byte_index,
            token_of_byte + starts[:, None],
            slots,
            width,
        )
    positions = columns.new_zeros(num_rows * width).index_copy(0, slots, columns).view(num_rows, width)
    return TokenLayout(
        (num_rows, width),
        boundaries,
        num_tokens,
        positions,
        (positions + row_ids[:, None] * length).flatten(),
        token_of_byte + row_ids[:, None] * width,
        None,
        width,
    )


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

"""Keys and values of attention layers between two bytes: the last bytes in a ring, or all tokens.

Shapes: B rows, L layers, W window, S cached tokens, H heads, C channels of a head, D width, n rows of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.models.attention import attend
from rltok_rl.models.layers import Attention
from rltok_rl.models.tokens import TokenLayout

_State = TypeVar("_State", bound="RowState")


class RowState:
    """Dataclass of tensors, and of further states, with rows in the first dimension."""

    def map(self: _State, function: Callable[[Tensor], Tensor]) -> _State:
        """Apply a function to every tensor."""

        def mapped(value: Any) -> Any:
            if isinstance(value, Tensor):
                return function(value)
            return value.map(function) if isinstance(value, RowState) else value

        return type(self)(**{f.name: mapped(getattr(self, f.name)) for f in fields(self)})  # type: ignore[arg-type]


@dataclass
class WindowCache(RowState):
    """Ring buffer of the keys and values of the last W bytes: byte t is in slot ``t mod W``.

    Softmax ignores the order of keys, and rotary positions were applied before writing, so the ring is never unrolled.
    """

    keys: Tensor  # [B, L, W, H, C]
    values: Tensor  # [B, L, W, H, C]

    def attention(
        self, rows: Tensor, position: Tensor, cap: float | None, starts: Tensor | None = None
    ) -> Callable[[int], Attention]:
        """Return each layer's attention of one byte in each of ``rows`` [n] at ``position`` [n], which it writes.

        With ``starts`` [n], it sees nothing before them.
        """
        window = self.keys.shape[2]
        slots = torch.arange(window, device=rows.device)
        if starts is None:
            seen = slots <= position[:, None]  # [n, W]: slots 0 .. t are filled while t < W; from then on all are
        else:
            seen = (position[:, None] - slots) % window <= (position - starts)[:, None]  # by age
        return _stepping(self.keys, self.values, rows, position % window, seen, cap)

    def recording(self, attend: Attention) -> Callable[[int], Attention]:
        """Let attention over a whole window [B, T, H, C] from position 0 write the last W bytes."""
        return _recording(attend, self.write_window)

    def write_window(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write the last W bytes of a whole window [B, T, H, C] from position 0."""
        length, window = keys.shape[1], self.keys.shape[2]
        kept = torch.arange(max(0, length - window), length, device=keys.device)
        self.keys[:, layer, kept % window] = keys[:, kept].to(self.keys.dtype)
        self.values[:, layer, kept % window] = values[:, kept].to(self.values.dtype)

    # For attention between bytes and tokens: a ring of one layer.

    def write(self, rows: Tensor, number: Tensor, key: Tensor, value: Tensor) -> None:
        """Write the ``number``-th [n] entry of each of ``rows`` [n]: key and value [n, H, C]."""
        slot = number % self.keys.shape[2]
        self.keys[rows, 0, slot], self.values[rows, 0, slot] = key.to(self.keys.dtype), value.to(self.values.dtype)

    def write_last(self, keys: Tensor, values: Tensor, count: Tensor) -> None:
        """Write the last W of the first ``count`` [B] entries of each row [B, S, H, C]."""
        window = self.keys.shape[2]
        newest = count[:, None] - 1
        slots = torch.arange(window, device=count.device)
        number = (newest - (newest - slots) % window).clamp(min=0)  # [B, W] entry of each slot
        rows = torch.arange(len(count), device=count.device)[:, None]
        self.keys[:, 0], self.values[:, 0] = keys[rows, number].to(self.keys), values[rows, number].to(self.values)

    def read(self, rows: Tensor, query: Tensor, newest: Tensor, count: Tensor, cap: float | None) -> Tensor:
        """Attend in each of ``rows`` [n], query [n, H, C], to the last ``count`` [n] entries up to ``newest`` [n]."""
        window = self.keys.shape[2]
        age = (newest[:, None] - torch.arange(window, device=rows.device)) % window  # [n, W]
        return _attend_once(query, self.keys[rows, 0], self.values[rows, 0], age < count[:, None], cap)


@dataclass
class TokenCache(RowState):
    """State of one level: keys and values of all tokens, and the update that the current token adds to its units."""

    keys: Tensor  # [B, L, S, H, C]
    values: Tensor  # [B, L, S, H, C]
    count: Tensor  # [B] tokens of each row
    update: Tensor  # [B, D]

    def make_room(self, needed: int) -> None:
        """Make room for ``needed`` tokens per row, at least doubling it when it grows."""
        capacity = self.keys.shape[2]
        if needed > capacity:
            more = max(needed, 2 * capacity) - capacity
            self.keys, self.values = (F.pad(x, (0, 0, 0, 0, 0, more)) for x in (self.keys, self.values))

    def attention(self, rows: Tensor, cap: float | None) -> Callable[[int], Attention]:
        """Return each layer's attention of one new token in each of ``rows`` [n], which it writes."""
        slot = self.count[rows]  # [n]
        longest = int(slot.max()) + 1
        self.make_room(longest)
        seen = torch.arange(longest, device=rows.device) <= slot[:, None]  # [n, longest]
        return _stepping(self.keys, self.values, rows, slot, seen, cap)

    def recording(self, attend: Attention, layout: TokenLayout) -> Callable[[int], Attention]:
        """Let attention over the padded tokens [B, S, H, C] of a whole window write all of them."""
        if layout.rows is not None:
            raise ValueError("layout must be 'padded' where a cache is filled, got 'packed'")
        self.make_room(layout.width)

        def write(layer: int, keys: Tensor, values: Tensor) -> None:
            self.keys[:, layer, : layout.width] = keys.to(self.keys.dtype)
            self.values[:, layer, : layout.width] = values.to(self.values.dtype)

        return _recording(attend, write)

    def finish_window(self, updates: Tensor, layout: TokenLayout) -> None:
        """Set everything but keys and values after a whole window with the tokens' updates [B, S, D]."""
        last = layout.token_index[:, -1]  # [B]
        self.update = updates.flatten(0, 1).index_select(0, last).to(self.update.dtype)
        self.count = layout.num_tokens.clone()


def _recording(attend: Attention, write: Callable[[int, Tensor, Tensor], None]) -> Callable[[int], Attention]:
    """Let every layer's attention write its keys and values."""

    def recorded(query: Tensor, key: Tensor, value: Tensor, *, layer: int) -> Tensor:
        write(layer, key, value)
        return attend(query, key, value)

    return lambda layer: partial(recorded, layer=layer)


def _stepping(
    keys: Tensor, values: Tensor, rows: Tensor, slot: Tensor, seen: Tensor, cap: float | None
) -> Callable[[int], Attention]:
    """Let every layer write one entry into ``slot`` [n] of each of ``rows`` [n], and attend where ``seen`` [n, S]."""

    def step(query: Tensor, key: Tensor, value: Tensor, *, layer: int) -> Tensor:
        k, v = keys[:, layer], values[:, layer]
        k[rows, slot], v[rows, slot] = key.to(keys.dtype), value.to(values.dtype)
        k, v = k[:, : seen.shape[1]], v[:, : seen.shape[1]]
        if len(rows) < len(keys):  # other rows do no work
            k, v = k[rows], v[rows]
        return _attend_once(query, k, v, seen, cap)

    return lambda layer: partial(step, layer=layer)


def _attend_once(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, cap: float | None) -> Tensor:
    """Attend with one query per row [n, H, C] to keys and values [n, S, H, C] where ``seen`` [n, S]."""
    q, k, v = query.unsqueeze(2), keys.transpose(1, 2), values.transpose(1, 2)  # [n, H, 1, C], [n, H, S, C] twice
    return attend(q, k.to(q.dtype), v.to(q.dtype), seen[:, None, None], cap).squeeze(2)

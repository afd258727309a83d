"""What the U-Net has to remember between two bytes.

Shapes: B rows, L layers, W window, S tokens held, H heads, C channels of a head, D width, w lags. Rows may stand at
different positions and hold different numbers of tokens; nothing here is shared between rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.models.attention import attend
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.layers import Attend
from rltok_rl.models.tokens import TokenLayout, open_bytes

if TYPE_CHECKING:
    pass

FIRST_CAPACITY = 64


@dataclass
class WindowCache:
    """Keys and values of the last W bytes, written round and round: byte t lives in slot ``t mod W``.

    Softmax does not care for the order of keys, and rotary positions were applied before writing, so that the ring
    never has to be unrolled.
    """

    keys: Tensor  # [L, B, W, H, C]
    values: Tensor  # [L, B, W, H, C]

    def attention(self, rows: Tensor, position: Tensor, cap: float | None) -> Callable[[int], Attend]:
        """Each layer's attention of one byte in each of ``rows`` [n], at ``position`` [n]; it is written first."""
        window = self.keys.shape[2]
        slot = position % window  # [n]
        # Slots 0 .. t are filled while t < W; from then on all are.
        seen = torch.arange(window, device=rows.device) <= position[:, None]  # [n, W]
        everyone = len(rows) == self.keys.shape[1]

        def attend_at(layer: int) -> Attend:
            keys, values = self.keys[layer], self.values[layer]

            def step(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                keys[rows, slot], values[rows, slot] = key.to(keys.dtype), value.to(values.dtype)
                if everyone:
                    return _attend_one(query, keys, values, seen, cap)
                return _attend_one(query, keys[rows], values[rows], seen, cap)

            return step

        return attend_at

    def recording(self, attend: Attend) -> Callable[[int], Attend]:
        """Attention over a whole window [B, T, H, C] that starts at position 0; its last W bytes are remembered."""
        return _recording(attend, self.write_window)

    def write_window(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Remember the last W bytes of a whole window [B, T, H, C] that starts at position 0."""
        length, window = keys.shape[1], self.keys.shape[2]
        kept = torch.arange(max(0, length - window), length, device=keys.device)
        self.keys[layer][:, kept % window] = keys[:, kept].to(self.keys.dtype)
        self.values[layer][:, kept % window] = values[:, kept].to(self.values.dtype)

    # A ring of one layer, of bytes or of tokens by their number, that is read from outside.

    def write(self, rows: Tensor, number: Tensor, key: Tensor, value: Tensor) -> None:
        """Remember the ``number``-th [n] entry of each of ``rows`` [n], its key and value [n, H, C]."""
        slot = number % self.keys.shape[2]
        self.keys[0][rows, slot], self.values[0][rows, slot] = key.to(self.keys.dtype), value.to(self.values.dtype)

    def write_last(self, keys: Tensor, values: Tensor, count: Tensor) -> None:
        """Remember the last W of the first ``count`` [B] entries of each row [B, S, H, C]."""
        window = self.keys.shape[2]
        newest = count[:, None] - 1
        slots = torch.arange(window, device=count.device)
        number = (newest - (newest - slots) % window).clamp(min=0)  # [B, W], what each slot holds
        rows = torch.arange(len(count), device=count.device)[:, None]
        self.keys[0], self.values[0] = keys[rows, number].to(self.keys.dtype), values[rows, number].to(self.keys.dtype)

    def read(self, rows: Tensor, query: Tensor, newest: Tensor, count: Tensor, cap: float | None) -> Tensor:
        """Attention of a query in each of ``rows``, [n, H, C], to the last ``count`` [n] entries up to ``newest``."""
        window = self.keys.shape[2]
        age = (newest[:, None] - torch.arange(window, device=rows.device)) % window  # [n, W]
        return _attend_one(query, self.keys[0][rows], self.values[0][rows], age < count[:, None], cap)


@dataclass
class TokenCache:
    """Keys and values of all tokens; room doubles when a row runs out of it."""

    keys: Tensor  # [L, B, S, H, C]
    values: Tensor  # [L, B, S, H, C]
    count: Tensor  # [B] tokens held by each row

    def make_room(self, needed: int) -> None:
        """Hold at least ``needed`` tokens per row. Doubling keeps the cost per token constant."""
        held = self.keys.shape[2]
        if needed <= held:
            return
        grown = max(needed, 2 * held)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:2], grown, *old.shape[3:])
            new[:, :, :held] = old
            setattr(self, name, new)

    def attention(self, rows: Tensor, cap: float | None) -> Callable[[int], Attend]:
        """Each layer's attention of one new token in each of ``rows`` [n]; the token is written first."""
        slot = self.count[rows]  # [n]
        longest = int(slot.max()) + 1
        self.make_room(longest)
        seen = torch.arange(longest, device=rows.device) <= slot[:, None]  # [n, longest]
        everyone = len(rows) == len(self.count)

        def attend_at(layer: int) -> Attend:
            keys, values = self.keys[layer], self.values[layer]

            def step(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                keys[rows, slot], values[rows, slot] = key.to(keys.dtype), value.to(values.dtype)
                held_keys, held_values = keys[:, :longest], values[:, :longest]
                if not everyone:  # rows without a boundary do no work
                    held_keys, held_values = held_keys[rows], held_values[rows]
                return _attend_one(query, held_keys, held_values, seen, cap)

            return step

        return attend_at

    def recording(self, attend: Attend, layout: TokenLayout) -> Callable[[int], Attend]:
        """Attention over the padded tokens [B, S, H, C] of a window that starts at position 0; all are remembered."""
        if layout.rows is not None:
            raise ValueError("layout must be 'padded' where a cache is filled, got 'packed'")
        self.make_room(layout.width)

        def write(layer: int, keys: Tensor, values: Tensor) -> None:
            self.keys[layer][:, : layout.width] = keys.to(self.keys.dtype)
            self.values[layer][:, : layout.width] = values.to(self.values.dtype)

        return _recording(attend, write)

    def map(self, on_rows: Callable[[Tensor], Tensor], on_layers: Callable[[Tensor], Tensor]) -> TokenCache:
        """Apply functions to everything in it."""
        return TokenCache(on_layers(self.keys), on_layers(self.values), on_rows(self.count))


def _recording(attend: Attend, write: Callable[[int, Tensor, Tensor], None]) -> Callable[[int], Attend]:
    """``attend`` for every layer, writing down the keys and values it is given."""

    def attend_at(layer: int) -> Attend:
        def both(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            write(layer, key, value)
            return attend(query, key, value)

        return both

    return attend_at


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, cap: float | None) -> Tensor:
    """One query per row [n, H, C] against what the row holds [n, S, H, C], where ``seen`` [n, S]."""
    q, k, v = query.unsqueeze(2), keys.transpose(1, 2), values.transpose(1, 2)  # [n, H, 1, C], [n, H, S, C] twice
    return attend(q, k.to(q.dtype), v.to(q.dtype), seen[:, None, None], cap).squeeze(2)


@dataclass
class UNetCache:
    """The state of B texts that are being read one byte at a time.

    A step has two halves: a byte is observed, then its boundary is decided. ``pending`` tells which rows are between
    the two.
    """

    position: Tensor  # [B] bytes decided so far; the position of the byte that is observed next, or pending
    recent: Tensor  # [B, w] bool, a_{t-1} .. a_{t-w}
    encoder_state: Tensor  # [B, D] X_t of the pending byte
    segment_sum: Tensor  # [B, D] float32 at least, sum of X over the bytes since the last boundary (mean pooling)
    segment_length: Tensor  # [B]
    update: Tensor  # [B, D] what the current token adds to the bytes it serves
    encoder: WindowCache
    tokens: TokenCache
    decoder: WindowCache
    pending: Tensor  # [B] bool
    bytes_before: Tensor  # [B, n - 1] int64, the bytes read last, for n-grams; 0 before the text
    segment_bytes: WindowCache  # the last W bytes, for attention pooling; no layer without it
    last_tokens: WindowCache  # the last k tokens, for attention in upsampling; no layer without it
    second: SecondCache | None = None  # where the model has a second level
    target_rate: Tensor | None = None  # [B] float32, where the model is told the rate of each row
    configured_rate: float = 0.0  # what a row goes back to

    @classmethod
    def empty(
        cls,
        config: UNetConfig,
        num_rows: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> UNetCache:
        """Make room for ``num_rows`` texts of which nothing has been read."""
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}")
        heads = (config.num_heads, config.head_size)

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*shape, device=device, dtype=dtype)

        def ring(num_layers: int, window: int = config.window) -> WindowCache:
            shape = (num_layers, num_rows, window, *heads)
            return WindowCache(zeros(*shape), zeros(*shape))

        def tokens(num_layers: int) -> TokenCache:
            held = (num_layers, num_rows, FIRST_CAPACITY, *heads)
            return TokenCache(zeros(*held), zeros(*held), zeros(num_rows, dtype=torch.int64))

        second = None
        if config.second_level is not None:
            wide = zeros(num_rows, config.width)
            second = SecondCache(tokens(config.num_second_layers), wide, wide.clone())
        return cls(
            position=zeros(num_rows, dtype=torch.int64),
            recent=zeros(num_rows, config.num_lags, dtype=torch.bool),
            encoder_state=zeros(num_rows, config.width),
            segment_sum=zeros(num_rows, config.width, dtype=torch.promote_types(dtype, torch.float32)),
            segment_length=zeros(num_rows, dtype=torch.int64),
            update=zeros(num_rows, config.width),
            encoder=ring(config.num_encoder_layers),
            tokens=tokens(config.num_token_layers),
            decoder=ring(config.num_decoder_layers),
            pending=zeros(num_rows, dtype=torch.bool),
            bytes_before=zeros(num_rows, config.bytes_before, dtype=torch.int64),
            segment_bytes=ring(int(config.pooling == "attention")),
            last_tokens=ring(int(config.upsampling == "attention"), config.tokens_read),
            second=second,
            target_rate=(
                torch.full((num_rows,), config.target_rate, device=device, dtype=torch.float32)
                if config.rate_embedding
                else None
            ),
            configured_rate=config.target_rate,
        )

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.position)

    @property
    def num_tokens(self) -> Tensor:
        """[B] tokens drawn so far."""
        return self.tokens.count

    @property
    def untouched(self) -> bool:
        """Whether no row has read anything."""
        return not bool((self.position > 0).any() or self.pending.any())

    def set_rates(self, rates: Tensor | None, rows: Tensor | None = None) -> None:
        """Read from now on at other target rates: [B], or [n] of ``rows`` [n]; one text is read at one rate."""
        if rates is None or self.target_rate is None:
            raise ValueError("rates must be those of a cache whose model has rate_embedding (model.new_cache makes it)")
        # Out of place: what was handed out before must not change.
        self.target_rate = rates.clone() if rows is None else self.target_rate.index_copy(0, rows, rates)

    def remember_bytes(self, byte_ids: Tensor, rows: Tensor | None = None) -> None:
        """Keep the last bytes of what rows read: [n, T] of ``rows`` [n], [B, T] without.

        Args:
            byte_ids: the bytes.
            rows: [n] int64, the rows that read them; None for all.
        """
        before = self.bytes_before if rows is None else self.bytes_before[rows]
        latest = torch.cat((before, byte_ids.long()), 1)[:, byte_ids.shape[1] :]
        self.bytes_before = latest if rows is None else self.bytes_before.index_copy(0, rows, latest)

    def finish_window(self, states: Tensor, updates: Tensor, layout: TokenLayout, *, open_first: bool = False) -> None:
        """Take over what a whole window leaves behind, beside the keys and values that were recorded.

        Args:
            states: [B, T, D] encoder states.
            updates: [B, S, D] what each token adds to its bytes.
            layout: where the tokens sit.
            open_first: whether the first byte waits for the second token.
        """
        length, num_lags = states.shape[1], self.recent.shape[1]
        last = layout.token_index[:, -1]  # [B]
        tail = open_bytes(layout, open_first=open_first)  # [B, T] bytes that wait for a token
        self.position = torch.full_like(self.position, length)
        padded = F.pad(layout.boundaries, (num_lags, 0))  # no boundaries before the text
        self.recent = padded.flip(1)[:, :num_lags]
        self.encoder_state = states[:, -1]
        self.segment_sum = (states * tail[..., None]).sum(1, dtype=self.segment_sum.dtype)
        self.segment_length = tail.sum(1)
        self.update = updates.flatten(0, 1).index_select(0, last)
        self.tokens.count = layout.num_tokens.clone()

    def reset(self, rows: Tensor | None = None) -> None:
        """Forget everything about some rows, an observed byte without a boundary included; the others go on.

        Target rates go back to the configured one.

        Args:
            rows: [B] bool, True where a new text starts; None for all.
        """
        if rows is None:
            rows = torch.ones_like(self.position, dtype=torch.bool)
        if rows.dtype != torch.bool or rows.shape != self.position.shape:
            raise ValueError(f"rows must be bool of shape [{self.num_rows}], got {rows.dtype} {list(rows.shape)}")
        # Keys and values need no wiping: position and count say which slots exist.
        for state in (
            self.position,
            self.recent,
            self.segment_sum,
            self.segment_length,
            self.update,
            self.tokens.count,
            self.pending,
            self.bytes_before,
        ):
            state[rows] = 0
        if self.second is not None:
            self.second.reset(rows)
        if self.target_rate is not None:
            self.target_rate = self.target_rate.masked_fill(rows, self.configured_rate)

    def clone(self) -> UNetCache:
        """An independent copy, to branch from here."""
        return self._map(torch.clone, torch.clone)

    def repeat(self, times: int) -> UNetCache:
        """Every row ``times`` times in succession, to branch each text several ways: row b becomes b*times, ...

        Args:
            times: copies of each row.
        """
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        return self._map(lambda x: x.repeat_interleave(times, dim=0), lambda x: x.repeat_interleave(times, dim=1))

    def take(self, rows: Tensor) -> UNetCache:
        """Some rows, in the order given; a row that is named several times branches.

        Args:
            rows: [n] int64, n >= 1.
        """
        if rows.dtype != torch.int64 or rows.dim() != 1 or not len(rows):
            raise ValueError(f"rows must be int64 of shape [n >= 1], got {rows.dtype} {list(rows.shape)}")
        if rows.device.type == "cpu" and not 0 <= int(rows.min()) <= int(rows.max()) < self.num_rows:
            raise ValueError(f"rows must lie in 0..{self.num_rows - 1}, got {int(rows.min())}..{int(rows.max())}")
        return self._map(lambda x: x.index_select(0, rows), lambda x: x.index_select(1, rows))

    def _map(self, on_rows: Callable[[Tensor], Tensor], on_layers: Callable[[Tensor], Tensor]) -> UNetCache:
        """Apply functions to every tensor: ``on_rows`` where rows come first, ``on_layers`` to [L, B, ...]."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = on_rows(value)
            elif isinstance(value, WindowCache):
                values[name] = WindowCache(on_layers(value.keys), on_layers(value.values))
            elif isinstance(value, TokenCache):
                values[name] = value.map(on_rows, on_layers)
            elif isinstance(value, SecondCache):
                values[name] = value.map(on_rows, lambda tokens: tokens.map(on_rows, on_layers))
        return UNetCache(**values)


@dataclass
class SecondCache:
    """Keys and values of all tokens of tokens, and what the next token needs of those before it."""

    tokens: TokenCache
    query: Tensor  # [B, D] what routing compares the next token with
    update: Tensor  # [B, D] what the current token of tokens adds to its tokens

    def finish_window(self, query: Tensor, updates: Tensor, layout: TokenLayout) -> None:
        """Take over what a whole window leaves behind, beside the keys and values that were recorded.

        Args:
            query: [B, D] of each row's last token.
            updates: [B, Q, D] what each token of tokens adds to its tokens.
            layout: where tokens of tokens sit among the tokens; padding of a row belongs to its last one.
        """
        self.query = query.to(self.query.dtype)
        self.update = updates.flatten(0, 1).index_select(0, layout.token_index[:, -1]).to(self.update.dtype)
        self.tokens.count = layout.num_tokens.clone()

    def reset(self, rows: Tensor) -> None:
        """Forget some rows, [B] bool."""
        for state in (self.query, self.update, self.tokens.count):
            state[rows] = 0

    def map(self, on_rows: Callable[[Tensor], Tensor], on_tokens: Callable[[TokenCache], TokenCache]) -> SecondCache:
        """Apply functions to everything in it."""
        return SecondCache(on_tokens(self.tokens), on_rows(self.query), on_rows(self.update))

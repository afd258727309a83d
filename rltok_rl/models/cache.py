"""Decoding cache of the U-Net: its state between two bytes. Rows are independent.

Shapes: B rows, D width, w lags, W window, n bytes of an n-gram, k tokens read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.types import Device

from rltok_rl.models.config import UNetConfig
from rltok_rl.models.key_value_cache import RowState, TokenCache, WindowCache
from rltok_rl.models.tokens import TokenLayout, closing_token

FIRST_CAPACITY = 64  # tokens per row that a new cache has room for


@dataclass
class SecondCache(RowState):
    """State of the second level."""

    tokens: TokenCache
    query: Tensor  # [B, D] what routing compares the next token with


@dataclass
class UNetCache(RowState):
    """State of B texts that are read one byte at a time.

    A step has two halves: a byte is observed, then its boundary is decided; ``pending`` rows are between the two.
    """

    position: Tensor  # [B] bytes decided so far: the position of the next byte, or of the pending one
    recent: Tensor  # [B, w] bool, a_{t-1} .. a_{t-w}
    encoder_state: Tensor  # [B, D] X_t of the pending byte
    segment_sum: Tensor  # [B, D] float32 at least, sum of X over the bytes since the last boundary (mean pooling)
    segment_length: Tensor  # [B]
    encoder: WindowCache
    tokens: TokenCache
    decoder: WindowCache
    pending: Tensor  # [B] bool
    bytes_before: Tensor  # [B, n - 1] int64, the last bytes, for n-grams; 0 before the text
    segment_bytes: WindowCache  # the last W bytes, for attention pooling; no layer without it
    last_tokens: WindowCache  # the last k tokens, for attention in upsampling; no layer without it
    second: SecondCache | None = None  # None without a second level
    target_rate: Tensor | None = None  # [B] float32, None without rate_embedding
    configured_rate: float = 0.0  # target rate after a reset

    @classmethod
    def empty(
        cls, config: UNetConfig, num_rows: int, *, device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> UNetCache:
        """Return the cache of ``num_rows`` texts before their first byte."""
        if num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {num_rows}")
        heads = (config.num_heads, config.head_size)

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(num_rows, *shape, device=device, dtype=dtype)

        def ring(num_layers: int, window: int = config.window) -> WindowCache:
            return WindowCache(*(zeros(num_layers, window, *heads) for _ in range(2)))

        def tokens(num_layers: int, layers: UNetConfig, width: int) -> TokenCache:
            sizes = (num_layers, FIRST_CAPACITY, layers.num_heads, layers.head_size)
            keys, values = (zeros(*sizes) for _ in range(2))
            return TokenCache(keys, values, zeros(dtype=torch.int64), zeros(width))

        second, token_width = None, config.of_tokens.width
        if config.second_level:
            above = tokens(config.num_second_layers, config.of_second, token_width)
            second = SecondCache(above, zeros(token_width))

        return cls(
            position=zeros(dtype=torch.int64),
            recent=zeros(config.num_lags, dtype=torch.bool),
            encoder_state=zeros(config.width),
            segment_sum=zeros(config.width, dtype=torch.promote_types(dtype, torch.float32)),
            segment_length=zeros(dtype=torch.int64),
            encoder=ring(config.num_encoder_layers),
            tokens=tokens(config.num_token_layers, config.of_tokens, config.width),
            decoder=ring(config.num_decoder_layers),
            pending=zeros(dtype=torch.bool),
            bytes_before=zeros(config.bytes_before, dtype=torch.int64),
            segment_bytes=ring(int(config.pooling == "attention")),
            last_tokens=ring(int(config.upsampling == "attention"), config.tokens_read),
            second=second,
            target_rate=zeros(dtype=torch.float32) + config.target_rate if config.rate_embedding else None,
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
        """Set target rates [B], or [n] of ``rows`` [n]; only before a row's first byte."""
        if rates is None or self.target_rate is None:
            raise ValueError("rates must be those of a cache whose model has rate_embedding (model.new_cache makes it)")
        # Out of place: the old tensor may be in an observation.
        self.target_rate = rates.clone() if rows is None else self.target_rate.index_copy(0, rows, rates)

    def append_bytes(self, byte_ids: Tensor, rows: Tensor | None = None) -> None:
        """Keep the last bytes that rows have read: [B, T], or [n, T] of ``rows`` [n]."""
        before = self.bytes_before if rows is None else self.bytes_before[rows]
        latest = torch.cat((before, byte_ids.long()), 1)[:, byte_ids.shape[1] :]
        self.bytes_before = latest if rows is None else self.bytes_before.index_copy(0, rows, latest)

    def finish_window(self, states: Tensor, layout: TokenLayout, *, open_first: bool = False) -> None:
        """Set everything but keys, values and tokens after a whole window with encoder states [B, T, D]."""
        num_lags = self.recent.shape[1]
        tail = closing_token(layout, open_first) > layout.token_index[:, -1:]  # [B, T] bytes that wait for a token
        self.position = torch.full_like(self.position, states.shape[1])
        self.recent = F.pad(layout.boundaries, (num_lags, 0)).flip(1)[:, :num_lags]  # none before the text
        self.encoder_state = states[:, -1]
        self.segment_sum = (states * tail[..., None]).sum(1, dtype=self.segment_sum.dtype)
        self.segment_length = tail.sum(1)

    def reset(self, rows: Tensor | None = None) -> None:
        """Start a new text in rows [B] bool (None: all) at the configured target rate, dropping a pending byte."""
        if rows is None:
            rows = torch.ones_like(self.position, dtype=torch.bool)
        if rows.dtype != torch.bool or rows.shape != self.position.shape:
            raise ValueError(f"rows must be bool of shape [{self.num_rows}], got {rows.dtype} {list(rows.shape)}")
        # Keys and values keep their entries: position and count say which slots exist.
        states = [self.position, self.recent, self.segment_sum, self.segment_length, self.pending, self.bytes_before]
        states += [self.tokens.count, self.tokens.update]
        if self.second is not None:
            states += [self.second.query, self.second.tokens.count, self.second.tokens.update]
        for state in states:
            state[rows] = 0
        if self.target_rate is not None:
            self.target_rate = self.target_rate.masked_fill(rows, self.configured_rate)

    def clone(self) -> UNetCache:
        """Return an independent copy, to branch from here."""
        return self.map(torch.clone)

    def repeat(self, times: int) -> UNetCache:
        """Return every row ``times`` times in succession."""
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        return self.map(lambda x: x.repeat_interleave(times, dim=0))

    def take(self, rows: Tensor) -> UNetCache:
        """Return rows [n] int64 in the given order; a repeated row branches."""
        if rows.dtype != torch.int64 or rows.dim() != 1 or not len(rows):
            raise ValueError(f"rows must be int64 of shape [n >= 1], got {rows.dtype} {list(rows.shape)}")
        if rows.device.type == "cpu" and not 0 <= int(rows.min()) <= int(rows.max()) < self.num_rows:
            raise ValueError(f"rows must lie in 0..{self.num_rows - 1}, got {int(rows.min())}..{int(rows.max())}")
        return self.map(lambda x: x.index_select(0, rows))


def _shapes(cache: UNetCache) -> list[tuple[int, ...] | None]:
    """Return the shapes of a cache without its rows and its room for tokens."""
    tokens = [cache.tokens.keys, None if cache.second is None else cache.second.tokens.keys]
    tensors = [cache.encoder.keys, cache.decoder.keys, cache.segment_bytes.keys, cache.last_tokens.keys]
    tensors += [cache.recent, cache.bytes_before]
    shapes = [None if x is None else (x.shape[1], *x.shape[3:]) for x in tokens]
    return [*shapes, *(None if x is None else tuple(x.shape[1:]) for x in (*tensors, cache.target_rate))]


@lru_cache
def _expected_shapes(config: UNetConfig) -> list[tuple[int, ...] | None]:
    return _shapes(UNetCache.empty(config, 1, device="meta"))


def check_cache(config: UNetConfig, cache: UNetCache, weight: Tensor) -> None:
    """Require a cache of this configuration, and of the dtype and device of the model's weights."""
    shapes, expected = _shapes(cache), _expected_shapes(config)
    if shapes != expected:
        raise ValueError(
            f"cache must be made for this model (model.new_cache does), got entries of shapes {shapes} instead of "
            f"{expected}"
        )
    update = cache.tokens.update
    if update.dtype != weight.dtype or update.device != weight.device:
        raise ValueError(
            f"cache must have the model's dtype and device (model.new_cache does), {weight.dtype} on {weight.device}, "
            f"got {update.dtype} on {update.device}"
        )


def check_empty_cache(config: UNetConfig, cache: UNetCache, weight: Tensor, shape: torch.Size) -> None:
    """Require a cache that fits the model and windows of shape [B, T], and that has read nothing."""
    check_cache(config, cache, weight)
    if shape[0] != cache.num_rows or shape[1] < 1:
        raise ValueError(
            f"byte_ids must hold one prompt of at least one byte per row of the cache, [{cache.num_rows}, T >= 1], "
            f"got {list(shape)}"
        )
    if not cache.untouched:
        raise ValueError("cache must be empty to be prefilled; reset it, or feed the bytes with step")

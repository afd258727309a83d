"""The byte-level autoregressive U-Net (Section 2.2): encode bytes, pool tokens, think in tokens, decode bytes.

Shapes: B rows, T bytes, S or N tokens, D width, w lags. Index from 0: boundary ``a_t`` is drawn after byte ``x_t`` has
been read, and position t predicts ``x_{t+1}``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rltok_rl.functional.policy import boundary_logits, lagged_logit
from rltok_rl.models.attention import sliding_window_attention
from rltok_rl.models.cache import FIRST_CAPACITY, UNetCache, WindowCache
from rltok_rl.models.checks import check_boundaries, check_byte_ids
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.cross_attention import SegmentPooling, TokenReading
from rltok_rl.models.embeddings import NgramEmbedding, RateEmbedding, TargetRate, rate_logits, row_rates
from rltok_rl.models.heads import BoundaryHead, BoundaryTerms, ByteHead
from rltok_rl.models.layers import Attend, LayerStack, RMSNorm, Rotary, rotary
from rltok_rl.models.level import SecondDecisions, SecondLevel
from rltok_rl.models.mixing import Mixing, give_back, policy_smoothing, pool_tokens, token_updates
from rltok_rl.models.pretrained import Pretrained
from rltok_rl.models.tokens import Layout, TokenLayout, token_layout
from rltok_rl.sampling import sample_boundaries


@dataclass(frozen=True)
class UNetOutput:
    """Everything that one forward pass says about a window of bytes."""

    boundaries: Tensor  # [B, T] bool, given or drawn
    boundary_logits: Tensor  # [B, T] float32 at least, l_t given the boundaries before t
    encoder_states: Tensor  # [B, T, D], X
    decoder_states: Tensor  # [B, T, D]
    early_logits: Tensor  # [B, T, 256], position t predicts byte t + 1 from X_t alone
    final_logits: Tensor  # [B, T, 256], position t predicts byte t + 1 through the tokens
    num_tokens: Tensor  # [B]
    second: SecondDecisions | None = None  # [B, T], where the model has a second level


class Decoded(NamedTuple):
    """Bytes that have been through the tokens."""

    states: Tensor  # [B, T, D]
    second: SecondDecisions | None  # [B, T], where the model has a second level


class UNet(Pretrained, nn.Module):
    """Byte-level U-Net with a boundary policy and an early exit.

    Args:
        config: sizes and options; see :func:`rltok_rl.models.preset` for the paper's.

    Example:
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> byte_ids = torch.randint(256, (2, 10))
        >>> out = model(byte_ids)  # boundaries drawn from the model's own policy
        >>> out.final_logits.shape, bool(out.boundaries[:, 0].all())
        (torch.Size([2, 10, 256]), True)

    Reference: https://arxiv.org/abs/2602.13940
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.num_ids, config.width)
        self.encoder = LayerStack(config, config.num_encoder_layers, config.byte_mlp_ratio)
        self.token_layers = LayerStack(config, config.num_token_layers, config.token_mlp_ratio)
        self.second_level = None if config.second_level is None else SecondLevel(config)
        self.decoder = LayerStack(config, config.num_decoder_layers, config.byte_mlp_ratio)
        self.encoder_norm = RMSNorm(config.width, config.norm_eps)  # for the two heads that read X; X itself goes on
        self.decoder_norm = RMSNorm(config.width, config.norm_eps)
        self.boundary_head = BoundaryHead(config)
        self.early_head = ByteHead(config)
        self.final_head = ByteHead(config)
        self.ngrams = NgramEmbedding(config) if config.ngram_sizes else None
        self.token_pooling = SegmentPooling(config) if config.pooling == "attention" else None
        self.token_reading = TokenReading(config) if config.upsampling == "attention" else None
        self.rate_embedding = RateEmbedding(config) if config.rate_embedding else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw fresh weights; the early exit starts as a copy of the final head (Section 2.4)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                # Post-norms set the scale of every branch, so that only attention scores and the heads feel this one.
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm):
                nn.init.zeros_(module.weight)
        if self.second_level is not None and self.second_level.routing is not None:
            self.second_level.routing.reset_parameters()
        nn.init.normal_(self.embedding.weight, std=self.config.width**-0.5)  # unit size after sqrt(D)
        if self.rate_embedding is not None:
            nn.init.zeros_(self.rate_embedding.weight)
        for table in self.ngrams.parameters() if self.ngrams is not None else ():
            nn.init.normal_(table, std=self.config.width**-0.5)
        nn.init.normal_(self.final_head.projection.weight, std=0.02)  # first predictions close to uniform
        self.early_head.load_state_dict(self.final_head.state_dict())

    # The stages, in the order of the forward pass. Segmenters and the environment put their own work between them.

    # With ``rate_embedding`` they take the target rate of the rows, one or [B]; None is the cache's, or the configured.

    def encode(
        self, byte_ids: Tensor, *, cache: UNetCache | None = None, target_rate: TargetRate | None = None
    ) -> Tensor:
        """Byte states X (Eq. 1): [B, T] to [B, T, D]."""
        if cache is not None:
            cache.remember_bytes(byte_ids)
        rates = row_rates(self.config, _rates_of(target_rate, cache), byte_ids)
        return self._run_bytes(self.encoder, self.embed(byte_ids, None, rates), cache.encoder if cache else None)

    def boundary_terms(self, encoder_states: Tensor, *, target_rate: TargetRate | None = None) -> BoundaryTerms:
        """What the policy makes of each byte (Eq. 21): [B, T, D] to base [B, T] and lags [B, T, w]."""
        rates = row_rates(self.config, target_rate, encoder_states[..., 0])
        offset = None if rates is None else rate_logits(rates)
        return self.boundary_head(self.encoder_norm(encoder_states), offset)

    def early_logits(self, encoder_states: Tensor) -> Tensor:
        """Next-byte logits that never saw a boundary (Eq. 14): [B, T, D] to [B, T, 256]."""
        return self.early_head(self.encoder_norm(encoder_states))

    def early_log_prob(self, encoder_states: Tensor, targets: Tensor, *, chunk: int | None = None) -> Tensor:
        """Log-likelihoods of given bytes under the early exit: [B, T, D] and [B, T] to [B, T].

        Args:
            encoder_states: [B, T, D], X.
            targets: [B, T] the bytes that come next.
            chunk: positions whose logits are held at a time; None holds all.
        """
        return self.early_head(self.encoder_norm(encoder_states), targets, chunk=chunk)

    def decode(
        self,
        encoder_states: Tensor,
        boundaries: Tensor,
        *,
        layout: Layout = "padded",
        cache: UNetCache | None = None,
        mixing: Mixing | None = None,
        target_rate: TargetRate | None = None,
    ) -> Tensor:
        """Pool, run the token layers, give tokens back to bytes, run the byte decoder (Eq. 3 to 6).

        Args:
            encoder_states: [B, T, D], X.
            boundaries: [B, T] bool or 0/1, 1 in the first column.
            layout: how ragged rows of tokens are laid out; results are equal.
            cache: an empty cache, to be left as if the window had been read byte by byte; needs padded tokens.
            mixing: what goes into tokens and comes of them, where that is not the model's own way.
            target_rate: that of the rows, read where ``smoothing`` asks the policy.

        Returns:
            [B, T, D] decoder states.
        """
        options: dict[str, Any] = {"layout": layout, "cache": cache, "mixing": mixing, "target_rate": target_rate}
        return self.decode_levels(encoder_states, boundaries, **options).states

    def decode_levels(
        self,
        encoder_states: Tensor,
        boundaries: Tensor,
        *,
        layout: Layout = "padded",
        cache: UNetCache | None = None,
        mixing: Mixing | None = None,
        target_rate: TargetRate | None = None,
    ) -> Decoded:
        """As :meth:`decode`; beside the states, what the second level decided."""
        check_boundaries(boundaries, encoder_states.shape[:2])
        if mixing is None:
            rates = _rates_of(target_rate, cache)
            mixing = self.own_mixing(encoder_states, boundaries.bool(), target_rate=rates)
        where = token_layout(boundaries.bool(), layout)
        pooling, reading = self._between(cache)
        tokens_in = pool_tokens(encoder_states, where, mixing, pooling)  # [B, S, D] or [N, D]
        attend = where.attention(self.config.attention_cap, tokens_in, self.config.num_heads)
        attend_at = cache.tokens.recording(attend, where) if cache else lambda _: attend
        tokens_out, second = run_tokens(self, tokens_in, where, attend_at, cache)
        updates = token_updates(tokens_in, tokens_out, where, mixing, self.config.upsampling)
        mixed = give_back(encoder_states, updates, where, mixing, reading)  # [B, T, D]
        if cache:
            cache.finish_window(encoder_states, updates, where, open_first=mixing.first_token is not None)
        return Decoded(self._run_bytes(self.decoder, mixed, cache.decoder if cache else None), second)

    def own_mixing(
        self,
        encoder_states: Tensor,
        boundaries: Tensor,
        cache: UNetCache | None = None,
        *,
        target_rate: TargetRate | None = None,
    ) -> Mixing:
        """The model's own way from bytes to tokens and back: with ``smoothing``, by its policy's probabilities.

        Args:
            encoder_states: [B, T, D], X, of whole texts; [B, D] of a byte in each.
            boundaries: [B, T] bool; [B].
            cache: where single bytes stand; None for whole texts.
            target_rate: that of the rows.
        """
        if self.config.smoothing == "none":
            return Mixing()
        terms = self.boundary_terms(encoder_states, target_rate=_rates_of(target_rate, cache))
        if cache is not None:
            logits, forced = lagged_logit(*terms, cache.recent, cap=self.boundary_cap), cache.position == 0
        else:
            logits = boundary_logits(*terms, boundaries, cap=self.boundary_cap)
            forced = torch.arange(boundaries.shape[1], device=boundaries.device) == 0
        return policy_smoothing(self.config.smoothing, logits, boundaries, forced)

    def final_logits(self, decoder_states: Tensor) -> Tensor:
        """Next-byte logits of the whole model: [B, T, D] to [B, T, 256]."""
        return self.final_head(self.decoder_norm(decoder_states))

    def final_log_prob(self, decoder_states: Tensor, targets: Tensor, *, chunk: int | None = None) -> Tensor:
        """Log-likelihoods of given bytes under the whole model; arguments as for :meth:`early_log_prob`."""
        return self.final_head(self.decoder_norm(decoder_states), targets, chunk=chunk)

    def forward(
        self,
        byte_ids: Tensor,
        boundaries: Tensor | None = None,
        *,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
        layout: Layout = "padded",
        cache: UNetCache | None = None,
        target_rate: TargetRate | None = None,
    ) -> UNetOutput:
        """Run the whole model on a window of bytes.

        Args:
            byte_ids: [B, T] integers in 0..255 (and special ids, where the configuration has some).
            boundaries: [B, T] 0/1 or bool with 1 in the first column; None draws them from the policy.
            uniforms: [B, T] in [0, 1), the random numbers to draw with.
            generator: source of the random numbers otherwise.
            greedy: with ``boundaries=None``, draw a boundary where its probability exceeds one half.
            layout: ``"padded"`` or ``"packed"`` tokens, or a :class:`~rltok_rl.models.tokens.Packing`.
            cache: filled while at it, see :func:`rltok_rl.models.incremental.prefill`.
            target_rate: boundaries per byte to aim at, of all rows or [B] of each, where the model has
                ``rate_embedding``; None is the configured rate. With a cache the rates are the cache's.

        Returns:
            States, logits and boundaries of every position.
        """
        check_byte_ids(byte_ids, self.config.num_ids)
        if cache is not None:
            check_empty_cache(self, cache, byte_ids.shape)
            if target_rate is not None:
                raise ValueError("target_rate must be left out where a cache is given: new_cache takes it")
        if boundaries is not None:
            if greedy or uniforms is not None or generator is not None:
                raise ValueError(
                    "uniforms, generator and greedy must be left out where boundaries are given: none is drawn"
                )
            check_boundaries(boundaries, byte_ids.shape)
            boundaries = boundaries.bool()
        rates = row_rates(self.config, _rates_of(target_rate, cache), byte_ids)
        states = self.encode(byte_ids, cache=cache, target_rate=rates)
        terms = self.boundary_terms(states, target_rate=rates)
        if boundaries is None:
            boundaries = sample_boundaries(
                *terms, uniforms=uniforms, generator=generator, cap=self.boundary_cap, greedy=greedy
            )
        decoded = self.decode_levels(states, boundaries, layout=layout, cache=cache, target_rate=rates)
        return UNetOutput(
            boundaries=boundaries,
            boundary_logits=boundary_logits(*terms, boundaries, cap=self.boundary_cap),
            encoder_states=states,
            decoder_states=decoded.states,
            early_logits=self.early_logits(states),
            final_logits=self.final_logits(decoded.states),
            num_tokens=boundaries.sum(1),
            second=decoded.second,
        )

    def new_cache(self, num_rows: int, *, target_rate: TargetRate | None = None) -> UNetCache:
        """A cache for ``num_rows`` texts that fits this model: its sizes, dtype and device, and the rows' rates."""
        weight = self.embedding.weight
        cache = UNetCache.empty(self.config, num_rows, device=weight.device, dtype=weight.dtype)
        if target_rate is not None:
            cache.set_rates(row_rates(self.config, target_rate, cache.position))
        return cache

    @property
    def boundary_cap(self) -> float | None:
        """The soft cap of boundary logits, None outside training."""
        return self.boundary_head.cap

    def embed(self, byte_ids: Tensor, before: Tensor | None = None, rates: Tensor | None = None) -> Tensor:
        """Byte embeddings at unit size, with those of the n-grams that end there: [*B, T] to [*B, T, D].

        Args:
            byte_ids: [*B, T] the bytes.
            before: [*B, n - 1] the bytes before them, where n-grams are as long; None is the beginning of a text.
            rates: [B] target rates of the rows, where the model is told them.
        """
        embedded = self.embedding(byte_ids.long())
        if self.ngrams is not None:
            embedded = self.ngrams(embedded, byte_ids, before)
        embedded = embedded * self.config.width**0.5
        if self.rate_embedding is not None and rates is not None:
            embedded = embedded + self.rate_embedding(rates)[:, None]
        return embedded

    def byte_angles(self, positions: Tensor) -> Rotary:
        """Rotary angles of byte positions: [*L] to [*L, 1, head_size / 2]."""
        return rotary(positions, self.config.head_size, self.config.rope_base)

    def _between(
        self, cache: UNetCache | None
    ) -> tuple[Literal["select", "mean"] | Callable[..., Tensor], Callable[..., Tensor] | None]:
        """How a window is pooled, by name or with attention; the attention that reads tokens, where there is one."""
        pooling: Literal["select", "mean"] | Callable[..., Tensor] = (
            "mean" if self.config.pooling == "mean" else "select"
        )
        reading = None
        if self.token_pooling is not None:
            pooling = partial(self.token_pooling, ring=cache.segment_bytes if cache else None)
        if self.token_reading is not None:
            reading = partial(self.token_reading, ring=cache.last_tokens if cache else None)
        return pooling, reading

    def _run_bytes(self, layers: LayerStack, x: Tensor, cache: WindowCache | None) -> Tensor:
        """Byte layers over a whole window: [B, T, D] to [B, T, D]."""
        attend = partial(sliding_window_attention, window=self.config.window, cap=self.config.attention_cap)
        attend_at = cache.recording(attend) if cache else lambda _: attend
        angles = self.byte_angles(torch.arange(x.shape[1], device=x.device))
        return layers(x, angles, attend_at, remembers=cache is not None)


def _rates_of(target_rate: TargetRate | None, cache: UNetCache | None) -> TargetRate | None:
    return cache.target_rate if target_rate is None and cache is not None else target_rate


def parameter_counts(model: UNet) -> dict[str, int]:
    """Parameters of each part and their total.

    Example:
        >>> from rltok_rl.models import preset
        >>> parameter_counts(UNet(preset("tiny")))["boundary_head"]
        576
    """
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    return {**counts, "total": sum(counts.values())}


def run_tokens(
    model: UNet, tokens: Tensor, where: TokenLayout, attend_at: Callable[[int], Attend], cache: UNetCache | None = None
) -> tuple[Tensor, SecondDecisions | None]:
    """All that happens between pooling and upsampling, of a window.

    Args:
        model: the U-Net.
        tokens: [B, S, D] or [N, D].
        where: where they sit.
        attend_at: attention of each token layer.
        cache: filled while at it.

    Returns:
        Tokens after the token layers, and the decisions of the second level, where there is one.
    """
    layers, angles = model.token_layers, model.byte_angles(where.positions)
    run = partial(layers, angles=angles, attend_at=attend_at, remembers=cache is not None)
    if model.second_level is None:
        return run(tokens), None
    lower = model.config.lower_layers
    states = run(tokens, only=range(lower))
    states, decisions = model.second_level(states, where, model.byte_angles, cache)
    return run(states, only=range(lower, len(layers))), decisions


def run_new_tokens(
    model: UNet, cache: UNetCache, rows: Tensor, tokens: Tensor, attend_at: Callable[[int], Attend]
) -> tuple[Tensor, SecondDecisions | None]:
    """The same for one new token [n, D] in each of ``rows`` [n].

    Args:
        model: the U-Net.
        cache: the memory; changed in place.
        rows: [n] int64.
        tokens: [n, D].
        attend_at: attention of each token layer.
    """
    layers, angles = model.token_layers, model.byte_angles(cache.position[rows])
    run = partial(layers, angles=angles, attend_at=attend_at, remembers=True)
    if model.second_level is None:
        return run(tokens), None
    lower = model.config.lower_layers
    states = run(tokens, only=range(lower))
    states, decisions = model.second_level.step(cache, rows, states, angles)
    return run(states, only=range(lower, len(layers))), decisions


def check_cache_fits(model: UNet, cache: UNetCache) -> None:
    """Require a cache that was made for a model of these sizes, this dtype and this device."""
    config, weight = model.config, model.embedding.weight
    heads = (config.num_heads, config.head_size)
    expected: dict[str, tuple[int, ...] | None] = {
        "encoder": (config.num_encoder_layers, cache.num_rows, config.window, *heads),
        "tokens": (config.num_token_layers, cache.num_rows, cache.tokens.keys.shape[2], *heads),
        "decoder": (config.num_decoder_layers, cache.num_rows, config.window, *heads),
        "segment_bytes": (int(config.pooling == "attention"), cache.num_rows, config.window, *heads),
        "last_tokens": (int(config.upsampling == "attention"), cache.num_rows, config.tokens_read, *heads),
    }
    given: dict[str, tuple[int, ...] | None] = {name: tuple(getattr(cache, name).keys.shape) for name in expected}
    expected["bytes_before"] = (cache.num_rows, config.bytes_before)
    given["bytes_before"] = tuple(cache.bytes_before.shape)
    if config.second_level is not None or cache.second is not None:
        held_second = None if cache.second is None else tuple(cache.second.tokens.keys.shape)
        room = held_second[2] if held_second else FIRST_CAPACITY
        needed = (config.num_second_layers, cache.num_rows, room, *heads)
        expected["second"] = needed if config.second_level is not None else None
        given["second"] = held_second
    if config.rate_embedding or cache.target_rate is not None:
        expected["target_rate"] = (cache.num_rows,) if config.rate_embedding else ()
        given["target_rate"] = () if cache.target_rate is None else tuple(cache.target_rate.shape)
    lags = cache.recent.shape[1]
    if given != expected or lags != config.num_lags:
        raise ValueError(
            f"cache must be made for this model (model.new_cache does), got keys {given} and {lags} lags where "
            f"{expected} and {config.num_lags} are needed"
        )
    held = cache.update
    if held.dtype != weight.dtype or held.device != weight.device:
        raise ValueError(
            f"cache must have the model's dtype and device (model.new_cache does), {weight.dtype} on {weight.device}, "
            f"got {held.dtype} on {held.device}"
        )


def check_empty_cache(model: UNet, cache: UNetCache, shape: torch.Size) -> None:
    """Require a cache that fits the model and windows [B, T] and has read nothing."""
    check_cache_fits(model, cache)
    if shape[0] != cache.num_rows or shape[1] < 1:
        raise ValueError(
            f"byte_ids must hold one prompt of at least one byte per row of the cache, [{cache.num_rows}, T >= 1], "
            f"got {list(shape)}"
        )
    if not cache.untouched:
        raise ValueError("cache must be empty to be prefilled; reset it, or feed the bytes with step")


def spread_decisions(
    model: UNet, decisions: SecondDecisions | None, rows: Tensor, num_rows: int
) -> SecondDecisions | None:
    """Decisions about the new tokens of some rows, as those of a step of all rows: [n] to [B].

    Args:
        model: the U-Net.
        decisions: of the rows; None where none closed a token.
        rows: [n] int64.
        num_rows: B.
    """
    if model.second_level is None:
        return None
    boundaries = torch.zeros(num_rows, dtype=torch.bool, device=rows.device)
    probs = None
    if model.second_level.routing is not None:
        dtype = torch.promote_types(model.embedding.weight.dtype, torch.float32)
        probs = torch.zeros(num_rows, dtype=dtype, device=rows.device)
    if decisions is not None:
        boundaries = boundaries.index_copy(0, rows, decisions.boundaries)
        if probs is not None and decisions.probabilities is not None:
            probs = probs.index_copy(0, rows, decisions.probabilities.to(probs.dtype))
    return SecondDecisions(boundaries, probs)

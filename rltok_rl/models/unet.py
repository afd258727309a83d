"""The byte-level autoregressive U-Net (Section 2.2): encode bytes, pool tokens, run token layers, decode bytes.

Shapes: B rows, T bytes, S or N tokens, D width, w lags. Index from 0: boundary ``a_t`` is drawn after byte ``x_t``, and
position t predicts ``x_{t+1}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rltok_rl.functional.policy import boundary_logits, lagged_logit
from rltok_rl.models.attention import window_attention
from rltok_rl.models.byte_scope import decoder_starts, window_starts
from rltok_rl.models.cache import UNetCache, check_empty_cache
from rltok_rl.models.checks import check_boundaries, check_byte_ids
from rltok_rl.models.config import BEGIN_OF_TEXT, UNetConfig
from rltok_rl.models.cross_attention import SegmentPooling, TokenReading
from rltok_rl.models.heads import (
    BoundaryHead,
    BoundaryTerms,
    ByteHead,
    NgramEmbedding,
    RateEmbedding,
    TargetRate,
    rate_logits,
    row_rates,
)
from rltok_rl.models.key_value_cache import WindowCache
from rltok_rl.models.layers import LayerStack, RMSNorm, Rotary, rotary, window_rotary
from rltok_rl.models.level import Above, Run, SecondDecisions, SecondLevel, new_pad, run_layers, run_level, widened
from rltok_rl.models.mixing import Mixing, policy_smoothing
from rltok_rl.models.pretrained import Pretrained
from rltok_rl.models.tokens import Layout, token_layout
from rltok_rl.models.weights import check_caches
from rltok_rl.sampling import sample_boundaries


@dataclass(frozen=True)
class UNetOutput:
    """Output of one forward pass over a window of bytes."""

    boundaries: Tensor  # [B, T] bool, given or drawn
    boundary_logits: Tensor  # [B, T] float32 at least, l_t given the boundaries before t
    encoder_states: Tensor  # [B, T, D], X
    decoder_states: Tensor  # [B, T, D]
    early_logits: Tensor  # [B, T, 256], position t predicts byte t + 1 from X_t alone
    final_logits: Tensor  # [B, T, 256], position t predicts byte t + 1 through the tokens
    num_tokens: Tensor  # [B]
    second: SecondDecisions | None = None  # [B, T], None without a second level


class Decoded(NamedTuple):
    """Byte states after tokens and decoder."""

    states: Tensor  # [B, T, D]
    second: SecondDecisions | None  # [B, T]


class UNet(Pretrained, nn.Module):
    """Byte-level U-Net with a boundary policy and an early exit.

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
        if not isinstance(config, UNetConfig):
            raise TypeError(f"config must be a UNetConfig, such as preset('tiny'), got {config!r:.80}")
        self.config = config
        self.embedding = nn.Embedding(config.num_ids, config.width)
        self.encoder = LayerStack(config, config.num_encoder_layers, config.byte_mlp_ratio)
        self.token_layers = LayerStack(config.of_tokens, config.num_token_layers, config.token_mlp_ratio)
        self.token_pad = new_pad(config, config.of_tokens)
        self.second_level = None if config.second_level is None else SecondLevel(config.of_tokens)
        self.decoder = LayerStack(config, config.num_decoder_layers, config.byte_mlp_ratio)
        norm = RMSNorm(config.width, config.norm_eps) if config.encoder_norm else nn.Identity()
        self.encoder_norm = norm  # for the heads on X; tokens pool X itself
        self.decoder_norm = RMSNorm(config.width, config.norm_eps)
        self.boundary_head = BoundaryHead(config)
        self.early_head = ByteHead(config)
        self.final_head = ByteHead(config)
        self.ngrams = NgramEmbedding(config) if config.ngram_sizes else None
        self.token_pooling = SegmentPooling(config) if config.pooling == "attention" else None
        self.token_reading = TokenReading(config) if config.upsampling == "attention" else None
        self.rate_embedding = RateEmbedding(config) if config.rate_embedding else None
        # What could not be loaded again must not be trained.
        check_caches(config, "the configuration", num_bytes=sum(parameter.nbytes for parameter in self.parameters()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise all weights; the early exit starts as a copy of the final head (Section 2.4)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                # Post-norms set the scale of every branch, so this one only reaches attention scores and heads.
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm):
                nn.init.zeros_(module.weight)
        if self.second_level is not None and self.second_level.routing is not None:
            self.second_level.routing.reset_parameters()
        for pad in (self.token_pad, None if self.second_level is None else self.second_level.pad):
            if pad is not None:
                nn.init.zeros_(pad)
        nn.init.normal_(self.embedding.weight, std=self.config.width**-0.5)  # unit size after sqrt(D)
        if self.rate_embedding is not None:
            nn.init.zeros_(self.rate_embedding.weight)
        if self.ngrams is not None:
            for table in self.ngrams.parameters():
                nn.init.normal_(table, std=self.config.width**-0.5)
        self.boundary_head.projection.weight *= self.config.boundary_init
        nn.init.normal_(self.final_head.projection.weight, std=0.02)  # first predictions close to uniform
        self.early_head.load_state_dict(self.final_head.state_dict())

    def mark(self, byte_ids: Tensor) -> Tensor:
        """Put the begin-of-text mark before texts [*B, T], if the model reads one: [*B, num_marks + T].

        Methods of the model take ids as they are; readers of texts and windows call this first.
        """
        return F.pad(byte_ids.long(), (1, 0), value=BEGIN_OF_TEXT) if self.config.begin_of_text else byte_ids

    # The stages, in the order of the forward pass; segmenters and the environment work between them.

    def encode(
        self,
        byte_ids: Tensor,
        boundaries: Tensor | None = None,
        *,
        cache: UNetCache | None = None,
        target_rate: TargetRate | None = None,
    ) -> Tensor:
        """Byte states X (Eq. 1): [B, T] to [B, T, D]; with ``byte_scope="token"`` they depend on ``boundaries``."""
        starts = window_starts(self.config, boundaries, byte_ids.shape)
        if cache is not None:
            cache.append_bytes(byte_ids)
        rates = row_rates(self.config, _rates_of(target_rate, cache), byte_ids)
        embedded = self.embed(byte_ids, None, rates)
        return self._run_bytes(self.encoder, embedded, cache.encoder if cache else None, starts)

    def boundary_terms(self, encoder_states: Tensor, *, target_rate: TargetRate | None = None) -> BoundaryTerms:
        """Terms of the boundary logits (Eq. 21): [B, T, D] to base [B, T] and lags [B, T, w]."""
        rates = row_rates(self.config, target_rate, encoder_states[..., 0])
        offset = None if rates is None else rate_logits(rates)
        return self.boundary_head(self.encoder_norm(encoder_states), offset)

    def early_logits(self, encoder_states: Tensor) -> Tensor:
        """Next-byte logits of the early exit, which sees no tokens (Eq. 14): [B, T, D] to [B, T, 256]."""
        return self.early_head(self.encoder_norm(encoder_states))

    def early_log_prob(self, encoder_states: Tensor, targets: Tensor, *, chunk: int | None = None) -> Tensor:
        """Log-likelihoods [B, T] of target bytes under the early exit; ``chunk`` positions hold logits at once."""
        return self.early_head(self.encoder_norm(encoder_states), targets, chunk=chunk)

    def decode(self, encoder_states: Tensor, boundaries: Tensor, **options: Any) -> Tensor:
        """Return the decoder states [B, T, D] of :meth:`decode_levels`."""
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
        """Pool, run the token layers, give tokens back to bytes, run the byte decoder (Eq. 3 to 6).

        Results do not depend on the layout. An empty ``cache``, which needs padded tokens, is filled as if the window
        had been read byte by byte; ``mixing`` replaces the model's pooling and upsampling.
        """
        check_boundaries(boundaries, encoder_states.shape[:2])
        boundaries = boundaries.bool()
        if mixing is None:
            mixing = self.own_mixing(encoder_states, boundaries, target_rate=_rates_of(target_rate, cache))
        where = token_layout(boundaries, layout)
        above = self.second_level and partial(self.second_level, below=where, cache=cache and cache.second)
        pool = self.token_pooling and partial(self.token_pooling, ring=cache and cache.segment_bytes)
        read = self.token_reading and partial(self.token_reading, ring=cache and cache.last_tokens)
        mixed, second = run_level(  # [B, T, D]
            encoder_states,
            where,
            self.run_tokens(where.positions, above, cached=cache is not None, length=boundaries.shape[1]),
            mixing,
            self.config.of_tokens,
            pooling=pool or self.config.pooling,
            upsampling=self.config.upsampling,
            read=read,
            cache=cache.tokens if cache else None,
        )
        if cache:
            cache.finish_window(encoder_states, where, open_first=mixing.first_token is not None)
        starts = decoder_starts(boundaries) if self.config.byte_scope == "token" else None
        return Decoded(self._run_bytes(self.decoder, mixed, cache.decoder if cache else None, starts), second)

    def own_mixing(
        self, encoder_states: Tensor, boundaries: Tensor, cache: UNetCache | None = None, *, target_rate: Any = None
    ) -> Mixing:
        """Return the model's mixing for states [B, T, D] and boundaries [B, T], or [B, D] and [B] of a cached step."""
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
        """Log-likelihoods [B, T] of target bytes under the whole model; ``chunk`` positions hold logits at once."""
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
        """Run the whole model on a window of bytes [B, T] in 0..255, or special ids of the configuration.

        Args:
            byte_ids: [B, T].
            boundaries: [B, T] 0/1 or bool with 1 in the first column; None draws them from the policy.
            uniforms: [B, T] in [0, 1), random numbers to draw with; None takes them from ``generator``.
            generator: source of random numbers.
            greedy: draw a boundary if its probability exceeds one half.
            layout: ``"padded"`` or ``"packed"`` tokens, or a :class:`~rltok_rl.models.tokens.Packing`.
            cache: an empty cache to fill, which then has the rates.
            target_rate: boundaries per byte, one or [B], with ``rate_embedding``; None is the configured rate.
        """
        check_byte_ids(byte_ids, self.config.num_ids)
        if cache is not None:
            check_empty_cache(self.config, cache, self.embedding.weight, byte_ids.shape)
            if target_rate is not None:
                raise ValueError("target_rate must be left out with a cache: new_cache takes it")
        if boundaries is not None:
            if greedy or uniforms is not None or generator is not None:
                raise ValueError("uniforms, generator and greedy must be left out with boundaries: none is drawn")
            check_boundaries(boundaries, byte_ids.shape)
            boundaries = boundaries.bool()
        rates = row_rates(self.config, _rates_of(target_rate, cache), byte_ids)
        states = self.encode(byte_ids, boundaries, cache=cache, target_rate=rates)
        terms = self.boundary_terms(states, target_rate=rates)
        if boundaries is None:
            boundaries = sample_boundaries(
                *terms, cap=self.boundary_cap, uniforms=uniforms, generator=generator, greedy=greedy
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
        """Return a cache for ``num_rows`` texts at the given rates."""
        weight = self.embedding.weight
        cache = UNetCache.empty(self.config, num_rows, device=weight.device, dtype=weight.dtype)
        if target_rate is not None:
            cache.set_rates(row_rates(self.config, target_rate, cache.position))
        return cache

    @property
    def boundary_cap(self) -> float | None:
        """Soft cap of boundary logits; None outside training."""
        return self.boundary_head.cap

    def embed(self, byte_ids: Tensor, before: Tensor | None = None, rates: Tensor | None = None) -> Tensor:
        """Embed bytes [*B, T] at unit size, with n-grams (of the bytes ``before`` too) and rates: [*B, T, D]."""
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

    def run_tokens(self, positions: Tensor, above: Above | None, *, cached: bool, length: int | None = None) -> Run:
        """Return the token layers at byte positions [*L], with the second level ``above`` between them.

        ``length`` is that of the window in which the positions lie, if they lie in one.
        """
        config = self.config.of_tokens
        turns, lower = (config.head_size, config.rope_base), config.lower_layers
        if length is None:
            angles = rotary(positions, *turns)
        else:
            angles = window_rotary(length, *turns, positions.device).at(positions)
        run = partial(run_layers, self.token_layers, angles=angles, above=above, lower=lower, cached=cached)
        return widened(run, self.token_pad)

    def _run_bytes(
        self, layers: LayerStack, x: Tensor, cache: WindowCache | None, starts: Tensor | None = None
    ) -> Tensor:
        """Byte layers over a whole window, from first visible bytes ``starts`` [B, T]: [B, T, D] to [B, T, D]."""
        window, cap = self.config.window, self.config.attention_cap
        attend = window_attention(
            x.shape[:-1],
            x.device,
            head_size=self.config.head_size,
            window=window,
            cap=cap,
            starts=starts,
            traced=layers.is_compiled and cache is None,
        )
        attend_at = cache.recording(attend) if cache else lambda _: attend
        angles = window_rotary(x.shape[1], self.config.head_size, self.config.rope_base, x.device)
        return layers(x, angles, attend_at, cached=cache is not None)


def _rates_of(target_rate: TargetRate | None, cache: UNetCache | None) -> TargetRate | None:
    return cache.target_rate if target_rate is None and cache is not None else target_rate

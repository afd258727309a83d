"""Incremental decoding: one byte at a time, equal to the full forward pass.

A step has two halves, because a boundary is decided after its byte: :func:`observe` reads ``x_t`` and returns the
boundary logit and the early exit's prediction; :func:`decide` takes ``a_t`` and predicts ``x_{t+1}``.

Shapes: B rows, T bytes of a prompt, D width, w lags, n rows of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rltok_rl.functional.policy import lagged_logit
from rltok_rl.models.byte_scope import step_starts
from rltok_rl.models.cache import UNetCache, check_cache
from rltok_rl.models.checks import check_boundaries, check_byte_ids, check_first_boundaries, check_pending
from rltok_rl.models.level import SecondDecisions, step_level
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.unet import UNet, UNetOutput


@dataclass(frozen=True)
class Observation:
    """Output of a byte's first half, before its boundary is decided."""

    encoder_state: Tensor  # [B, D], X_t
    boundary_logit: Tensor  # [B] float32 at least, l_t given the boundaries before
    early_logits: Tensor  # [B, 256]


@dataclass(frozen=True)
class Prediction:
    """Output of a byte's second half, after its boundary was decided."""

    decoder_state: Tensor  # [B, D]
    final_logits: Tensor  # [B, 256]
    second: SecondDecisions | None = None  # [B], None without a second level


@torch.no_grad()
def observe(model: UNet, cache: UNetCache, byte_ids: Tensor, *, rows: Tensor | None = None) -> Observation:
    """Read the next bytes: [B], or [n] of ``rows`` [n], so that rows reset while others are pending catch up.

    The cache is changed in place.
    """
    state = read_bytes(model, cache, byte_ids, rows=rows)
    recent, rates = cache.recent, cache.target_rate
    if rows is not None:
        recent, rates = recent[rows], None if rates is None else rates[rows]
    base, lags = model.boundary_terms(state, target_rate=rates)  # [n], [n, w]
    logit = lagged_logit(base, lags, recent, cap=model.boundary_cap)
    return Observation(state, logit, model.early_logits(state))


@torch.no_grad()
def read_bytes(model: UNet, cache: UNetCache, byte_ids: Tensor, *, rows: Tensor | None = None) -> Tensor:
    """Read the next bytes as :func:`observe` does; return the encoder states [n, D] alone."""
    check_byte_ids(byte_ids, model.config.num_ids, rank=1)
    check_cache(model.config, cache, model.embedding.weight)
    if rows is not None and (rows.dtype != torch.int64 or rows.dim() != 1 or not bool((rows.diff() > 0).all())):
        raise ValueError(f"rows must be int64 of shape [n], in increasing order, got {rows.dtype} {rows.tolist()}")
    reading = torch.arange(cache.num_rows, device=cache.position.device) if rows is None else rows
    if len(byte_ids) != len(reading):
        raise ValueError(f"byte_ids must hold one byte per row that reads, {len(reading)}, got {len(byte_ids)}")
    check_pending(cache.pending[reading], expected=False)
    position = cache.position[reading]
    starts = step_starts(model.config, position, cache.segment_length[reading])
    attend_at = cache.encoder.attention(reading, position, model.config.attention_cap, starts)
    rates = None if cache.target_rate is None else cache.target_rate[reading]  # [n]
    embedded = model.embed(byte_ids[:, None], cache.bytes_before[reading], rates).squeeze(1)  # [n, D]
    state = model.encoder(embedded, model.byte_angles(position), attend_at, cached=True)  # [n, D]
    # Out of place: the old tensors may be in an observation.
    cache.encoder_state = cache.encoder_state.index_copy(0, reading, state.to(cache.encoder_state.dtype))
    cache.segment_sum = cache.segment_sum.index_add(0, reading, state.to(cache.segment_sum.dtype))
    cache.segment_length = cache.segment_length.index_add(0, reading, torch.ones_like(reading))
    cache.pending = cache.pending.index_fill(0, reading, True)
    cache.append_bytes(byte_ids[:, None], reading)
    if model.token_pooling is not None:
        model.token_pooling.write(state, position, cache.segment_bytes, reading)
    return state


@torch.no_grad()
def decide(model: UNet, cache: UNetCache, boundaries: Tensor, *, mixing: Mixing | None = None) -> Prediction:
    """Decide the boundaries [B] after the observed bytes, 1 at a row's first, and predict the next bytes.

    Token layers run only in rows with a boundary. ``mixing``, with entries [B], replaces the model's. The cache is
    changed in place.
    """
    decoded, second = decode_bytes(model, cache, boundaries, mixing=mixing)
    return Prediction(decoded, model.final_logits(decoded), second)


@torch.no_grad()
def decode_bytes(
    model: UNet, cache: UNetCache, boundaries: Tensor, *, mixing: Mixing | None = None
) -> tuple[Tensor, SecondDecisions | None]:
    """Decide boundaries as :func:`decide` does; return decoder states [B, D] and decisions of the second level."""
    check_pending(cache.pending, expected=True)
    check_boundaries(boundaries, cache.position.shape, first=False)
    boundaries = boundaries.bool()
    check_first_boundaries(boundaries, cache.position)
    config, state = model.config, cache.encoder_state
    mixing = model.own_mixing(state, boundaries, cache) if mixing is None else mixing
    rows = boundaries.nonzero().squeeze(1)  # [n]
    decisions = _close_tokens(model, cache, rows, mixing) if len(rows) else None
    everyone = torch.arange(cache.num_rows, device=rows.device)
    starts = step_starts(config, cache.position, cache.segment_length, decoder=True)
    attend_at = cache.decoder.attention(everyone, cache.position, config.attention_cap, starts)
    received = cache.tokens.update
    if model.token_reading is not None:
        received = model.token_reading.step(state, cache.position, cache.num_tokens, cache.last_tokens, everyone)
    received = received if mixing.receive is None else received * mixing.receive.to(state.dtype)[:, None]
    residual = state if mixing.residual is None else mixing.residual(state)
    angles = model.byte_angles(cache.position)
    decoded = model.decoder(residual + received, angles, attend_at, cached=True)  # [B, D]
    cache.recent = torch.cat((boundaries[:, None], cache.recent), dim=1)[:, : config.num_lags]
    cache.position = cache.position + 1
    cache.pending = torch.zeros_like(cache.pending)
    second = None if model.second_level is None else model.second_level.spread(decisions, rows, cache.num_rows)
    return decoded, second


def _close_tokens(model: UNet, cache: UNetCache, rows: Tensor, mixing: Mixing) -> SecondDecisions | None:
    """Pool and run the new token of each of ``rows`` [n]; return the second level's decisions [n]."""
    config, position, number = model.config, cache.position[rows], cache.num_tokens[rows]  # [n]
    tokens = cache.encoder_state[rows]  # [n, D]
    if (mixing.pooling or config.pooling) == "mean":
        tokens = (cache.segment_sum[rows] / cache.segment_length[rows, None]).to(tokens.dtype)
    elif mixing.pooling is None and model.token_pooling is not None:
        tokens = model.token_pooling.step(tokens, position, cache.segment_length[rows], cache.segment_bytes, rows)
    if mixing.first_token is not None:
        tokens = torch.where(position[:, None] == 0, mixing.first_token.to(tokens.dtype), tokens)
    above = None
    if model.second_level is not None and cache.second is not None:
        above = partial(model.second_level.step, cache.second, rows, position, number)
    if mixing.smoothing is not None:
        mixing = replace(mixing, smoothing=mixing.smoothing[rows])
    run = model.run_tokens(position, above, cached=True)
    decisions = step_level(cache.tokens, rows, tokens, run, mixing, config, upsampling=config.upsampling)
    if model.token_reading is not None:
        model.token_reading.write(cache.tokens.update[rows], position, number, cache.last_tokens, rows)
    closed = rows if mixing.first_token is None else rows[position > 0]  # the first byte waits for the next token
    cache.segment_sum[closed], cache.segment_length[closed] = 0, 0
    return decisions


def step(model: UNet, cache: UNetCache, byte_ids: Tensor, boundaries: Tensor) -> tuple[Observation, Prediction]:
    """Observe bytes [B] and decide their boundaries [B] at once: :func:`observe`, then :func:`decide`."""
    # Checked before the bytes are read: a refused step leaves the cache unchanged.
    check_boundaries(boundaries, cache.position.shape, first=False)
    check_first_boundaries(boundaries, cache.position)
    observation = observe(model, cache, byte_ids)
    return observation, decide(model, cache, boundaries)


@torch.no_grad()
def prefill(
    model: UNet,
    cache: UNetCache,
    byte_ids: Tensor,
    boundaries: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
    greedy: bool = False,
) -> UNetOutput:
    """Read prompts [B, T >= 1] in one forward pass, and leave the cache as stepping through them would.

    Other arguments and the output are those of the model; the last position predicts the first new byte.
    """
    return model(byte_ids, boundaries, generator=generator, greedy=greedy, cache=cache)

"""One byte at a time, equal to the full forward pass.

A step has two halves, because the boundary is decided with the byte already read: :func:`observe` reads ``x_t`` and
says what policy and early exit make of it; :func:`decide` takes ``a_t`` and predicts ``x_{t+1}``. :func:`prefill` reads
a whole prompt at once and leaves the cache as if it had been read byte by byte.

Shapes: B rows, T bytes of a prompt, D width, w lags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rltok_rl.functional.policy import lagged_logit
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.checks import check_boundaries, check_byte_ids, check_first_boundaries, check_pending
from rltok_rl.models.level import SecondDecisions
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.tokens import token_update
from rltok_rl.models.unet import check_cache_fits, run_new_tokens, spread_decisions

if TYPE_CHECKING:
    from rltok_rl.models.unet import UNet, UNetOutput


@dataclass(frozen=True)
class Observation:
    """What is known once a byte has been read and before its boundary is decided."""

    encoder_state: Tensor  # [B, D], X_t
    boundary_logit: Tensor  # [B] float32 at least, l_t given the boundaries before
    early_logits: Tensor  # [B, 256]


@dataclass(frozen=True)
class Prediction:
    """What is known once the boundary has been decided."""

    decoder_state: Tensor  # [B, D]
    final_logits: Tensor  # [B, 256]
    second: SecondDecisions | None = None  # [B], where the model has a second level


@torch.no_grad()
def observe(model: UNet, cache: UNetCache, byte_ids: Tensor, *, rows: Tensor | None = None) -> Observation:
    """Read the next byte of every row, or of some.

    Args:
        model: the U-Net.
        cache: its memory of these rows; changed in place.
        byte_ids: [B] the bytes x_t; [n] with ``rows``.
        rows: [n] int64, the rows that read one; None for all. Rows that were reset while others stand between the
            halves of a step catch up with this.

    Returns:
        Encoder state, boundary logit and early-exit logits of the bytes read.
    """
    check_byte_ids(byte_ids, model.config.num_ids, rank=1)
    check_cache_fits(model, cache)
    if rows is not None and (rows.dtype != torch.int64 or rows.dim() != 1 or len(rows.unique()) != len(rows)):
        raise ValueError(f"rows must be int64 of shape [n] without repetition, got {rows.dtype} {rows.tolist()}")
    reading = torch.arange(cache.num_rows, device=cache.position.device) if rows is None else rows
    if len(byte_ids) != len(reading):
        raise ValueError(f"byte_ids must hold one byte per row that reads, {len(reading)}, got {len(byte_ids)}")
    check_pending(cache.pending[reading], expected=False)
    position = cache.position[reading]
    attend_at = cache.encoder.attention(reading, position, model.config.attention_cap)
    rates = None if cache.target_rate is None else cache.target_rate[reading]  # [n]
    embedded = model.embed(byte_ids[:, None], cache.bytes_before[reading], rates).squeeze(1)  # [n, D]
    state = model.encoder(embedded, model.byte_angles(position), attend_at, remembers=True)  # [n, D]
    # Out of place: what was handed out before must not change.
    cache.encoder_state = cache.encoder_state.index_copy(0, reading, state.to(cache.encoder_state.dtype))
    cache.segment_sum = cache.segment_sum.index_add(0, reading, state.to(cache.segment_sum.dtype))
    cache.segment_length = cache.segment_length.index_add(0, reading, torch.ones_like(reading))
    cache.pending = cache.pending.index_fill(0, reading, True)
    cache.remember_bytes(byte_ids[:, None], reading)
    if model.token_pooling is not None:
        model.token_pooling.write(state, position, cache.segment_bytes, reading)
    base, lags = model.boundary_terms(state, target_rate=rates)  # [n], [n, w]
    logit = lagged_logit(base, lags, cache.recent[reading], cap=model.boundary_cap)
    return Observation(state, logit, model.early_logits(state))


@torch.no_grad()
def decide(model: UNet, cache: UNetCache, boundaries: Tensor, *, mixing: Mixing | None = None) -> Prediction:
    """Draw, or do not draw, a boundary after the byte just observed; then predict the next byte.

    Token layers run for the rows with a boundary only, so that a step without one costs byte layers alone.

    Args:
        model: the U-Net.
        cache: its memory; changed in place.
        boundaries: [B] the boundaries a_t, 1 at a row's first byte.
        mixing: what goes into tokens and comes of them, where that is not the model's own way; entries are [B].

    Returns:
        Decoder state and next-byte logits.
    """
    check_pending(cache.pending, expected=True)
    check_boundaries(boundaries, cache.position.shape, first=False)
    boundaries = boundaries.bool()
    check_first_boundaries(boundaries, cache.position)
    config, state = model.config, cache.encoder_state
    mixing = model.own_mixing(state, boundaries, cache) if mixing is None else mixing
    rows = boundaries.nonzero().squeeze(1)  # [n]
    decisions = _close_tokens(model, cache, rows, mixing) if len(rows) else None
    everyone = torch.arange(cache.num_rows, device=rows.device)
    attend_at = cache.decoder.attention(everyone, cache.position, config.attention_cap)
    received = cache.update
    if model.token_reading is not None:
        received = model.token_reading.step(state, cache.position, cache.num_tokens, cache.last_tokens, everyone)
    received = received if mixing.receive is None else received * mixing.receive.to(state.dtype)[:, None]
    own = state if mixing.residual is None else mixing.residual(state)
    angles = model.byte_angles(cache.position)
    decoded = model.decoder(own + received, angles, attend_at, remembers=True)  # [B, D]
    cache.recent = torch.cat((boundaries[:, None], cache.recent), dim=1)[:, : config.num_lags]
    cache.position = cache.position + 1
    cache.pending = torch.zeros_like(cache.pending)
    second = spread_decisions(model, decisions, rows, cache.num_rows)
    return Prediction(decoded, model.final_logits(decoded), second)


def _close_tokens(model: UNet, cache: UNetCache, rows: Tensor, mixing: Mixing) -> SecondDecisions | None:
    """Run the token layers for the new token of each of ``rows`` [n], and keep what it adds to its bytes.

    Returns:
        What the second level decided about them, [n].
    """
    config, state, position = model.config, cache.encoder_state, cache.position[rows]
    tokens_in = state[rows]  # [n, D]
    if (mixing.pooling or config.pooling) == "mean":
        tokens_in = (cache.segment_sum[rows] / cache.segment_length[rows, None]).to(state.dtype)
    elif mixing.pooling is None and model.token_pooling is not None:
        tokens_in = model.token_pooling.step(tokens_in, position, cache.segment_length[rows], cache.segment_bytes, rows)
    if mixing.first_token is not None:
        tokens_in = torch.where(position[:, None] == 0, mixing.first_token.to(state.dtype), tokens_in)
    if mixing.token_norm is not None:
        tokens_in = mixing.token_norm(tokens_in)
    attend_at = cache.tokens.attention(rows, config.attention_cap)
    tokens_out, decisions = run_new_tokens(model, cache, rows, tokens_in, attend_at)
    if mixing.update_norm is not None:
        tokens_out = mixing.update_norm(tokens_out)
    update = token_update(tokens_in, tokens_out, config.upsampling)
    if mixing.smoothing is not None:
        share = mixing.smoothing[rows, None]  # before a row's first token its update is 0
        update = share * update + (1 - share) * cache.update[rows]
    update = update.to(cache.update.dtype)
    cache.update[rows] = update
    if model.token_reading is not None:
        model.token_reading.write(update, position, cache.num_tokens[rows], cache.last_tokens, rows)
    cache.tokens.count[rows] += 1
    closed = rows if mixing.first_token is None else rows[position > 0]  # a byte in no token yet waits for the next
    cache.segment_sum[closed], cache.segment_length[closed] = 0, 0
    return decisions


def step(model: UNet, cache: UNetCache, byte_ids: Tensor, boundaries: Tensor) -> tuple[Observation, Prediction]:
    """Observe a byte and decide its boundary at once: :func:`observe`, then :func:`decide`.

    Args:
        model: the U-Net.
        cache: its memory; changed in place.
        byte_ids: [B] the bytes x_t.
        boundaries: [B] the boundaries a_t.
    """
    check_boundaries(
        boundaries, cache.position.shape, first=False
    )  # before the byte is read: a refused step is no step
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
    """Read whole prompts in one forward pass and leave the cache where stepping through them would have left it.

    Args:
        model: the U-Net.
        cache: a cache that has read nothing yet; changed in place.
        byte_ids: [B, T] prompts of one length, T >= 1.
        boundaries: [B, T] their boundaries; None draws them from the policy.
        generator: source of the random numbers to draw with.
        greedy: draw a boundary where its probability exceeds one half.

    Returns:
        The output of the full forward pass; its last position predicts the first new byte.
    """
    return model(byte_ids, boundaries, generator=generator, greedy=greedy, cache=cache)

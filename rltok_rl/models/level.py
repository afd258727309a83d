"""Levels: pool units (bytes or tokens) into tokens, run layers on tokens, give tokens back to their units.

:func:`run_level` computes a window, :func:`step_level` one new token. Shapes: B rows, T units, S or N tokens, D width,
n rows of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from rltok_rl.functional.routing import confidence, routing_probability, smoothing_shares
from rltok_rl.models.cache import SecondCache
from rltok_rl.models.config import Pooling, UNetConfig, Upsampling
from rltok_rl.models.key_value_cache import TokenCache
from rltok_rl.models.layers import Attention, LayerStack, RMSNorm, Rotary, rotary
from rltok_rl.models.mixing import Mixing, give_back, pool_tokens, token_update, token_updates
from rltok_rl.models.tokens import TokenLayout, layout_above


@dataclass(frozen=True)
class SecondDecisions:
    """Decisions of the second level at the bytes that close tokens: [B, T] of a window, [B] of a step."""

    boundaries: Tensor  # bool, True at the byte whose token closes a token of tokens
    probabilities: Tensor | None  # float32 at least, 0 at bytes that close no token; None for 'stride'


Run = Callable[[Tensor, Callable[[int], Attention]], tuple[Tensor, SecondDecisions | None]]
"""(tokens [*L, D], attention of each layer) to tokens after the layers, and the decisions of the level above."""
Above = Callable[[Tensor], tuple[Tensor, SecondDecisions]]
"""Tokens [*L, D] to tokens updated by the level above, and its decisions."""


def run_layers(
    layers: LayerStack,
    tokens: Tensor,
    attend_at: Callable[[int], Attention],
    *,
    angles: Rotary,
    cached: bool,
    above: Above | None = None,
    lower: int = 0,
) -> tuple[Tensor, SecondDecisions | None]:
    """Run ``lower`` layers on tokens [*L, D], the level ``above``, then the other layers."""
    run = partial(layers, angles=angles, attend_at=attend_at, cached=cached)
    if above is None:
        return run(tokens), None
    tokens, decisions = above(run(tokens, only=range(lower)))
    return run(tokens, only=range(lower, len(layers))), decisions


def widened(run: Run, pad: Tensor | None) -> Run:
    """Run layers of another width on tokens [*L, D] that a ``pad`` extends, and cut the result back to D.

        Mid_s = layers([X'_s, pad])[:D]

    Reference: https://arxiv.org/abs/2507.07955
    """
    if pad is None:
        return run

    def wide(tokens: Tensor, attend_at: Callable[[int], Attention]) -> tuple[Tensor, SecondDecisions | None]:
        more = pad.to(tokens.dtype).expand(*tokens.shape[:-1], -1)
        out, decisions = run(torch.cat((tokens, more), -1), attend_at)
        return out[..., : tokens.shape[-1]], decisions

    return wide


def new_pad(below: UNetConfig, config: UNetConfig) -> nn.Parameter | None:
    """Return the vector of zeros that extends tokens to the width of ``config``; None for equal widths."""
    return nn.Parameter(torch.zeros(config.width - below.width)) if config.width > below.width else None


def run_level(
    states: Tensor,
    layout: TokenLayout,
    run: Run,
    mixing: Mixing,
    config: UNetConfig,
    *,
    pooling: Pooling | Callable[..., Tensor] = "select",
    upsampling: Upsampling = "add",
    read: Callable[[Tensor, Tensor, TokenLayout], Tensor] | None = None,
    cache: TokenCache | None = None,
) -> tuple[Tensor, SecondDecisions | None]:
    """Update a window of units [B, T, D] by their tokens, and fill the ``cache`` as if units had come one by one."""
    tokens_in = pool_tokens(states, layout, mixing, pooling)  # [B, S, D] or [N, D]
    attend = layout.attention(config.attention_cap, config.head_size)
    tokens_out, decisions = run(tokens_in, cache.recording(attend, layout) if cache else lambda _: attend)
    updates = token_updates(tokens_in, tokens_out, layout, mixing, upsampling)
    if cache:
        cache.finish_window(updates, layout)
    return give_back(states, updates, layout, mixing, read), decisions


def step_level(
    cache: TokenCache,
    rows: Tensor,
    tokens: Tensor,
    run: Run,
    mixing: Mixing,
    config: UNetConfig,
    *,
    upsampling: Upsampling = "add",
) -> SecondDecisions | None:
    """Compute a new token [n, D] in each of ``rows`` [n], with ``mixing`` entries [n], and store its update."""
    if mixing.token_norm is not None:
        tokens = mixing.token_norm(tokens)
    tokens_out, decisions = run(tokens, cache.attention(rows, config.attention_cap))
    if mixing.update_norm is not None:
        tokens_out = mixing.update_norm(tokens_out)
    update = token_update(tokens, tokens_out, upsampling)
    if mixing.smoothing is not None:
        share = mixing.smoothing[:, None]  # the update before a row's first token is 0
        update = share * update + (1 - share) * cache.update[rows]
    cache.update[rows] = update.to(cache.update.dtype)
    cache.count[rows] += 1
    return decisions


class Routing(nn.Module):
    """H-Net's boundaries between unlike neighbours, and its smoothing and residual.

        p_s = (1 - cos(W_q x_{s-1}, W_k x_s)) / 2,   p_0 = 1,   b_s = [p_s > 1/2]
        U_j = P_j M_j + (1 - P_j) U_{j-1},           P = p cut to [1e-4, 1 - 1e-4]
        y_s = R(x_s) + STE(c_s) U_{j(s)},            c_s = p_s at a boundary, 1 - p_s elsewhere

    With ``second_residual="projection"``, x = RMSNorm(z), M = RMSNorm(layers(x)) and R is linear and zero at first;
    with ``"identity"`` there are no norms and R(x) = x = z.

    Reference: https://arxiv.org/abs/2507.07955
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        width, projects = config.width, config.second_residual == "projection"
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.token_norm = RMSNorm(width, config.norm_eps) if projects else nn.Identity()
        self.update_norm = RMSNorm(width, config.norm_eps) if projects else nn.Identity()
        self.residual = nn.Linear(width, width) if projects else nn.Identity()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Begin with identity projections, and no residual past the second level."""
        for projection in (self.query, self.key):
            projection.weight.copy_(torch.eye(len(projection.weight)))
        for parameter in self.residual.parameters():
            parameter.zero_()

    def probabilities(self, states: Tensor) -> Tensor:
        """[B, S, D] token states to [B, S]; 1 at the first token."""
        x = self.token_norm(states)
        free = routing_probability(self.query(x[:, :-1]), self.key(x[:, 1:]))  # [B, S - 1]
        return nn.functional.pad(free, (1, 0), value=1.0)

    def mixing(self, probs: Tensor, boundaries: Tensor) -> Mixing:
        """Return norms, smoothing, residual and confidence for probabilities and decisions [*L]."""
        return Mixing(
            token_norm=self.token_norm,
            update_norm=self.update_norm,
            smoothing=smoothing_shares(probs),
            residual=lambda states: self.residual(self.token_norm(states)),
            receive=confidence(probs, boundaries),
        )


class SecondLevel(nn.Module):
    """Tokens of tokens: the rule that draws their boundaries, and their layers; ``config`` has the tokens' width."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        self.routing = Routing(config) if config.second_level == "routing" else None
        self.layers = LayerStack(config.of_second, config.num_second_layers, config.token_mlp_ratio)
        self.pad = new_pad(config, config.of_second)

    def forward(
        self, states: Tensor, below: TokenLayout, cache: SecondCache | None = None
    ) -> tuple[Tensor, SecondDecisions]:
        """Update token states [B, S, D] or [N, D] of a window by their tokens of tokens."""
        if not below.boundaries.numel():  # no byte, no token
            probs = None if self.routing is None else torch.zeros_like(below.boundaries, dtype=torch.float32)
            return states, SecondDecisions(below.boundaries, probs)
        # Packed rows are one long row [1, N] here, which begins anew at every first token.
        if below.rows is not None:
            rows, number, real = states[None], below.rows.number[None], below.rows.real[None]
        else:
            rows, number = states, torch.arange(below.width, device=states.device).expand(below.shape)  # [B, S]
            real = number < below.num_tokens[:, None]
        probs = None if self.routing is None else self.routing.probabilities(rows)  # [B, S]
        if probs is not None and below.rows is not None:
            probs = probs.masked_fill(number == 0, 1.0)
        drawn = self._draw(number, probs) & real
        layout, mixing = layout_above(drawn, below), self._mixing(probs, drawn)
        positions = below.positions.flatten().index_select(0, layout.byte_index).view(layout.shape)
        run = self._run(positions, cached=cache is not None)
        mixed, _ = run_level(rows, layout, run, mixing, self.config.of_second, cache=cache.tokens if cache else None)
        if cache:
            last = states[torch.arange(len(states), device=states.device), below.num_tokens - 1]  # [B, D]
            cache.query = self._query(last).to(cache.query.dtype)
        return mixed.view_as(states), _at_bytes(below, drawn, probs)

    def step(
        self, cache: SecondCache, rows: Tensor, positions: Tensor, number: Tensor, states: Tensor
    ) -> tuple[Tensor, SecondDecisions]:
        """Update the ``number``-th [n] token of each of ``rows`` [n], at byte positions [n] with states [n, D]."""
        probs = None
        if self.routing is not None:
            probs = routing_probability(cache.query[rows], self.routing.key(self.routing.token_norm(states)))
            probs = torch.where(number == 0, 1.0, probs)
        drawn = self._draw(number, probs)
        mixing = self._mixing(probs, drawn)
        if bool(drawn.any()):
            smoothing = None if mixing.smoothing is None else mixing.smoothing[drawn]
            run, closing = self._run(positions[drawn], cached=True), replace(mixing, smoothing=smoothing)
            step_level(cache.tokens, rows[drawn], states[drawn], run, closing, self.config)
        cache.query[rows] = self._query(states).to(cache.query.dtype)
        residual = states if mixing.residual is None else mixing.residual(states)
        return residual + cache.tokens.update[rows], SecondDecisions(drawn, probs)

    def spread(self, decisions: SecondDecisions | None, rows: Tensor, num_rows: int) -> SecondDecisions:
        """Scatter the decisions [n] about new tokens of ``rows`` [n] into all rows [B]."""
        boundaries, probs = torch.zeros(num_rows, dtype=torch.bool, device=rows.device), None
        if self.routing is not None:
            probs = boundaries.to(torch.promote_types(self.routing.query.weight.dtype, torch.float32))
        if decisions is not None:
            boundaries = boundaries.index_copy(0, rows, decisions.boundaries)
            if probs is not None and decisions.probabilities is not None:
                probs = probs.index_copy(0, rows, decisions.probabilities.to(probs.dtype))
        return SecondDecisions(boundaries, probs)

    def _draw(self, number: Tensor, probs: Tensor | None) -> Tensor:
        return number % self.config.second_stride == 0 if probs is None else probs > 0.5

    def _mixing(self, probs: Tensor | None, drawn: Tensor) -> Mixing:
        return Mixing() if self.routing is None or probs is None else self.routing.mixing(probs, drawn)

    def _run(self, positions: Tensor, *, cached: bool) -> Run:
        angles = rotary(positions, self.config.of_second.head_size, self.config.rope_base)
        return widened(partial(run_layers, self.layers, angles=angles, cached=cached), self.pad)

    def _query(self, states: Tensor) -> Tensor:
        """Return what routing compares the next token with, [n, D]."""
        if self.routing is None:
            return torch.zeros_like(states)
        return self.routing.query(self.routing.token_norm(states))


def _at_bytes(layout: TokenLayout, drawn: Tensor, probs: Tensor | None) -> SecondDecisions:
    """Move decisions about tokens, [B, S] or [1, N], to the bytes that close them, [B, T]."""
    closes, serving = layout.boundaries, layout.token_index.flatten()
    if probs is not None:
        probs = torch.where(closes, probs.flatten().index_select(0, serving).view_as(closes), 0.0)
    return SecondDecisions(closes & drawn.flatten().index_select(0, serving).view_as(closes), probs)

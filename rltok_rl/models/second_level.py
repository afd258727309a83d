"""Tokens of tokens: a second level between the token layers.

    z = lower token layers(X'),     Z_j = z_s at the j-th boundary s,     M = second layers(Z),     y_s = z_s + M_{j(s)}

and the upper token layers go on with y. A boundary of the second level lies at a token, and is read off token states:
``stride`` draws one at every P-th token of a row, ``routing`` where neighbouring tokens are unlike, as H-Net does. It
serves that token and all tokens before the next one, so that a byte sees tokens of tokens that closed at or before it.
A token of tokens keeps the byte position of its boundary.

Shapes: B rows, T bytes, S tokens of the longest row, N tokens of all rows, n rows of a step, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rltok_rl.functional.routing import routing_probability, smoothing_shares
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.layers import Attend, LayerStack
from rltok_rl.models.mixing import Mixing, give_back, pool_tokens, token_updates
from rltok_rl.models.pooling import TokenLayout, layout_above
from rltok_rl.models.rotary import Rotary
from rltok_rl.models.routing import Routing

if TYPE_CHECKING:
    from rltok_rl.models.unet import UNet


@dataclass(frozen=True)
class SecondDecisions:
    """What the second level decided about tokens, at the bytes that close them: [B, T] of a window, [B] of a step."""

    boundaries: Tensor
    """bool, True where a token closes that closes a token of tokens."""
    probabilities: Tensor | None
    """Of a boundary, float32 at least; 0 at bytes that close no token. None where nothing has a probability."""


class SecondLevel(nn.Module):
    """The layers that run on tokens of tokens, and the rule that makes these.

    Args:
        config: of the U-Net; its ``second_level`` is not None.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.stride, self.cap, self.num_heads = config.second_stride, config.attention_cap, config.num_heads
        self.routing = Routing(config) if config.second_level == "routing" else None
        self.layers = LayerStack(config, config.num_second_layers, config.token_mlp_ratio)

    def forward(
        self,
        states: Tensor,
        where: TokenLayout,
        angles: Callable[[Tensor], Rotary],
        cache: UNetCache | None = None,
    ) -> tuple[Tensor, SecondDecisions]:
        """Token states that have received their tokens of tokens, laid out as they came.

        Args:
            states: [B, S, D] or [N, D] after the lower token layers.
            where: where the tokens sit.
            angles: rotary angles of byte positions.
            cache: an empty one, to be left as if the tokens had come one by one.
        """
        if not where.boundaries.numel():  # no byte, no token
            probs = None if self.routing is None else torch.zeros_like(where.boundaries, dtype=torch.float32)
            return states, SecondDecisions(where.boundaries, probs)
        # Packed rows are one long row, which begins anew at every first token: [1, N] stands for [B, S] here.
        rows = states if where.rows is None else states[None]
        number, real = _numbers(where)  # [B, S]
        probs = None if self.routing is None else self.routing.probabilities(rows)  # [B, S]
        if probs is not None and where.rows is not None:
            probs = probs.masked_fill(number == 0, 1.0)
        drawn = (number % self.stride == 0 if probs is None else probs > 0.5) & real
        mixing = Mixing() if self.routing is None or probs is None else self.routing.mixing(probs, drawn)
        above = layout_above(drawn, where)
        tokens_in = pool_tokens(rows, above, mixing)
        attend = above.attention(self.cap, tokens_in, self.num_heads)
        attend_at = cache.second.tokens.recording(attend, above) if cache and cache.second else lambda _: attend
        positions = where.positions.flatten().index_select(0, above.byte_index).view(above.shape)
        tokens_out = self.layers(tokens_in, angles(positions), attend_at, remembers=cache is not None)
        updates = token_updates(tokens_in, tokens_out, above, mixing)
        mixed = give_back(rows, updates, above, mixing)
        if cache and cache.second:
            last = states[torch.arange(len(states), device=states.device), where.num_tokens - 1]  # [B, D]
            cache.second.finish_window(self.query(last), updates, above)
        return mixed.view_as(states), _at_bytes(where, drawn, probs)

    def query(self, states: Tensor) -> Tensor:
        """What the next token will be compared with: [n, D] to [n, D]; nothing for ``stride``."""
        if self.routing is None:
            return torch.zeros_like(states)
        return self.routing.query(self.routing.token_norm(states))

    def step(
        self,
        cache: UNetCache,
        rows: Tensor,
        states: Tensor,
        angles: Rotary,
    ) -> tuple[Tensor, SecondDecisions]:
        """The same for one new token in each of ``rows`` [n]: states [n, D] to [n, D], and decisions [n].

        Args:
            cache: the memory; changed in place. Its count of tokens is still that before the new ones.
            rows: [n] int64.
            states: [n, D] after the lower token layers.
            angles: of their byte positions.
        """
        memory = cache.second
        assert memory is not None
        number = cache.tokens.count[rows]  # [n]
        routing, probs = self.routing, None
        x = states if routing is None else routing.token_norm(states)
        if routing is None:
            drawn = number % self.stride == 0
        else:
            probs = routing_probability(memory.query[rows], routing.key(x))
            probs = torch.where(number == 0, 1.0, probs)
            drawn = probs > 0.5
        chosen = rows[drawn]
        if len(chosen):
            attend_at = memory.tokens.attention(chosen, self.cap)
            turned = Rotary(angles.cos[drawn], angles.sin[drawn])
            update = self.layers(x[drawn], turned, attend_at, remembers=True)
            if routing is not None and probs is not None:
                share = smoothing_shares(probs)[drawn, None]  # before a row's first its update is 0
                update = share * routing.update_norm(update) + (1 - share) * memory.update[chosen]
            memory.update[chosen] = update.to(memory.update.dtype)
            memory.tokens.count[chosen] += 1
        memory.query[rows] = self.query(states).to(memory.query.dtype)
        own = states if routing is None else routing.own(states)
        return own + memory.update[rows], SecondDecisions(drawn, probs)


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


def _numbers(where: TokenLayout) -> tuple[Tensor, Tensor]:
    """The number of each token in its row, and whether it is one: [B, S], or [1, N] of packed tokens."""
    if where.rows is not None:
        return where.rows.number[None], where.rows.real[None]
    number = torch.arange(where.width, device=where.positions.device).expand(where.shape)
    return number, number < where.num_tokens[:, None]


def _at_bytes(where: TokenLayout, drawn: Tensor, probs: Tensor | None) -> SecondDecisions:
    """Decisions about tokens, [B, S] or [1, N], at the bytes that close them, [B, T]."""
    closes, serving = where.boundaries, where.token_index.flatten()
    if probs is not None:
        probs = torch.where(closes, probs.flatten().index_select(0, serving).view_as(closes), 0.0)
    return SecondDecisions(closes & drawn.flatten().index_select(0, serving).view_as(closes), probs)

"""What a second level has to remember between two tokens.

Shapes: B rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rltok_rl.functional.routing import confidence, routing_probability, smoothing_shares
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.layers import LayerStack, RMSNorm, Rotary
from rltok_rl.models.mixing import Mixing, give_back, pool_tokens, token_updates
from rltok_rl.models.tokens import TokenLayout, layout_above

if TYPE_CHECKING:
    pass


class Routing(nn.Module):
    """H-Net's rule between neighbouring tokens, and what it makes of their values.

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
        """Neighbours are compared as they are; nothing goes past the second level."""
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
        """What goes into tokens of tokens and comes of them."""
        return Mixing(
            token_norm=self.token_norm,
            update_norm=self.update_norm,
            smoothing=smoothing_shares(probs),
            residual=self.own,
            receive=confidence(probs, boundaries),
        )

    def own(self, states: Tensor) -> Tensor:
        """What of a token goes on beside its token of tokens: R(x), [*L, D] to [*L, D]."""
        return self.residual(self.token_norm(states))


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

"""Attention between bytes and tokens: a token attends to its bytes, a byte to the last tokens.

Shapes: B rows, T bytes, S or N tokens, D width, H heads, C channels of a head, n rows of a step, k tokens read.
Queries and keys are rotated by byte positions. Memory is linear in the bytes times k.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltok_rl.functional.policy import soft_cap
from rltok_rl.models.config import UNetConfig
from rltok_rl.models.key_value_cache import WindowCache
from rltok_rl.models.layers import RMSNorm, rotary, rotate
from rltok_rl.models.tokens import TokenLayout, closing_token


class CrossAttention(nn.Module):
    """Projections, norms and scores of attention from bytes to tokens or from tokens to bytes."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads, self.cap, self.rope_base = config.num_heads, config.attention_cap, config.rope_base
        self.query_norm = RMSNorm(width, config.norm_eps)
        self.key_norm = RMSNorm(width, config.norm_eps)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.out_norm = RMSNorm(width, config.norm_eps)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """[*L, D] at positions [*L] to [*L, H, C]."""
        return self._rotated(self.query(self.query_norm(x)).unflatten(-1, (self.num_heads, -1)), positions)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[*L, D] at positions [*L] to keys and values, [*L, H, C] each."""
        key, value = self.key_value(self.key_norm(x)).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        return self._rotated(key, positions), value

    def merge(self, heads: Tensor) -> Tensor:
        """Attended heads [*L, H, C] to [*L, D]."""
        return self.out_norm(self.out(heads.flatten(-2)))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """[*L, H, C] twice to [*L, H], scaled and capped, in float32 at least."""
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = (query.to(wide) * key.to(wide)).sum(-1) * query.shape[-1] ** -0.5
        return scores if self.cap is None else soft_cap(scores, self.cap)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, rotary(positions, x.shape[-1], self.rope_base))


class SegmentPooling(CrossAttention):
    """Pooling by attention: a token attends to the bytes of its segment, with its boundary byte's state as the query.

        X'_s = X_t + Norm(W_o Attention(q(X_t), k(X_u), v(X_u))),    prev(t) < u <= t,  t - u < W

    Longer segments than the window W of byte layers count from their last W bytes, so that a cache keeps no more.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__(config)
        self.window = config.window

    def forward(
        self,
        states: Tensor,
        layout: TokenLayout,
        *,
        weights: Tensor | None,
        open_first: bool,
        ring: WindowCache | None,
    ) -> Tensor:
        """Pool byte states X [B, T, D] into tokens, as :func:`downsample` does; a ``ring`` gets the last W bytes."""
        length, clock = states.shape[1], torch.arange(states.shape[1], device=states.device)
        keys, values = self.keys_values(states, clock.expand(states.shape[:2]))  # [B, T, H, C]
        if ring is not None:
            ring.write_window(0, keys, values)
        chosen = states.flatten(0, 1).index_select(0, layout.byte_index)  # [N, D]
        at = layout.byte_index % max(length, 1)  # [N]
        closing = closing_token(layout, open_first)  # [B, T]
        num_slots, waits = len(chosen), closing > layout.token_index[:, -1:]  # bytes that flow into no token
        owner = closing.masked_fill(waits, 0).flatten()  # [B T]
        far = at.index_select(0, owner).view_as(waits) - clock >= self.window
        read = segment_attention(
            self.scores(self.queries(chosen, at).index_select(0, owner), keys.flatten(0, 1)),
            values.flatten(0, 1) if weights is None else values.flatten(0, 1) * weights.flatten()[:, None, None],
            owner.masked_fill((waits | far).flatten(), num_slots),
            num_slots,
        )  # [N, H, C]
        return (chosen + self.merge(read.to(chosen.dtype))).view(*layout.shape, states.shape[-1])

    def write(self, states: Tensor, position: Tensor, ring: WindowCache, rows: Tensor) -> None:
        """Cache a byte of each of ``rows`` [n]: states [n, D] at positions [n]."""
        ring.write(rows, position, *self.keys_values(states, position))

    def step(self, states: Tensor, position: Tensor, length: Tensor, ring: WindowCache, rows: Tensor) -> Tensor:
        """Pool the segments of ``length`` [n] bytes that end at ``states`` [n, D] into tokens [n, D]."""
        return states + self.merge(ring.read(rows, self.queries(states, position), position, length, self.cap))


class TokenReading(CrossAttention):
    """Upsampling by attention: a byte attends to the last k tokens (``tokens_read``), its current one included.

    R_t = Norm(W_o Attention(q(X_t), k(U_j), v(U_j))),    i(t) - k < j <= i(t)
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__(config)
        self.num_read = config.tokens_read

    def forward(self, states: Tensor, updates: Tensor, layout: TokenLayout, ring: WindowCache | None = None) -> Tensor:
        """Attend from X [B, T, D] to updates U [B, S, D] or [N, D]; a ``ring`` gets the last k padded tokens."""
        keys, values = self.keys_values(updates, layout.positions)  # [*shape, H, C]
        if ring is not None:
            ring.write_last(keys, values, layout.num_tokens)
        keys, values = (x.reshape(-1, *x.shape[-2:]) for x in (keys, values))
        query = self.queries(states, torch.arange(states.shape[1], device=states.device).expand(states.shape[:2]))
        serving, first = layout.token_index, layout.token_index[:, :1]  # [B, T], [B, 1]
        read = [(serving - back).clamp(min=first) for back in range(self.num_read)]  # k of [B, T]
        exists = torch.stack([serving - back >= first for back in range(self.num_read)])  # [k, B, T]

        def of_tokens(x: Tensor, which: Tensor) -> Tensor:
            return x.index_select(0, which.flatten()).view(*which.shape, *x.shape[1:])  # [B, T, H, C]

        scores = torch.stack([self.scores(query, of_tokens(keys, which)) for which in read])  # [k, B, T, H]
        shares = scores.masked_fill(~exists[..., None], float("-inf")).softmax(0).to(values.dtype)
        parts = (share[..., None] * of_tokens(values, which) for share, which in zip(shares, read, strict=True))
        return self.merge(sum(parts))  # of [B, T, H, C]

    def write(self, updates: Tensor, position: Tensor, number: Tensor, ring: WindowCache, rows: Tensor) -> None:
        """Cache the ``number``-th [n] token of each of ``rows`` [n]: updates [n, D] at byte positions [n]."""
        ring.write(rows, number, *self.keys_values(updates, position))

    def step(self, states: Tensor, position: Tensor, count: Tensor, ring: WindowCache, rows: Tensor) -> Tensor:
        """Attend from a byte in each of ``rows`` [n] with ``count`` [n] tokens so far: [n, D]."""
        return self.merge(ring.read(rows, self.queries(states, position), count - 1, count, self.cap))


def segment_attention(scores: Tensor, values: Tensor, owner: Tensor, num_owners: int) -> Tensor:
    """Average values v [M, H, C] with a softmax within segments, by scores c [M, H], in time linear in M.

        out_s = sum_{u in s} exp(c_u) v_u / sum_{u in s} exp(c_u)      (0 without entries)

    ``owner`` [M] is each entry's segment, ``num_owners`` if none. Returns [num_owners, H, C] in the scores' dtype.
    """
    heads = scores.shape[1]
    index = owner[:, None].expand(-1, heads)
    least = torch.full((num_owners + 1, heads), float("-inf"), dtype=scores.dtype, device=scores.device)
    largest = least.scatter_reduce(0, index, scores.detach(), "amax")  # cancels, and prevents overflow
    weights = (scores - largest.index_select(0, owner)).exp()  # [M, H]
    sums = weights.new_zeros(num_owners + 1, heads).index_add(0, owner, weights)
    parts = weights[..., None] * values.to(scores.dtype)
    totals = parts.new_zeros(num_owners + 1, *parts.shape[1:]).index_add(0, owner, parts)
    return (totals / sums.masked_fill(sums == 0, 1.0)[..., None])[:-1]

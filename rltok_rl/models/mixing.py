"""Variants of pooling and upsampling: weights, a null token, norms, smoothing.

Shapes: B rows, T bytes, S or N tokens, D width. Tensors of a :class:`Mixing` are [B, T] for a window, [B] for a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rltok_rl.functional.routing import confidence, smooth
from rltok_rl.models.config import Pooling, Smoothing, Upsampling
from rltok_rl.models.tokens import TokenLayout, downsample, upsample


@dataclass(frozen=True)
class Mixing:
    """Differences from the model's own pooling and upsampling; none by default.

    X'_s = norm(pool_u(w_u X_u)),    U_s = P_s Mid_s + (1 - P_s) U_{s-1},    Y_t = residual(X_t) + c_t U_{i(t)}
    """

    pooling: Literal["select", "mean"] | None = None  # None is the model's
    pool_weights: Tensor | None = None  # w, straight-through factors of 1 with a gradient; steps skip them
    first_token: Tensor | None = None  # [D] replaces the first token; the first byte then waits for the next boundary
    token_norm: Callable[[Tensor], Tensor] | None = None  # before the token layers
    update_norm: Callable[[Tensor], Tensor] | None = None  # after the token layers
    smoothing: Tensor | None = None  # P, share of a new token in its bytes' update; read at boundaries
    residual: Callable[[Tensor], Tensor] | None = None  # of a byte's own state; None is the identity
    receive: Tensor | None = None  # c, factors on each byte's update


def policy_smoothing(
    smoothing: Smoothing, logits: Tensor | None, boundaries: Tensor, forced: Tensor, mixing: Mixing | None = None
) -> Mixing:
    """Smooth tokens by the probability of their boundary, given logits l, decisions and forced boundaries, all [*L].

        U_j = P_j Mid_j + (1 - P_j) U_{j-1},     P = sigmoid(l), 1 where a boundary is forced

    ``"detached"`` stops the gradient through P: the policy learns from rewards alone. ``"gradient"`` keeps it.
    ``"straight_through"`` keeps it and adds H-Net's confidence, a factor on updates that is 1 in value, with the
    gradient of the decision's probability: p at a boundary and 1 - p elsewhere. Nothing is smoothed without ``logits``,
    and smoothing in ``mixing`` takes precedence.

    Reference: https://arxiv.org/abs/2507.07955
    """
    mixing = Mixing() if mixing is None else mixing
    if smoothing == "none" or logits is None or mixing.smoothing is not None:
        return mixing
    probs = logits.sigmoid().masked_fill(forced, 1.0)
    if smoothing == "detached":
        return replace(mixing, smoothing=probs.detach())
    if smoothing == "gradient":
        return replace(mixing, smoothing=probs)
    factor = confidence(probs, boundaries)
    return replace(mixing, smoothing=probs, receive=factor if mixing.receive is None else mixing.receive * factor)


def pool_tokens(
    states: Tensor, layout: TokenLayout, mixing: Mixing, pooling: Pooling | Callable[..., Tensor] = "select"
) -> Tensor:
    """Pool byte states [B, T, D] into the inputs of token layers, [B, S, D] or [N, D], by the model's ``pooling``."""
    null = mixing.first_token
    method: Any = mixing.pooling or pooling
    pool = method if callable(method) else partial(downsample, pooling=method)
    tokens = pool(states, layout, weights=mixing.pool_weights, open_first=null is not None)  # [B, S, D] or [N, D]
    if null is not None:
        tokens = torch.where(_first_tokens(layout).unsqueeze(-1), null.to(tokens.dtype), tokens)
    return tokens if mixing.token_norm is None else mixing.token_norm(tokens)


def token_update(tokens_in: Tensor, tokens_out: Tensor, upsampling: Upsampling = "add") -> Tensor:
    """Return what a token adds to its bytes [*L, D]: Mid_s (Eq. 9), or with "deviation" the change Mid_s - X'_s."""
    return tokens_out - tokens_in if upsampling == "deviation" else tokens_out


def token_updates(
    tokens_in: Tensor, tokens_out: Tensor, layout: TokenLayout, mixing: Mixing, upsampling: Upsampling = "add"
) -> Tensor:
    """Return the smoothed updates U of a window's tokens: [B, S, D] or [N, D] each."""
    tokens_out = tokens_out if mixing.update_norm is None else mixing.update_norm(tokens_out)
    updates = token_update(tokens_in, tokens_out, upsampling)
    if mixing.smoothing is None:
        return updates
    weights = mixing.smoothing.flatten().index_select(0, layout.byte_index).view(layout.shape)  # [B, S] or [N]
    return smooth(updates, weights, fresh=_first_tokens(layout))


def give_back(
    states: Tensor,
    updates: Tensor,
    layout: TokenLayout,
    mixing: Mixing,
    read: Callable[[Tensor, Tensor, TokenLayout], Tensor] | None = None,
) -> Tensor:
    """Add tokens' updates [B, S, D] or [N, D], as bytes ``read`` them, to byte states X [B, T, D], giving Y."""
    if read is None and mixing.receive is None and mixing.residual is None:
        return upsample(states, updates, layout)
    received = upsample(torch.zeros_like(states), updates, layout) if read is None else read(states, updates, layout)
    if mixing.receive is not None:
        received = received * mixing.receive.to(received.dtype).unsqueeze(-1)
    return received + (states if mixing.residual is None else mixing.residual(states))


def _first_tokens(layout: TokenLayout) -> Tensor:
    """Mark the first token of every row: bool of the layout's shape."""
    first = torch.zeros(layout.byte_index.shape[0], dtype=torch.bool, device=layout.byte_index.device)
    return first.index_fill(0, layout.first, True).view(layout.shape)

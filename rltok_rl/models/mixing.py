"""Ways from bytes to tokens and back that are not the U-Net's own: weights, a null token, norms, smoothing.

Shapes: B rows, T bytes, S or N tokens, D width. A boundary string says where tokens end; a :class:`Mixing` says what
goes into them and what comes of them. Everything in it belongs to single bytes, so that a window and a step read the
same entries, [B, T] and [B].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rltok_rl.functional.routing import Method, smooth
from rltok_rl.models.tokens import TokenLayout, downsample, token_update, upsample


@dataclass(frozen=True)
class Mixing:
    """What differs from the U-Net's own pooling and upsampling; nothing by default.

    X'_s = norm(pool_u(w_u X_u)),    U_s = P_s Mid_s + (1 - P_s) U_{s-1},    Y_t = residual(X_t) + c_t U_{i(t)}
    """

    pooling: Literal["select", "mean"] | None = None
    """How bytes are pooled; None is the model's way."""
    pool_weights: Tensor | None = None
    """w: straight-through factors, 1 in value, that carry a gradient into pooling. Steps have none and skip them."""
    first_token: Tensor | None = None
    """[D] a vector that stands where the first token would; the first byte then waits for the next boundary."""
    token_norm: Callable[[Tensor], Tensor] | None = None
    """Applied to tokens before the token layers."""
    update_norm: Callable[[Tensor], Tensor] | None = None
    """Applied to tokens after the token layers."""
    smoothing: Tensor | None = None
    """P: share of a token in what its bytes receive, read at boundaries; the rest is of the tokens before."""
    smoothing_method: Method = "scan"
    """How a window is smoothed; the two agree."""
    residual: Callable[[Tensor], Tensor] | None = None
    """What of a byte's own state goes on beside its token; None is all of it."""
    receive: Tensor | None = None
    """c: factors on what each byte receives."""


def policy_smoothing(
    smoothing: Literal["none", "detached", "gradient", "straight_through"],
    logits: Tensor | None,
    boundaries: Tensor,
    forced: Tensor,
    mixing: Mixing | None = None,
) -> Mixing:
    """Smooth tokens by the probability that their boundary was drawn with.

        U_j = P_j Mid_j + (1 - P_j) U_{j-1},     P = sigmoid(l), 1 where a boundary is forced

    ``"detached"`` takes P as a number: the policy learns from rewards alone. ``"gradient"`` lets the predictions'
    gradient through P reach the policy too. ``"straight_through"`` adds H-Net's confidence to that, a factor on what
    bytes receive: 1 in value, with the gradient of the probability of the decision taken, p at a boundary and 1 - p
    elsewhere.

    Args:
        smoothing: which of them; ``"none"`` leaves ``mixing`` as it is.
        logits: [*L] boundary logits l; None where boundaries were not drawn with a probability: nothing is smoothed.
        boundaries: [*L] bool.
        forced: [*L] bool, boundaries that nobody decided.
        mixing: what else is special; a smoothing of its own stays.

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
    taken = torch.where(boundaries, probs, 1 - probs)
    factor = 1 + (taken - taken.detach())  # exactly 1
    return replace(mixing, smoothing=probs, receive=factor if mixing.receive is None else mixing.receive * factor)


def pool_tokens(
    states: Tensor,
    layout: TokenLayout,
    mixing: Mixing,
    pooling: Literal["select", "mean"] | Callable[..., Tensor] = "select",
) -> Tensor:
    """Tokens of a window, as they enter the token layers.

    Args:
        states: [B, T, D] byte states X.
        layout: where the tokens sit.
        mixing: what is special about them.
        pooling: the model's way, where ``mixing`` has none; by name, or a module.

    Returns:
        [B, S, D] or [N, D].
    """
    null = mixing.first_token
    weights = mixing.pool_weights
    how = mixing.pooling or pooling
    pool = partial(downsample, pooling=how) if isinstance(how, str) else how
    tokens = pool(states, layout, weights=weights, open_first=null is not None)  # [B, S, D] or [N, D]
    if null is not None:
        first = _first_tokens(layout)
        tokens = torch.where(first.unsqueeze(-1), null.to(tokens.dtype), tokens)
    return tokens if mixing.token_norm is None else mixing.token_norm(tokens)


def token_updates(
    tokens_in: Tensor,
    tokens_out: Tensor,
    layout: TokenLayout,
    mixing: Mixing,
    upsampling: Literal["add", "deviation", "attention"] = "add",
) -> Tensor:
    """What each token adds to the bytes that it serves, U.

    Args:
        tokens_in: [B, S, D] or [N, D] tokens before the token layers.
        tokens_out: tokens after them.
        layout: where the tokens sit.
        mixing: what is special about them.
        upsampling: the model's way.
    """
    tokens_out = tokens_out if mixing.update_norm is None else mixing.update_norm(tokens_out)
    updates = token_update(tokens_in, tokens_out, upsampling)
    if mixing.smoothing is None:
        return updates
    weights = mixing.smoothing.flatten().index_select(0, layout.byte_index).view(layout.shape)  # [B, S] or [N]
    return smooth(updates, weights, fresh=_first_tokens(layout), method=mixing.smoothing_method)


def give_back(
    states: Tensor,
    updates: Tensor,
    layout: TokenLayout,
    mixing: Mixing,
    read: Callable[[Tensor, Tensor, TokenLayout], Tensor] | None = None,
) -> Tensor:
    """Byte states that have received their tokens, Y: [B, T, D].

    Args:
        states: [B, T, D] byte states X.
        updates: [B, S, D] or [N, D] what each token adds.
        layout: where the tokens sit.
        mixing: what is special about it.
        read: what bytes make of tokens; None is the token that serves each, as it is.
    """
    if read is None and mixing.receive is None and mixing.residual is None:
        return upsample(states, updates, layout)
    read = read or (lambda states, *given: upsample(torch.zeros_like(states), *given))
    received = read(states, updates, layout)  # [B, T, D]
    if mixing.receive is not None:
        received = received * mixing.receive.to(received.dtype).unsqueeze(-1)
    return received + (states if mixing.residual is None else mixing.residual(states))


def _first_tokens(layout: TokenLayout) -> Tensor:
    """Which tokens are the first of their row, bool of the layout's shape."""
    first = torch.zeros(layout.byte_index.shape[0], dtype=torch.bool, device=layout.byte_index.device)
    return first.index_fill(0, layout.first, True).view(layout.shape)

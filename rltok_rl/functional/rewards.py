"""Rewards per byte; higher is better.

The reward of the step that ends in byte ``x_{t+1}`` is made of the model's prediction of that byte: log-likelihoods
[*B, T] in nats of the whole model and of the early exit, and the entropy of the early exit's prediction. Subtracting
anything that does not depend on the boundaries leaves the expected policy gradient unchanged (Section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rltok_rl.functional.reduction import wide


def early_exit_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """Return the log-likelihood gained over the early exit, which sees no tokens (Eq. 15).

    R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) - log p_early(x_{t+1} | x_<=t)
    """
    return final_log_prob - early_log_prob


def log_likelihood_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """Return the log-likelihood, ``R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t)``: plain REINFORCE (Eq. 13)."""
    return final_log_prob


def entropy_relative_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """Return the log-likelihood minus the early exit's expected log-likelihood.

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) + H(p_early(. | x_<=t))

    ``-H`` is known before the byte is, so it removes less noise than the early exit's log-likelihood.
    """
    return final_log_prob + early_entropy


REWARDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "early_exit": early_exit_reward,
    "log_likelihood": log_likelihood_reward,
    "entropy_relative": entropy_relative_reward,
}
"""Rewards by name: ``(final_log_prob, early_log_prob, early_entropy) -> reward``."""


def charge_boundaries(rewards: Tensor, boundaries: Tensor, price: float) -> Tensor:
    """Subtract a price in nats per boundary, ``R'_{t+1} = R_{t+1} - price a_t``."""
    return rewards - price * boundaries.to(rewards.dtype) if price else rewards


def prediction_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of predictions [*B, T, V] in nats, ``H = log sum_v exp l_v - sum_v p_v l_v``."""
    logits = logits.to(wide(logits))
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)

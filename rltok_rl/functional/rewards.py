"""Rewards per byte; higher is better.

The reward of the step that ends in byte ``x_{t+1}`` is made of the model's prediction of that byte. Subtracting
anything that does not depend on the boundaries leaves the expected policy gradient unchanged (Section 2.4). All rewards
take log-likelihood [*B, T] in nats, that of the early exit, and the entropy of the early exit's prediction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def early_exit_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """The log-likelihood gained over the early exit, which sees no tokens (Eq. 15).

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) - log p_early(x_{t+1} | x_<=t)

    Example:
        >>> early_exit_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(2.)
    """
    return final_log_prob - early_log_prob


def log_likelihood_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """The log-likelihood alone, ``R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t)``: plain REINFORCE (Eq. 13).

    Example:
        >>> log_likelihood_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(-1.)
    """
    return final_log_prob


def entropy_relative_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """The log-likelihood minus the early exit's expected log-likelihood.

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) + H(p_early(. | x_<=t))

    ``-H`` is known before the byte is and does not depend on it, so that it removes less noise than the early exit's
    log-likelihood.

    Example:
        >>> entropy_relative_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(1.)
    """
    return final_log_prob + early_entropy


REWARDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "early_exit": early_exit_reward,
    "log_likelihood": log_likelihood_reward,
    "entropy_relative": entropy_relative_reward,
}
"""Every reward by name; all take the same arguments, so that one can stand for another."""


def charge_boundaries(rewards: Tensor, boundaries: Tensor, price: float) -> Tensor:
    """Subtract a price in nats per boundary, ``R'_{t+1} = R_{t+1} - price a_t``.

    Example:
        >>> charge_boundaries(torch.zeros(2), torch.tensor([1, 0]), 0.5)
        tensor([-0.5000,  0.0000])
    """
    return rewards - price * boundaries.to(rewards.dtype) if price else rewards


def prediction_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of predictions [*B, T, V] in nats, ``H = log sum_v exp l_v - sum_v p_v l_v``.

    Example:
        >>> prediction_entropy(torch.zeros(4))
        tensor(1.3863)
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.logsumexp(-1) - (wide.softmax(-1) * wide).sum(-1)

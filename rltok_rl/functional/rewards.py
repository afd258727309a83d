"""What a boundary decision is paid: rewards per byte, higher is better.

The reward of the step that ends in byte ``x_{t+1}`` is made of what the model knew about that byte. Anything that does
not depend on the boundaries may be taken away from it without changing the expected policy gradient (Section 2.4).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def early_exit_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """How much better the byte was predicted through the tokens than without them (Eq. 15).

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) - log p_early(x_{t+1} | x_<=t)

    Args:
        final_log_prob: [*B, T] log-likelihood of the byte under the whole model, in nats.
        early_log_prob: [*B, T] the same under the early exit.
        early_entropy: [*B, T] entropy of the early exit's prediction; not used.

    Returns:
        [*B, T].

    Example:
        >>> early_exit_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(2.)
    """
    return final_log_prob - early_log_prob


def log_likelihood_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """The log-likelihood alone, ``R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t)``: plain REINFORCE (Eq. 13).

    Args and returns as for :func:`early_exit_reward`; only ``final_log_prob`` is used.

    Example:
        >>> log_likelihood_reward(torch.tensor(-1.0), torch.tensor(-3.0), torch.tensor(2.0))
        tensor(-1.)
    """
    return final_log_prob


def entropy_relative_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """The log-likelihood relative to what the early exit expected of itself.

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) + H(p_early(. | x_<=t))

    ``-H`` is the early exit's mean log-likelihood under its own prediction: known before the byte is, and free of its
    luck, so that it takes away less noise than the early exit's log-likelihood itself.

    Args and returns as for :func:`early_exit_reward`; ``early_log_prob`` is not used.

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
    """Make boundaries cost something, so that the rate becomes part of the objective instead of a constraint.

        R'_{t+1} = R_{t+1} - price a_t

    Args:
        rewards: [*B, T].
        boundaries: [*B, T] the decisions a_t, bool or 0/1.
        price: nats per boundary.

    Returns:
        [*B, T].

    Example:
        >>> charge_boundaries(torch.zeros(2), torch.tensor([1, 0]), 0.5)
        tensor([-0.5000,  0.0000])
    """
    return rewards - price * boundaries.to(rewards.dtype) if price else rewards


def prediction_entropy(logits: Tensor) -> Tensor:
    """Entropy of a next-byte prediction, ``H = log sum_v exp l_v - sum_v p_v l_v``, in nats.

    Args:
        logits: [*B, T, V].

    Returns:
        [*B, T], at least in float32.

    Example:
        >>> prediction_entropy(torch.zeros(4))
        tensor(1.3863)
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.logsumexp(-1) - (wide.softmax(-1) * wide).sum(-1)

"""What to make large so that good decisions become likelier. Per step, higher is better; a loss negates once.

No function here detaches anything: advantages and old log-probabilities arrive without a gradient, because losses see
to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rltok_rl.functional.reduction import check_mask, zero_masked
from rltok_rl.functional.returns import check_gamma, check_rewards, generalized_advantage, reverse_scan, wide

Clip = float | tuple[float, float]


def score_function(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE: ``A_t log pi(a_t)``, whose gradient is an unbiased estimate of the return's (Eq. 13).

    Args:
        log_probs: [*L] log pi(a_t), with gradient.
        advantages: [*L] A_t.

    Returns:
        [*L].

    Example:
        >>> score_function(torch.tensor([-1.0]), torch.tensor([2.0]))
        tensor([-2.])
    """
    _same_shape(log_probs=log_probs, advantages=advantages)
    return log_probs * advantages


def clipped_ratio(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """PPO's pessimistic bound on the importance-weighted advantage.

        min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t),      r_t = pi(a_t) / pi_old(a_t)

    Args:
        log_probs: [*L] log pi(a_t), with gradient.
        old_log_probs: [*L] of the policy that decided.
        advantages: [*L] A_t.
        clip: epsilon for both sides, or (low, high); low in [0, 1].

    Returns:
        [*L].

    Example:
        >>> clipped_ratio(torch.tensor([0.0]), torch.tensor([-1.0]), torch.tensor([1.0]), 0.2)
        tensor([1.2000])

    Reference: https://arxiv.org/abs/1707.06347
    """
    _same_shape(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    low, high = clip_bounds(clip)
    log_ratios = log_probs - old_log_probs
    least, most = _log1p(-low), _log1p(high)
    # The lesser of the two products, clipped before the exponential: a ratio that overflows would have gradient NaN.
    clipped = torch.where(advantages >= 0, log_ratios.clamp(max=most), log_ratios.clamp(min=least))
    return clipped.exp() * advantages


def importance_weighted(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    max_weight: float | None = None,
    whole_row: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Decisions of another policy, each weighted by how much likelier the learner makes it.

        w_t A_t log pi(a_t),      w_t = min(r_t, max_weight), taken as a constant,      r_t = pi(a_t) / pi_old(a_t)

    Weights of single steps correct each decision for itself; the decisions around it stay those of the old policy.
    Where an advantage depends on them too, the weight that makes the expected gradient right is that of the whole row,
    ``prod_u r_u``, which is unbiased for any old policy that can decide as the new one does, and noisy beyond short
    rows.

    Args:
        log_probs: [*L] log pi(a_t), with gradient.
        old_log_probs: [*L] of the policy that decided.
        advantages: [*L] A_t.
        max_weight: largest weight; None leaves them free.
        whole_row: weigh each step by the product over its row, the last dimension.
        mask: [*L] bool, steps that count in such products; None for all.

    Returns:
        [*L]. With weights of single steps, its gradient equals that of ``r_t A_t`` where no weight is cut.

    Example:
        >>> importance_weighted(torch.tensor([-0.5]), torch.tensor([-0.5]), torch.tensor([2.0]))
        tensor([-1.])

    Reference: Precup, Sutton and Singh, Eligibility Traces for Off-Policy Policy Evaluation, 2000
    """
    _same_shape(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    if max_weight is not None and not max_weight > 0:
        raise ValueError(f"max_weight must be positive or None, got {max_weight}")
    check_mask(mask, log_probs, "log_probs")
    log_weights = log_probs.detach() - old_log_probs  # a constant by definition, not a loss's decision
    if whole_row:
        log_weights = zero_masked(log_weights, mask).sum(-1, keepdim=True)
    if max_weight is not None:
        log_weights = log_weights.clamp(max=math.log(max_weight))
    return log_weights.exp() * advantages * log_probs


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    log_ratios: Tensor,
    gamma: float | Tensor,
    *,
    lmbda: float | Tensor = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V-trace: values and advantages of one policy from the decisions of another.

        delta_t = rho_t (R_{t+1} + gamma V_{t+1} - V_t)         v_t - V_t = delta_t + gamma c_t (v_{t+1} - V_{t+1})
        A_t = rho_t (R_{t+1} + gamma v_{t+1} - V_t)
        rho_t = min(r_t, rho_clip),  c_t = lambda min(r_t, c_clip),  r_t = pi(a_t) / pi_old(a_t)

    Args:
        rewards: [*B, T].
        values: [*B, T] V where each step begins.
        next_values: [*B, T] V where it ends.
        log_ratios: [*B, T] log pi(a_t) - log pi_old(a_t).
        gamma: discount in [0, 1].
        lmbda: in [0, 1].
        rho_clip: largest weight of a temporal difference.
        c_clip: largest weight of what comes after.
        done: [*B, T] bool, steps that end an episode; None for none. Wherever ``terminated`` is, so is this.
        terminated: [*B, T] bool, those after which no value remains; None takes ``done``.
        mask: [*B, T] bool, True where a step is real.

    Returns:
        Advantages and targets v_t, [*B, T] each, 0 where masked.

    Example:
        >>> zero = torch.zeros(2)
        >>> vtrace(torch.ones(2), zero, zero, zero, 0.5)[1]
        tensor([1.5000, 1.0000])

    Reference: https://arxiv.org/abs/1802.01561
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    _same_shape(rewards=rewards, values=values, next_values=next_values, log_ratios=log_ratios)
    for name, value in (("rho_clip", rho_clip), ("c_clip", c_clip)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    dtype = rewards.dtype
    rewards, values, log_ratios = (x.to(wide(rewards)) for x in (rewards, values, log_ratios))
    log_ratios = zero_masked(log_ratios, mask)
    # Clipped before the exponential: a ratio that overflows would have gradient NaN.
    rho, c = (log_ratios.clamp(max=math.log(clip)).exp() for clip in (rho_clip, c_clip))
    one_step = generalized_advantage(  # lambda = 0: the temporal differences alone
        rewards, values, next_values, gamma, 0.0, done=done, terminated=terminated, mask=mask
    )
    ended = done if terminated is None else terminated if done is None else done | terminated
    goes_on = gamma if ended is None else gamma * (~ended).to(c.dtype)
    excess = reverse_scan(rho * one_step, goes_on * lmbda * c)  # v_t - V_t
    after = torch.nn.functional.pad(excess[..., 1:], (0, 1))  # v_{t+1} - V_{t+1}
    advantages = zero_masked(rho * (one_step + goes_on * after), mask)
    return advantages.to(dtype), zero_masked(values + excess, mask).to(dtype)


def clip_bounds(clip: Clip) -> tuple[float, float]:
    """``clip`` as (low, high), checked."""
    low, high = clip if isinstance(clip, Sequence) else (clip, clip)  # a list where it comes from a file
    numbers = not isinstance(low, Tensor)  # buffers of a loss: looking at them would stall the device
    if numbers and (not 0.0 <= low <= 1.0 or not high >= 0.0):
        raise ValueError(f"clip must be epsilon in [0, 1], or (low in [0, 1], high >= 0), got {clip}")
    return low, high


def _log1p(x: float | Tensor) -> float | Tensor:
    """``log(1 + x)`` of a number or of a buffer, -inf at -1."""
    if isinstance(x, Tensor):
        return x.log1p()
    return math.log1p(x) if x > -1 else -math.inf


def _same_shape(**tensors: Tensor) -> None:
    shapes = {name: [*x.shape] for name, x in tensors.items()}
    if len({tuple(shape) for shape in shapes.values()}) != 1:
        raise ValueError(f"{', '.join(shapes)} must share a shape, got {', '.join(map(str, shapes.values()))}")

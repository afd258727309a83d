"""What to make large so that good decisions become likelier. Per step, higher is better; a loss negates once.

No function here detaches anything: advantages and old log-probabilities arrive without a gradient, because losses see
to that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rltok_rl.functional.reduction import zero_masked
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
    ratio = (log_probs - old_log_probs).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def importance_weighted(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, max_weight: float | None = None
) -> Tensor:
    """Decisions of another policy, each weighted by how much likelier the learner makes it.

        w_t A_t log pi(a_t),      w_t = min(pi(a_t) / pi_old(a_t), max_weight), taken as a constant

    Single-step weights correct each decision for itself; the distribution of the decisions before it stays that of
    the old policy. Products of weights, which would correct that too, are :func:`vtrace`'s business.

    Args:
        log_probs: [*L] log pi(a_t), with gradient.
        old_log_probs: [*L] of the policy that decided.
        advantages: [*L] A_t.
        max_weight: largest weight; None leaves them free.

    Returns:
        [*L]. Its gradient equals that of ``r_t A_t`` where no weight is cut.
    """
    _same_shape(log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages)
    if max_weight is not None and not max_weight > 0:
        raise ValueError(f"max_weight must be positive or None, got {max_weight}")
    weights = (log_probs.detach() - old_log_probs).exp()  # a constant by definition, not a loss's decision
    if max_weight is not None:
        weights = weights.clamp(max=max_weight)
    return weights * advantages * log_probs


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    log_ratios: Tensor,
    gamma: float,
    *,
    lmbda: float = 1.0,
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
        done: [*B, T] bool, steps that end an episode; None for none.
        terminated: [*B, T] bool, those after which no value remains; None takes ``done``.
        mask: [*B, T] bool, True where a step is real.

    Returns:
        Advantages and targets v_t, [*B, T] each, 0 where masked.

    Reference: https://arxiv.org/abs/1802.01561
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    _same_shape(rewards=rewards, values=values, next_values=next_values, log_ratios=log_ratios)
    for name, value in (("rho_clip", rho_clip), ("c_clip", c_clip)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    dtype = rewards.dtype
    rewards, log_ratios = (x.to(wide(x)) for x in (rewards, log_ratios))
    ratios = zero_masked(log_ratios, mask).exp()
    rho, trace = ratios.clamp(max=rho_clip), lmbda * ratios.clamp(max=c_clip)
    one_step = generalized_advantage(  # lambda = 0: the temporal differences alone
        rewards, values, next_values, gamma, 0.0, done=done, terminated=terminated, mask=mask
    )
    decay = gamma * trace if done is None else (gamma * trace).masked_fill(done, 0.0)
    excess = zero_masked(reverse_scan(rho * one_step, decay), mask)  # v_t - V_t
    after = torch.nn.functional.pad(excess[..., 1:], (0, 1))  # v_{t+1} - V_{t+1}, none after an end
    after = after if done is None else after.masked_fill(done, 0.0)
    advantages = zero_masked(rho * (one_step + gamma * after), mask)
    return advantages.to(dtype), (zero_masked(values, mask) + excess).to(dtype)


def clip_bounds(clip: Clip) -> tuple[float, float]:
    """``clip`` as (low, high), checked."""
    low, high = clip if isinstance(clip, tuple) else (clip, clip)
    numbers = not isinstance(low, Tensor)  # buffers of a loss: looking at them would stall the device
    if numbers and (not 0.0 <= low <= 1.0 or not high >= 0.0):
        raise ValueError(f"clip must be epsilon in [0, 1], or (low in [0, 1], high >= 0), got {clip}")
    return low, high


def _same_shape(**tensors: Tensor) -> None:
    shapes = {name: [*x.shape] for name, x in tensors.items()}
    if len({tuple(shape) for shape in shapes.values()}) != 1:
        raise ValueError(f"{', '.join(shapes)} must share a shape, got {', '.join(map(str, shapes.values()))}")

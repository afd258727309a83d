"""Policy-gradient objectives, to be maximised. Losses negate them.

Log-probabilities, old log-probabilities and advantages share a shape [*L], which is that of the result. Nothing is
detached here: advantages and old log-probabilities come without gradient. ``clip`` is epsilon, or (low, high).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rltok_rl.functional.reduction import Mask, wide, zero_masked
from rltok_rl.functional.returns import check_gamma, check_rewards, cut, either, generalized_advantage, reverse_scan
from rltok_rl.functional.takes import check_scalar, takes
from rltok_rl.ranges import is_number, shown

Clip = float | tuple[float, float]
_LEAST_CHANCE = 1e-6
"""Of the decision that was not made: weights stay finite where it is rounded to 0, and the policy has no gradient."""


@takes("log_probs, advantages: float *L")
def score_function(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """Compute REINFORCE's ``A_t log pi(a_t)``; its gradient estimates the return's gradient without bias (Eq. 13)."""
    return log_probs * advantages


@takes("log_probs, old_log_probs, advantages: float *L")
def clipped_ratio(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """Compute PPO's pessimistic bound on the importance-weighted advantage (https://arxiv.org/abs/1707.06347).

        min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t),      r_t = pi(a_t) / pi_old(a_t)

    Example:
        >>> clipped_ratio(torch.tensor([0.0]), torch.tensor([-1.0]), torch.tensor([1.0]), 0.2)
        tensor([1.2000])
    """
    low, high = clip_bounds(clip, log_probs.device)
    log_ratios = log_probs - old_log_probs
    least, most = _log1p(-low), _log1p(high)
    # The lesser of the two products, clipped before the exponential: a ratio that overflows would have gradient NaN.
    clipped = torch.where(advantages >= 0, log_ratios.clamp(max=most), log_ratios.clamp(min=least))
    return clipped.exp() * advantages


@takes("log_probs, old_log_probs, advantages: float *L", "max_weight: number (0, inf]")
def importance_weighted(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, max_weight: float | None = None
) -> Tensor:
    """Compute REINFORCE for decisions of another policy, each weighted by how much likelier it has become.

        w_t A_t log pi(a_t),      w_t = min(r_t, max_weight), taken as a constant,      r_t = pi(a_t) / pi_old(a_t)

    Its gradient is that of ``r_t A_t`` if no weight is cut. Weights of single steps ignore that the decisions around
    them are those of the old policy.
    """
    log_weights = log_probs.detach() - old_log_probs
    if max_weight is not None:
        log_weights = log_weights.clamp(max=math.log(max_weight))
    return log_weights.exp() * advantages * log_probs


@takes("advantages, logits: float *L", "floor: number (0, 0.25]", "mask: bool *L")
def natural_advantage(advantages: Tensor, logits: Tensor, *, floor: float = 0.05, mask: Mask = None) -> Tensor:
    """Divide advantages by the Fisher information of the boundary's logit, p (1 - p), down to ``floor``.

        A_t (1/4) / max(p_t (1 - p_t), floor)

    The expected policy gradient of a logit is the effect of its decision times p (1 - p), which vanishes where the
    policy has almost decided. With these advantages it is a quarter of the effect, as at p = 1/2, wherever p (1 - p) is
    at least ``floor``. That is the natural gradient (Kakade 2001) of each logit by itself: the joint information of the
    weights that logits share is not inverted. Advantages are 0 where ``mask`` is False.

    Example:
        >>> natural_advantage(torch.ones(3), torch.tensor([0.0, 2.0, -9.0]))
        tensor([1.0000, 2.3811, 5.0000])
    """
    probs = zero_masked(logits.detach(), mask).to(wide(advantages)).sigmoid()
    advantages = zero_masked(advantages, mask)
    return advantages * (0.25 / (probs * (1.0 - probs)).clamp(min=floor)).to(advantages.dtype)


@takes("differences, logits: float *L", "decided, others: bool *L", "mask: bool *L")
def disarm_advantage(
    differences: Tensor, logits: Tensor, decided: Tensor, others: Tensor, *, mask: Mask = None
) -> Tensor:
    """Weigh the differences G - G' of the returns of two antithetic rows as DisARM does.

        A_t = (G_t - G'_t) max(p_t, 1 - p_t) / (2 |a_t - p_t|)    where the rows decide differently, and 0 elsewhere

    ``decided`` are the decisions a of a row, ``others`` those a' of a row of the same text that draws with random
    numbers 1 - u where this one has u. ``A_t (a_t - p_t)`` is the mean of the ARM estimate ``(G_t - G'_t) (1/2 - u_t)``
    over all u that lead to these decisions: its expectation with less variance, exact if both rows have the same
    probabilities (Dong et al. 2020, https://arxiv.org/abs/2006.10680). Probabilities that depend on earlier decisions
    differ where these do, which is a bias. ``|a_t - p_t|`` counts as at least 1e-6. Advantages are 0 where ``mask`` is
    False.

    Example:
        >>> likely, unlikely = torch.tensor([True, False]), torch.tensor([False, True])
        >>> disarm_advantage(torch.ones(2), torch.tensor([2.0, 2.0]), likely, unlikely)
        tensor([3.6945, 0.5000])
    """
    probs = zero_masked(logits.detach(), mask).to(wide(differences)).sigmoid()
    chance = (decided.to(probs) - probs).abs().clamp(min=_LEAST_CHANCE)
    weights = torch.maximum(probs, 1.0 - probs) / (2.0 * chance)
    return zero_masked(differences, mask) * weights.masked_fill(decided == others, 0.0).to(differences.dtype)


@takes(
    "rewards, values, next_values, log_ratios: float *B T",
    "gamma, lmbda: scalar [0, 1]",
    "rho_clip, c_clip: number (0, inf]",
    "done, terminated, mask: bool *B T",
)
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
    done: Mask = None,
    terminated: Mask = None,
    mask: Mask = None,
) -> tuple[Tensor, Tensor]:
    """Compute V-trace advantages and value targets v_t from the decisions of another policy (IMPALA, arXiv:1802.01561).

        delta_t = rho_t (R_{t+1} + gamma V_{t+1} - V_t)         v_t - V_t = delta_t + gamma c_t (v_{t+1} - V_{t+1})
        A_t = rho_t (R_{t+1} + gamma v_{t+1} - V_t)
        rho_t = min(r_t, rho_clip),  c_t = lambda min(r_t, c_clip),  r_t = pi(a_t) / pi_old(a_t)

    ``log_ratios`` are log r_t; ``done``, ``terminated`` and ``mask`` as in
    :func:`~rltok_rl.functional.returns.generalized_advantage`.
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    dtype = rewards.dtype
    rewards, values, log_ratios = (x.to(wide(rewards)) for x in (rewards, values, zero_masked(log_ratios, mask)))
    # Clipped before the exponential: a ratio that overflows would have gradient NaN.
    rho, c = (log_ratios.clamp(max=math.log(clip)).exp() for clip in (rho_clip, c_clip))
    one_step = generalized_advantage(  # lambda = 0: the temporal differences alone
        rewards, values, next_values, gamma, 0.0, done=done, terminated=terminated, mask=mask
    )
    goes_on = cut(gamma, either(done, terminated), c)
    excess = reverse_scan(rho * one_step, goes_on * lmbda * c)  # v_t - V_t
    after = torch.nn.functional.pad(excess[..., 1:], (0, 1))  # v_{t+1} - V_{t+1}
    advantages = zero_masked(rho * (one_step + goes_on * after), mask)
    return advantages.to(dtype), zero_masked(values + excess, mask).to(dtype)


def clip_bounds(clip: Clip, device: torch.device | None = None) -> tuple[float, float]:
    """Return ``clip`` as (low, high), checked; tensors are on the CPU or on ``device``."""
    bounds = [*clip] if isinstance(clip, Sequence) else [clip, clip]  # files have lists
    right = len(bounds) == 2 and all(x.numel() == 1 if isinstance(x, Tensor) else is_number(x) for x in bounds)
    low, high = bounds if right else (math.nan, math.nan)
    if not right or (_known(low, device) and not 0.0 <= low <= 1.0) or (_known(high, device) and not high >= 0.0):
        raise ValueError(f"clip must be epsilon in [0, 1], or (low in [0, 1], high >= 0), got {shown(clip)}")
    return low, high


def _known(bound: float | Tensor, device: torch.device | None) -> bool:
    """Whether a bound can be compared: reading a loss's buffers on a device would stall it."""
    if not isinstance(bound, Tensor):
        return True
    if torch.compiler.is_compiling():
        return False
    check_scalar("clip", bound)
    if not bound.is_cpu and device is not None and bound.device != device:
        raise ValueError(f"clip must be on the CPU or on the device of log-probabilities, {device}, got {bound.device}")
    return bound.is_cpu


def _log1p(x: float | Tensor) -> float | Tensor:
    """``log(1 + x)`` of a number or of a buffer, -inf at -1."""
    if isinstance(x, Tensor):
        return x.log1p()
    return math.log1p(x) if x > -1 else -math.inf

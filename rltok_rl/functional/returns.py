"""Discounted sums in log2 T steps: returns, TD(lambda), generalised advantages.

All are one recurrence from the end, ``G_t = x_t + c_t G_{t+1}``, over the last dimension. Inputs and results are
[*B, T]. ``done`` is True at steps that end an episode, ``mask`` at real steps: masked rewards do not count and masked
results are 0, but time does not stop there, so masks are for padding before or after a sequence. Sums are at least
float32, results have the dtype of the rewards, and all is differentiable.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltok_rl.functional.reduction import check_mask, zero_masked


def check_gamma(gamma: float | Tensor, name: str = "gamma") -> float | Tensor:
    """Require a number in [0, 1], as a float or a tensor; return it as a float or a tensor without dimensions.

    Values of tensors are checked on the CPU only, outside compiled code: reading them would stall a device.
    """
    if isinstance(gamma, Tensor):
        if gamma.numel() != 1:
            raise ValueError(f"{name} must be one number, got a tensor of shape {[*gamma.shape]}")
        if gamma.device.type != "cpu" or torch.compiler.is_compiling():
            return gamma.reshape(())
    value = float(gamma.detach() if isinstance(gamma, Tensor) else gamma)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return gamma.reshape(()) if isinstance(gamma, Tensor) else value


def check_rewards(rewards: Tensor, mask: Tensor | None) -> None:
    """Require floating-point rewards that are finite at real steps; values are checked on the CPU only.

    Infinity is an error like NaN: times the 0 at an episode's end it would be NaN in the episode before.
    """
    if not rewards.dtype.is_floating_point:
        raise TypeError(f"rewards must be a floating-point tensor, got {rewards.dtype}")
    if rewards.dim() < 1:
        raise ValueError("rewards must have shape [*B, T], got []")
    check_mask(mask, rewards, "rewards")
    if rewards.device.type != "cpu" or torch.compiler.is_compiling():
        return
    real = zero_masked(rewards.detach(), mask)
    if math.isfinite(real.sum().item()):
        return
    wrong = ~real.isfinite()
    if bool(wrong.any()):  # otherwise finite numbers whose sum is not
        first = wrong.nonzero()[0].tolist()
        raise ValueError(f"rewards must be finite numbers, got {real[tuple(first)].item()} at index {first}")


def reverse_scan(x: Tensor, decay: float | Tensor) -> Tensor:
    """Compute ``G_t = x_t + c_t G_{t+1}`` from the end, with ``G_T = 0``, in log2 T steps on whole tensors.

    The reach doubles at every step: ``G^(2s)_t = G^(s)_t + (c_t ... c_{t+s-1}) G^(s)_{t+s}``. Sums of pairs round less
    than a loop does, and there is no matrix product, which autocast would round to bfloat16. ``decay`` is c [*B, T], or
    one number for all.

    Example:
        >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 0.5]))
        tensor([1.5000, 1.0000, 1.0000])
        >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), 0.5)
        tensor([1.7500, 1.5000, 1.0000])
    """
    total, reach, length = x, 1, x.shape[-1]
    if isinstance(decay, Tensor) and decay.dim():
        if x.shape != decay.shape:
            raise ValueError(f"x and decay must share a shape, got {[*x.shape]} and {[*decay.shape]}")
        products = decay.to(x)  # c_t ... c_{t+reach-1}
        while reach < length:
            reached = torch.addcmul(total[..., :-reach], products[..., : length - reach], total[..., reach:])
            total = torch.cat((reached, total[..., -reach:]), -1)
            products = products[..., :-reach] * products[..., reach:]
            reach *= 2
        return total
    product = decay.to(x) if isinstance(decay, Tensor) else decay  # c^reach
    while reach < length and not _vanishes(product, x.dtype):
        near, far = total[..., :-reach], total[..., reach:]
        # torch.add with a Python number saves one pass over memory.
        reached = near + product * far if isinstance(product, Tensor) else torch.add(near, far, alpha=product)
        total = torch.cat((reached, total[..., -reach:]), -1)
        product, reach = product * product, 2 * reach
    return total


def _vanishes(product: float | Tensor, dtype: torch.dtype) -> bool:
    """Whether a number rounds to 0 in ``dtype``."""
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return not isinstance(product, Tensor) and product <= smallest / 2


def discounted_return(
    rewards: Tensor, gamma: float | Tensor, *, done: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Sum each step's future rewards, weighting a reward k steps ahead by gamma^k (Eq. 16).

        G_t = sum_{k >= 0} gamma^k R_{t+1+k},        so        G_t = R_{t+1} + gamma G_{t+1}

    ``R_{t+1}`` is the first reward that decision t can influence, and has index t. (The paper counts from 1 and gives
    the reward of byte i the index i.)

    Example:
        >>> discounted_return(torch.tensor([[1.0, 0.0, 2.0]]), 0.5)
        tensor([[1.5000, 1.0000, 2.0000]])
    """
    gamma = check_gamma(gamma)
    check_rewards(rewards, mask)
    x = zero_masked(rewards, mask).to(wide(rewards))
    returns = reverse_scan(x, _decay(gamma, _ends(done, rewards, "done"), x))
    return zero_masked(returns, mask).to(rewards.dtype)


def generalized_advantage(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float | Tensor,
    lmbda: float | Tensor,
    *,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Sum discounted temporal differences: TD errors at lambda = 0, returns minus values at lambda = 1.

        delta_t = R_{t+1} + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}

    ``values`` and ``next_values`` are V before and after each step. As in TorchRL, ``terminated`` cuts the next value,
    ``done`` (an end of either kind) cuts the sum, and a last step that is not done counts its next value. If
    ``terminated`` is None, it is ``done``.

    Example:
        >>> one = torch.ones(1, 2)
        >>> generalized_advantage(one, 0 * one, 0 * one, 0.5, 1.0)
        tensor([[1.5000, 1.0000]])

    Reference: https://arxiv.org/abs/1506.02438
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    for name, x in (("values", values), ("next_values", next_values)):
        if x.shape != rewards.shape:
            raise ValueError(f"{name} must have the shape of rewards, {[*rewards.shape]}, got {[*x.shape]}")
    ended, absorbed = _absorbing(_ends(done, rewards, "done"), _ends(terminated, rewards, "terminated"))
    # Widened first: a product with gamma in bfloat16 would be rounded before it is added.
    reward, value, ahead = (zero_masked(x, mask).to(wide(rewards)) for x in (rewards, values, next_values))
    deltas = reward + gamma * (ahead if absorbed is None else ahead.masked_fill(absorbed, 0.0)) - value
    advantages = reverse_scan(deltas, _decay(gamma * lmbda, ended, deltas))
    return zero_masked(advantages, mask).to(rewards.dtype)


def td_lambda_return(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float | Tensor,
    lmbda: float | Tensor,
    *,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute the regression target of TD(lambda), ``V_t + A_t`` of :func:`generalized_advantage`.

        G_t = R_{t+1} + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1})

    The equation needs that the value after a step is the value before the next (no target network).

    Example:
        >>> one = torch.ones(1, 2)
        >>> td_lambda_return(one, 0 * one, one, 0.5, 0.0)
        tensor([[1.5000, 1.5000]])

    Reference: Sutton, Learning to Predict by the Methods of Temporal Differences, 1988
    """
    options = {"done": done, "terminated": terminated, "mask": mask}
    advantages = generalized_advantage(rewards, values, next_values, gamma, lmbda, **options)
    return zero_masked(values, mask) + advantages


def wide(x: Tensor) -> torch.dtype:
    """Return the dtype to sum in: that of ``x``, at least float32. In bfloat16 gamma = 0.99 is another number."""
    return torch.promote_types(x.dtype, torch.float32)


def _ends(flags: Tensor | None, like: Tensor, name: str) -> Tensor | None:
    if flags is None:
        return None
    if flags.dtype != torch.bool:
        raise TypeError(f"{name} must be bool, got {flags.dtype}")
    if flags.shape != like.shape:
        raise ValueError(f"{name} must have the shape of rewards, {[*like.shape]}, got {[*flags.shape]}")
    return flags


def _decay(factor: float | Tensor, cut: Tensor | None, like: Tensor) -> float | Tensor:
    """The factor [*B, T], 0 at cuts; the factor itself without cuts."""
    return factor if cut is None else (~cut).to(like.dtype) * factor


def _absorbing(done: Tensor | None, terminated: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """``done`` and ``terminated``; steps that terminate are done."""
    if terminated is None:
        return done, done
    return (terminated if done is None else done | terminated), terminated

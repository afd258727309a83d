"""Discounted sums in log2 T steps: returns and generalised advantages.

All are one recurrence from the end, ``G_t = x_t + c_t G_{t+1}``, over the last dimension of [*B, T]. ``done`` is True
at steps that end an episode. ``mask`` is True at real steps; it is for padding before or after a sequence, because
discounting continues through masked steps. Sums are at least float32, results have the dtype of the rewards and are 0
where masked.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltok_rl.functional.reduction import Mask, wide, zero_masked
from rltok_rl.functional.takes import check_scalar, readable, takes
from rltok_rl.fused import scan, takes_kernels
from rltok_rl.ranges import check_number

MANY = 1024
"""Fewer rewards are summed in plain torch."""


def check_gamma(gamma: float | Tensor, name: str = "gamma") -> float | Tensor:
    """Require a number in [0, 1]; return a float, or a tensor without dimensions."""
    if not isinstance(gamma, (Tensor, int, float)):  # which a compiled graph tells apart
        gamma = check_number(name, gamma, "[0, 1]")
    if isinstance(gamma, Tensor):
        if not torch.compiler.is_compiling():
            check_scalar(name, gamma)
        gamma = gamma.reshape(())
        if not readable(gamma):
            return gamma
    value = float(gamma.detach() if isinstance(gamma, Tensor) else gamma)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return gamma if isinstance(gamma, Tensor) else value


def check_rewards(rewards: Tensor, mask: Mask) -> None:
    """Require finite rewards at real steps.

    Infinity is an error like NaN: times the 0 at an episode's end it would be NaN in the episode before.
    """
    real = zero_masked(rewards.detach(), mask)
    if not readable(rewards) or math.isfinite(real.sum().item()):
        return
    wrong = (~real.isfinite()).nonzero().tolist()
    if wrong:  # otherwise finite numbers whose sum is not
        raise ValueError(f"rewards must be finite numbers, got {real[tuple(wrong[0])].item()} at index {wrong[0]}")


@takes("x: float *B T", "decay: scalar | float *B T")
def reverse_scan(x: Tensor, decay: float | Tensor) -> Tensor:
    """Compute ``G_t = x_t + c_t G_{t+1}`` from the end, with ``G_T = 0``, in log2 T steps on whole tensors.

    The reach doubles at every step: ``G^(2s)_t = G^(s)_t + (c_t ... c_{t+s-1}) G^(s)_{t+s}``. Sums of pairs round less
    than a loop does, and there is no matrix product, which autocast would round to bfloat16. ``decay`` is c [*B, T], or
    one number for all. Many rewards without gradients are summed by one fused loop instead, in float64.

    Example:
        >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 0.5]))
        tensor([1.5000, 1.0000, 1.0000])
        >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), 0.5)
        tensor([1.7500, 1.5000, 1.0000])
    """
    total, reach, length = x, 1, x.shape[-1]
    tensors = (x, decay) if isinstance(decay, Tensor) else (x,)
    graded = torch.is_grad_enabled() and any(y.requires_grad for y in tensors)
    if x.numel() >= MANY and not graded and takes_kernels(*tensors, dtypes=(torch.float32, torch.float64)):
        return scan(x, decay)
    if isinstance(decay, Tensor) and decay.dim():
        products = decay.to(x)  # c_t ... c_{t+reach-1}
        while reach < length:
            reached = torch.addcmul(total[..., :-reach], products[..., : length - reach], total[..., reach:])
            total = torch.cat((reached, total[..., -reach:]), -1)
            products = products[..., :-reach] * products[..., reach:]
            reach *= 2
        return total
    product = decay.to(x) if isinstance(decay, Tensor) else float(decay)  # c^reach
    rounded_to_0 = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps / 2
    while reach < length and (isinstance(product, Tensor) or not abs(product) <= rounded_to_0):
        near, far = total[..., :-reach], total[..., reach:]
        if isinstance(product, Tensor) or not abs(product) <= torch.finfo(x.dtype).max:
            reached = near + product * far
        else:  # saves one pass over memory
            reached = torch.add(near, far, alpha=product)
        total = torch.cat((reached, total[..., -reach:]), -1)
        product, reach = product * product, 2 * reach
    return total


@takes("rewards: float *B T", "gamma: scalar [0, 1]", "done, mask: bool *B T")
def discounted_return(rewards: Tensor, gamma: float | Tensor, *, done: Mask = None, mask: Mask = None) -> Tensor:
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
    returns = reverse_scan(x, cut(gamma, done, x))
    return zero_masked(returns, mask).to(rewards.dtype)


@takes("rewards, values, next_values: float *B T", "gamma, lmbda: scalar [0, 1]", "done, terminated, mask: bool *B T")
def generalized_advantage(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float | Tensor,
    lmbda: float | Tensor,
    *,
    done: Mask = None,
    terminated: Mask = None,
    mask: Mask = None,
) -> Tensor:
    """Sum discounted temporal differences: TD errors at lambda = 0, returns minus values at 1 (arXiv:1506.02438).

        delta_t = R_{t+1} + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}

    ``values`` and ``next_values`` are V before and after each step. As in TorchRL, ``terminated`` (default: ``done``)
    cuts the next value, ``done`` (an end of either kind) cuts the sum, and a last step that is not done counts its next
    value. ``V_t + A_t`` is the regression target of TD(lambda).
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    ended, absorbed = either(done, terminated), done if terminated is None else terminated
    # Widened first: a product with gamma in bfloat16 would be rounded before it is added.
    reward, value, ahead = (zero_masked(x, mask).to(wide(rewards)) for x in (rewards, values, next_values))
    deltas = reward + gamma * (ahead if absorbed is None else ahead.masked_fill(absorbed, 0.0)) - value
    advantages = reverse_scan(deltas, cut(gamma * lmbda, ended, deltas))
    return zero_masked(advantages, mask).to(rewards.dtype)


@takes("factor: scalar | float *L", "ends: bool? *L", "like: float *L")
def cut(factor: float | Tensor, ends: Mask, like: Tensor) -> float | Tensor:
    """Return a discount that is 0 at ends, [*B, T]; the factor itself if there are none."""
    return factor if ends is None else (~ends).to(like.dtype) * factor


@takes("done, terminated: bool? *L")
def either(done: Mask, terminated: Mask) -> Mask:
    """Return the steps that are done, which includes those that terminate."""
    return done if terminated is None else terminated if done is None else done | terminated

"""Discounted sums over time in a logarithmic number of steps: returns, TD(lambda), generalised advantages.

Everything here is one recurrence run backwards, ``G_t = x_t + c_t G_{t+1}``. Time is the last dimension, T long.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.reduction import check_mask, zero_masked

_BLOCK = 32


def check_gamma(gamma: float | Tensor, name: str = "gamma") -> float:
    """Require a number in [0, 1]; return it as a float."""
    value = float(gamma)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return value


def check_rewards(rewards: Tensor, mask: Tensor | None) -> None:
    """Require floating-point rewards without NaN at real steps; values are looked at on the CPU only."""
    if not rewards.dtype.is_floating_point:
        raise TypeError(f"rewards must be a floating-point tensor, got {rewards.dtype}")
    if rewards.dim() < 1:
        raise ValueError("rewards must have shape [*B, T], got []")
    check_mask(mask, rewards, "rewards")
    if rewards.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = zero_masked(rewards.detach(), mask).isnan()
        if bool(wrong.any()):
            raise ValueError(f"rewards must be numbers, got nan at index {wrong.nonzero()[0].tolist()}")


def reverse_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Run ``G_t = x_t + c_t G_{t+1}`` from the end, with ``G_T = 0``, in log2 T steps on whole tensors.

    Twice the reach at every step: ``G^(2s)_t = G^(s)_t + (c_t ... c_{t+s-1}) G^(s)_{t+s}``.

    Args:
        x: [*B, T].
        decay: [*B, T] the c_t; c_{T-1} meets nothing.

    Returns:
        [*B, T], differentiable with respect to both.

    Example:
        >>> reverse_scan(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.0, 0.5]))
        tensor([1.5000, 1.0000, 1.0000])
    """
    if x.shape != decay.shape:
        raise ValueError(f"x and decay must share a shape, got {[*x.shape]} and {[*decay.shape]}")
    total, product, reach, length = x, decay, 1, x.shape[-1]
    while reach < length:
        total = total + product * F.pad(total[..., reach:], (0, reach))
        reach *= 2
        if reach < length:
            half = reach // 2
            product = product * F.pad(product[..., half:], (0, half))
    return total


def discounted_return(
    rewards: Tensor, gamma: float, *, done: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Sum each step's future rewards, weighting a reward k steps ahead by gamma^k (Eq. 16).

        G_t = sum_{k >= 0} gamma^k R_{t+1+k},        so        G_t = R_{t+1} + gamma G_{t+1}

    ``R_{t+1}`` is the reward of the step that decision t begins, the first that it can influence, and stands at index
    t. The paper counts from 1 and gives the reward of byte i the index i.

    Args:
        rewards: [*B, T] reward of each step, higher is better.
        gamma: discount in [0, 1]; 0 keeps each reward alone, 1 sums to the end.
        done: [*B, T] bool, steps that end an episode: what comes after them belongs to another. None for none.
        mask: [*B, T] bool, True where a step is real. Rewards elsewhere do not count, and returns there are 0.

    Returns:
        [*B, T] in the dtype of ``rewards``, summed at least in float32; differentiable.

    Example:
        >>> discounted_return(torch.tensor([[1.0, 0.0, 2.0]]), 0.5)
        tensor([[1.5000, 1.0000, 2.0000]])
    """
    gamma = check_gamma(gamma)
    check_rewards(rewards, mask)
    x = zero_masked(rewards, mask).to(wide(rewards))
    cut = _ends(done, rewards, "done")
    returns = _geometric(x, gamma) if cut is None else reverse_scan(x, _decay(gamma, cut, x))
    return zero_masked(returns, mask).to(rewards.dtype)


def generalized_advantage(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float,
    lmbda: float,
    *,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Sum discounted temporal differences: TD errors at lambda = 0, returns minus values at lambda = 1.

        delta_t = R_{t+1} + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}

    As in TorchRL: ``terminated`` cuts the value of what follows, ``done`` (an end of either kind) cuts the sum, and a
    last step that is not done still counts the value of what follows.

    Args:
        rewards: [*B, T].
        values: [*B, T] V of the state in which each step begins.
        next_values: [*B, T] V of the state in which it ends.
        gamma: discount in [0, 1].
        lmbda: in [0, 1].
        done: [*B, T] bool; None for none.
        terminated: [*B, T] bool; None takes ``done``.
        mask: [*B, T] bool, True where a step is real.

    Returns:
        [*B, T], 0 where masked; differentiable.

    Example:
        >>> one = torch.ones(1, 2)
        >>> generalized_advantage(one, 0 * one, 0 * one, 0.5, 1.0)
        tensor([[1.5000, 1.0000]])

    Reference: https://arxiv.org/abs/1506.02438
    """
    gamma, lmbda = check_gamma(gamma), check_gamma(lmbda, "lmbda")
    check_rewards(rewards, mask)
    for name, given in (("values", values), ("next_values", next_values)):
        if given.shape != rewards.shape:
            raise ValueError(f"{name} must have the shape of rewards, {[*rewards.shape]}, got {[*given.shape]}")
    ended = _ends(done, rewards, "done")
    absorbed = ended if terminated is None else _ends(terminated, rewards, "terminated")
    ahead = next_values if absorbed is None else next_values.masked_fill(absorbed, 0.0)
    dtype = wide(rewards)
    deltas = zero_masked(rewards.to(dtype) + gamma * ahead - values, mask)
    # A masked step is past the end: what stands there is 0, and so is its sum.
    advantages = reverse_scan(deltas, _decay(gamma * lmbda, ended, deltas))
    return zero_masked(advantages, mask).to(rewards.dtype)


def td_lambda_return(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float,
    lmbda: float,
    *,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The return that TD(lambda) regresses on, ``V_t + A_t`` of :func:`generalized_advantage`.

        G_t = R_{t+1} + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1})

    Args and semantics as there.

    Example:
        >>> one = torch.ones(1, 2)
        >>> td_lambda_return(one, 0 * one, one, 0.5, 0.0)
        tensor([[1.5000, 1.5000]])
    """
    options = {"done": done, "terminated": terminated, "mask": mask}
    advantages = generalized_advantage(rewards, values, next_values, gamma, lmbda, **options)
    return zero_masked(values, mask) + advantages


def wide(x: Tensor) -> torch.dtype:
    """The dtype to sum ``x`` in: its own, at least float32. In bfloat16 even gamma = 0.99 is another number."""
    return torch.promote_types(x.dtype, torch.float32)


def _ends(flags: Tensor | None, like: Tensor, name: str) -> Tensor | None:
    if flags is None:
        return None
    if flags.dtype != torch.bool:
        raise TypeError(f"{name} must be bool, got {flags.dtype}")
    if flags.shape != like.shape:
        raise ValueError(f"{name} must have the shape of rewards, {[*like.shape]}, got {[*flags.shape]}")
    return flags


def _decay(factor: float, cut: Tensor | None, like: Tensor) -> Tensor:
    full = torch.full_like(like, factor)
    return full if cut is None else full.masked_fill(cut, 0.0)


def _geometric(x: Tensor, gamma: float) -> Tensor:
    """The recurrence for one constant factor: sums within blocks as a matrix product, then a scan over blocks."""
    length = x.shape[-1]
    if length <= _BLOCK:
        return x @ _triangle(length, gamma, x)
    padding = -length % _BLOCK
    blocks = F.pad(x, (0, padding)).unflatten(-1, (-1, _BLOCK))  # [*B, T / k, k]
    within = blocks @ _triangle(_BLOCK, gamma, x)
    first = within[..., 0]  # [*B, T / k] sum of each block as seen from its start
    total = reverse_scan(first, torch.full_like(first, gamma**_BLOCK))
    later = F.pad(total[..., 1:], (0, 1))  # what begins after each block
    # gamma^(distance to the next block); exact powers in float64, rounded once
    powers = gamma ** torch.arange(_BLOCK, 0, -1, dtype=torch.float64, device=x.device)
    within = torch.addcmul(within, later.unsqueeze(-1), powers.to(x.dtype))
    return within.flatten(-2)[..., :length]


def _triangle(size: int, gamma: float, like: Tensor) -> Tensor:
    """[size, size] with gamma^(s - t) at [s, t] for s >= t."""
    steps = torch.arange(size, device=like.device)
    distance = steps[:, None] - steps  # s - t
    powers = gamma ** distance.clamp(min=0).double()
    return torch.where(distance >= 0, powers, 0.0).to(like.dtype)

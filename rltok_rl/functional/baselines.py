"""What is taken from returns to make advantages.

A baseline that does not depend on the decision it judges leaves the expected policy gradient as it is and takes noise
from it (Section 2.4). All functions take returns [*B, T], compare the rows of all leading dimensions at each position,
and say what they do to the expected gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.reduction import check_mask, masked_mean, sum_and_count, zero_masked
from rltok_rl.renamed import RenamedKeys, renamed_names


def no_baseline(returns: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None) -> Tensor:
    """The returns themselves, ``A = G``: unbiased, and as noisy as they are.

    Args:
        returns: [*B, T].
        mask: [*B, T] bool, True where a step is real; None for all.
        process_group: not used.

    Returns:
        [*B, T], 0 where masked.

    Example:
        >>> no_baseline(torch.tensor([3.0, 5.0]), mask=torch.tensor([True, False]))
        tensor([3., 0.])
    """
    _check_returns(returns, mask)
    return zero_masked(returns, mask)


def batch_mean(returns: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None) -> Tensor:
    """Subtract the mean over rows at the same position (Eq. 17).

        A_{t,b} = G_{t,b} - (1/n) sum_b' G_{t,b'}

    The mean holds the row itself, which shrinks the expected gradient by exactly (n - 1)/n where rows are independent;
    :func:`leave_one_out` undoes that.

    Args:
        returns: [*B, T], at least two rows.
        mask: [*B, T] bool, True where a step is real; None for all. n counts the real rows of a position.
        process_group: average over the rows of all its processes.

    Returns:
        [*B, T], 0 where masked, and where a position has one real row alone.

    Example:
        >>> batch_mean(torch.tensor([[1.0], [2.0], [6.0]])).T
        tensor([[-2., -1.,  3.]])
    """
    centred, _ = _centre(returns, mask, process_group, "batch_mean")
    return centred.to(returns.dtype)


def leave_one_out(returns: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None) -> Tensor:
    """Subtract the mean over the other rows at the same position: unbiased.

        A_{t,b} = G_{t,b} - 1/(n-1) sum_{b' != b} G_{t,b'}  =  n/(n-1) (G_{t,b} - mean_b' G_{t,b'})

    Args:
        returns: [*B, T], at least two rows.
        mask: [*B, T] bool, True where a step is real; None for all. n counts the real rows of a position.
        process_group: compare with the rows of all its processes.

    Returns:
        [*B, T], 0 where masked. A position with one real row alone has no others to compare with: 0 too, so that such
        decisions get no gradient, and the others the one they should have.

    Example:
        >>> leave_one_out(torch.tensor([[1.0], [2.0], [6.0]])).T
        tensor([[-3.0000, -1.5000,  4.5000]])

    Reference: Kool, van Hoof and Welling, Buy 4 REINFORCE Samples, Get a Baseline for Free!, 2019
    """
    centred, count = _centre(returns, mask, process_group, "leave_one_out")
    return (centred * (count / (count - 1).clamp(min=1))).to(returns.dtype)


def group_mean(
    returns: Tensor,
    *,
    group_size: int,
    exclude_self: bool = True,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Subtract the mean over rows of the same group at the same position.

        A_{t,b} = G_{t,b} - 1/(g-1) sum_{b' != b in the group of b} G_{t,b'}

    Rows that read one text with boundaries drawn independently share all that the text contributes to their returns, so
    that subtracting it leaves what boundaries did.

    Args:
        returns: [B, T] where rows come in groups: 0 .. g-1, g .. 2g-1, and so on.
        group_size: g, at least 2; divides B.
        exclude_self: subtract the mean of the others (unbiased) instead of the mean of all (shrinks by (g-1)/g).
        mask: [B, T] bool, True where a step is real; None for all.
        process_group: not used: a group lives on one process.

    Returns:
        [B, T], 0 where masked.

    Example:
        >>> group_mean(torch.tensor([[1.0], [2.0], [10.0], [14.0]]), group_size=2).T
        tensor([[-1.,  1., -4.,  4.]])

    Reference: https://arxiv.org/abs/2402.03300, without its division by the spread
    """
    if returns.dim() != 2 or group_size < 2 or len(returns) % group_size:
        raise ValueError(
            f"group_size must be at least 2 and divide the rows of returns [B, T], got group_size={group_size} "
            f"and returns {[*returns.shape]}"
        )
    _check_returns(returns, mask)
    apart = returns.unflatten(0, (-1, group_size)).transpose(0, 1)  # [g, B / g, T]: the group is the leading dimension
    apart_mask = None if mask is None else mask.unflatten(0, (-1, group_size)).transpose(0, 1)
    total, count = sum_and_count(apart, apart_mask, dim=0)
    centred = zero_masked(apart - total / count.clamp(min=1), apart_mask)
    if exclude_self:
        centred = centred * (count / (count - 1).clamp(min=1))
    return centred.transpose(0, 1).flatten(0, 1).to(returns.dtype)


def z_score(
    returns: Tensor,
    *,
    eps: float = 1e-8,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Subtract the mean over all steps and divide by their standard deviation: PPO's habit.

        A = (G - mean G) / (std G + eps),        0 where all returns are equal

    Not an unbiased estimate of anything: the scale depends on the decisions that it judges. It keeps steps of one size
    whatever the rewards are.

    Args:
        returns: [*B, T], at least two real steps.
        eps: added to the standard deviation.
        mask: [*B, T] bool, True where a step is real; None for all.
        process_group: statistics of all its processes.

    Returns:
        [*B, T], 0 where masked.

    Example:
        >>> z_score(torch.tensor([[1.0, 3.0]]))
        tensor([[-1.,  1.]])

    Reference: https://arxiv.org/abs/2006.05990 measures what it does to PPO
    """
    if returns.numel() < 2:
        raise ValueError(f"z_score needs at least 2 steps, got returns {[*returns.shape]}")
    _check_returns(returns, mask)
    wide = returns.to(torch.promote_types(returns.dtype, torch.float32))
    mean = masked_mean(wide, mask, process_group=process_group)
    deviation = zero_masked(wide - mean, mask)
    variance = masked_mean(deviation.square(), mask, process_group=process_group)
    # A spread within the rounding of the mean is none: equal returns would come out as noise of size 1. The root is
    # taken of what is not 0, where its slope is finite.
    spreads = variance > (8 * torch.finfo(deviation.dtype).eps * mean).square()
    spread = torch.where(spreads, variance, 1.0).sqrt()
    return torch.where(spreads, deviation / (spread + eps), 0.0).to(returns.dtype)


class RunningMean(NamedTuple):
    """What :func:`running_mean` remembers."""

    total: Tensor  # [T] decayed sum of the returns of earlier batches, per position
    count: Tensor  # type: ignore[assignment]  # [T] decayed number of them; hides tuple.count

    @classmethod
    def empty(cls, num_steps: int, *, device: torch.device | str | None = None) -> RunningMean:
        """Nothing seen yet."""
        return cls(torch.zeros(num_steps, device=device), torch.zeros(num_steps, device=device))


def running_mean(
    returns: Tensor,
    state: RunningMean,
    *,
    decay: float = 0.9,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> tuple[Tensor, RunningMean]:
    """Subtract, per position, the mean over earlier batches: unbiased, and usable with a single row.

        A_{t,b} = G_{t,b} - S_t / N_t,      then  S_t <- decay S_t + sum_b G_{t,b},      N_t <- decay N_t + n_t

    A batch enters the mean only for those after it. Sums and counts fade together, so that nothing pulls the mean
    towards its start at 0.

    Args:
        returns: [*B, T].
        state: what earlier batches left; ``RunningMean.empty(T)`` at first, which subtracts nothing.
        decay: what a batch weighs after one more, in [0, 1].
        mask: [*B, T] bool, True where a step is real; None for all.
        process_group: remember the rows of all its processes.

    Returns:
        Advantages [*B, T], 0 where masked, and the next state.

    Example:
        >>> first, state = running_mean(torch.tensor([[4.0]]), RunningMean.empty(1))
        >>> second, state = running_mean(torch.tensor([[5.0]]), state)
        >>> first, second
        (tensor([[4.]]), tensor([[1.]]))

    Reference: Williams, Simple Statistical Gradient-Following Algorithms (reinforcement comparison), 1992
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay must lie in [0, 1], got {decay}")
    if state.total.shape != returns.shape[-1:]:
        raise ValueError(f"state must hold the {returns.shape[-1]} positions of returns, got {[*state.total.shape]}")
    _check_returns(returns, mask)
    known = state.total / state.count.clamp(min=torch.finfo(state.count.dtype).tiny)
    advantages = zero_masked(returns - known, mask).to(returns.dtype)
    rows = returns.detach().reshape(-1, returns.shape[-1])
    row_mask = None if mask is None else mask.reshape(rows.shape)
    total, count = (x.squeeze(0) for x in sum_and_count(rows, row_mask, dim=0, process_group=process_group))
    return advantages, RunningMean(decay * state.total + total, decay * state.count + count)


def _check_returns(returns: Tensor, mask: Tensor | None) -> None:
    """Require floating-point returns, whose mean they can be compared with, and a mask that fits."""
    if not returns.dtype.is_floating_point:
        raise TypeError(f"returns must be a floating-point tensor, got {returns.dtype}")
    check_mask(mask, returns, "returns")


def _centre(
    returns: Tensor, mask: Tensor | None, process_group: ProcessGroup | None, name: str
) -> tuple[Tensor, Tensor]:
    """Returns minus their mean over rows at each position, and the number of real rows there."""
    _check_returns(returns, mask)
    leading = tuple(range(returns.dim() - 1))
    num_rows = returns[..., :1].numel() if returns.shape[-1] else 2
    if process_group is not None:
        num_rows *= process_group.size()
    if not leading or num_rows < 2:
        raise ValueError(
            f"{name} compares rows with each other and needs at least 2 of them, got returns {[*returns.shape]}; "
            f"running_mean and no_baseline work with one"
        )
    total, count = sum_and_count(returns, mask, dim=leading, process_group=process_group)
    return zero_masked(returns - total / count.clamp(min=1), mask), count  # at least float32


__all__ = [
    "BASELINES",
    "RunningMean",
    "batch_mean",
    "control_variate",
    "group_mean",
    "leave_one_out",
    "no_baseline",
    "running_mean",
    "z_score",
]

BASELINES: dict[str, Callable[..., Tensor]] = RenamedKeys(
    "baseline",
    {
        "none": no_baseline,
        "batch_mean": batch_mean,
        "leave_one_out": leave_one_out,
        "z_score": z_score,
    },
)
"""Baselines by name that need nothing beside the returns: ``(returns, *, mask, process_group) -> advantages``."""

__getattr__ = renamed_names(
    globals(), {"batch_centred": "batch_mean", "group_centred": "group_mean", "z_normalised": "z_score"}
)

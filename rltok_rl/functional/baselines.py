"""Baselines: functions from returns to advantages that reduce the variance of the policy gradient.

A baseline that does not depend on the decision it judges leaves the expected gradient unchanged (Section 2.4). All
take floating-point returns [*B, T], compare the rows of all leading dimensions at each position, and return advantages
of that shape, 0 where masked. n counts the real rows at a position; with ``process_group`` those of all its processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rltok_rl.functional.reduction import (
    Group,
    Mask,
    masked_mean,
    row_groups,
    sum_and_count,
    wide,
    zero_masked,
)
from rltok_rl.functional.takes import check_dense, check_finite, check_result, readable, takes
from rltok_rl.ranges import check_number
from rltok_rl.renamed import RenamedKeys, renamed_names


@takes("returns: float *B T", "mask: bool *B T")
def no_baseline(returns: Tensor, *, mask: Mask = None, process_group: Group = None) -> Tensor:
    """Return the returns, ``A = G``: unbiased and noisy."""
    return zero_masked(returns, mask)


@takes("returns: float *B T", "mask: bool *B T")
def batch_mean(returns: Tensor, *, mask: Mask = None, process_group: Group = None) -> Tensor:
    """Subtract the mean over rows at the same position (Eq. 17).

        A_{t,b} = G_{t,b} - (1/n) sum_b' G_{t,b'}

    The mean includes the row itself, which shrinks the expected gradient by exactly (n - 1)/n if rows are independent;
    :func:`leave_one_out` undoes that. Needs two rows; a position with one real row gets 0.

    Example:
        >>> batch_mean(torch.tensor([[1.0], [2.0], [6.0]])).T
        tensor([[-2., -1.,  3.]])
    """
    centred, _ = _centre(returns, mask, process_group, "batch_mean")
    return centred.to(returns.dtype)


@takes("returns: float *B T", "mask: bool *B T")
def leave_one_out(returns: Tensor, *, mask: Mask = None, process_group: Group = None) -> Tensor:
    """Subtract the mean over the other rows at the same position: unbiased (Kool, van Hoof and Welling, 2019).

        A_{t,b} = G_{t,b} - 1/(n-1) sum_{b' != b} G_{t,b'}  =  n/(n-1) (G_{t,b} - mean_b' G_{t,b'})

    Needs two rows. A position with one real row gets 0: no gradient for its decisions, the right one for the others.

    Example:
        >>> leave_one_out(torch.tensor([[1.0], [2.0], [6.0]])).T
        tensor([[-3.0000, -1.5000,  4.5000]])
    """
    centred, count = _centre(returns, mask, process_group, "leave_one_out")
    return (centred * (count / (count - 1).clamp(min=1))).to(returns.dtype)


@takes("returns: float B T", "group_size: whole [2, inf)", "exclude_self: switch", "mask: bool B T")
def group_mean(
    returns: Tensor, *, group_size: int, exclude_self: bool = True, mask: Mask = None, process_group: Group = None
) -> Tensor:
    """Subtract the mean over the other rows of the same group at the same position.

        A_{t,b} = G_{t,b} - 1/(g-1) sum_{b' != b in the group of b} G_{t,b'}

    If rows of a group read the same text with independent boundaries, this removes the text's share of the returns, as
    in GRPO (https://arxiv.org/abs/2402.03300). Groups are g consecutive rows [B, T] of one process; g is at least 2 and
    divides B. ``exclude_self=False`` subtracts the mean of all rows, which shrinks the gradient by (g-1)/g.

    Example:
        >>> group_mean(torch.tensor([[1.0], [2.0], [10.0], [14.0]]), group_size=2).T
        tensor([[-1.,  1., -4.,  4.]])
    """
    if len(returns) % group_size:
        raise ValueError(
            f"group_size must be at least 2 and divide the rows of returns [B, T], got group_size={group_size} "
            f"and returns {[*returns.shape]}"
        )
    groups = returns.unflatten(0, (-1, group_size)).transpose(0, 1)  # [g, B / g, T]
    group_mask = None if mask is None else mask.unflatten(0, (-1, group_size)).transpose(0, 1)
    total, count = sum_and_count(groups, group_mask, dim=0)
    centred = zero_masked(groups - total / count.clamp(min=1), group_mask)
    if exclude_self:
        centred = centred * (count / (count - 1).clamp(min=1))
    return centred.transpose(0, 1).flatten(0, 1).to(returns.dtype)


@takes("returns: float *B T", "eps: number [0, inf)", "mask: bool *B T")
def z_score(returns: Tensor, *, eps: float = 1e-8, mask: Mask = None, process_group: Group = None) -> Tensor:
    """Subtract the mean over all steps and divide by their standard deviation, as PPO often does.

        A = (G - mean G) / (std G + eps),        0 if all returns are equal, NaN if one is not finite

    Biased: the scale depends on the decisions that it judges. It keeps the size of updates independent of the rewards;
    https://arxiv.org/abs/2006.05990 measures its effect on PPO.
    """
    if returns.numel() < 2:
        raise ValueError(f"z_score needs at least 2 steps, got returns {[*returns.shape]}")
    values = returns.to(wide(returns))
    mean = masked_mean(values, mask, process_group=process_group)
    deviation = zero_masked(values - mean, mask)
    variance = masked_mean(deviation.square(), mask, process_group=process_group)
    # Equal returns differ by the rounding of their mean, which would become noise of size 1. The square root of 0 has
    # no finite slope.
    equal = variance <= (8 * torch.finfo(deviation.dtype).eps * mean).square()  # NaN is not equal, and stays
    spread = torch.where(equal, 1.0, variance).sqrt()
    return torch.where(equal, 0.0, deviation / (spread + eps)).to(returns.dtype)


@takes("returns: float B T", "baseline: callable", "rows_per_mean: whole [1, inf)", "mask: bool B T")
def per_rows(
    returns: Tensor,
    *,
    baseline: Callable[..., Tensor],
    rows_per_mean: int,
    mask: Mask = None,
    process_group: Group = None,
) -> Tensor:
    """Apply a baseline to each group of consecutive rows [rows_per_mean, T] as if there were no others.

        A_g = baseline(G_g)        for g = 1 .. B / rows_per_mean

    Micro-batches of so many rows give such groups if each takes its own means, as in the released code. A group lies in
    one process, so ``process_group`` is not used.

    Example:
        >>> per_rows(torch.tensor([[1.0], [2.0], [10.0], [14.0]]), baseline=batch_mean, rows_per_mean=2).T
        tensor([[-0.5000,  0.5000, -2.0000,  2.0000]])
    """
    parts = row_groups(rows_per_mean, returns, mask)
    return torch.cat([check_result("baseline", baseline(x, mask=real), x, x.shape) for x, real in parts])


class RunningMean(NamedTuple):
    """The memory of :func:`running_mean`: decayed sum and number of earlier returns per position, [T] each."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count

    @classmethod
    def empty(cls, num_steps: int, *, device: torch.device | str | None = None) -> RunningMean:
        """Return the memory before the first batch."""
        if not torch.compiler.is_compiling():
            check_number("num_steps", num_steps, "[0, 1e9]", whole=True)
        return cls(torch.zeros(num_steps, device=device), torch.zeros(num_steps, device=device))


@takes("returns: float *B T", "decay: number [0, 1]", "mask: bool *B T")
def running_mean(
    returns: Tensor, state: RunningMean, *, decay: float = 0.9, mask: Mask = None, process_group: Group = None
) -> tuple[Tensor, RunningMean]:
    """Subtract, per position, the mean over earlier batches: unbiased, and usable with a single row.

        A_{t,b} = G_{t,b} - S_t / N_t,      then  S_t <- decay S_t + sum_b G_{t,b},      N_t <- decay N_t + n_t

    Returns advantages and the next state; ``RunningMean.empty(T)`` is the first. Sums and counts decay together, so the
    start at 0 adds no bias (reinforcement comparison; Williams, 1992). Returns at real steps must be finite, or the
    memory would never be finite again.

    Example:
        >>> first, state = running_mean(torch.tensor([[4.0]]), RunningMean.empty(1))
        >>> second, state = running_mean(torch.tensor([[5.0]]), state)
        >>> first, second
        (tensor([[4.]]), tensor([[1.]]))
    """
    if not isinstance(state, RunningMean):
        raise TypeError(f"state must be a RunningMean, got {type(state).__name__}")
    for part in state:
        if not torch.compiler.is_compiling():
            check_dense("state", part)
        if part.shape != returns.shape[-1:]:
            raise ValueError(f"state must hold the {returns.shape[-1]} positions of returns, got {[*part.shape]}")
        if part.device != returns.device:
            raise ValueError(f"returns and state must be on one device, got {returns.device} and {part.device}")
    mean = state.total / state.count.clamp(min=torch.finfo(state.count.dtype).tiny)
    advantages = zero_masked(returns - mean, mask).to(returns.dtype)
    rows = returns.detach().reshape(returns.shape[:-1].numel(), returns.shape[-1])
    row_mask = None if mask is None else mask.reshape(rows.shape)
    total, count = (x.squeeze(0) for x in sum_and_count(rows, row_mask, dim=0, process_group=process_group))
    new = RunningMean(decay * state.total + total, decay * state.count + count)
    if readable(new.total) and not math.isfinite(new.total.sum().item()):
        check_finite("returns", zero_masked(returns.detach(), mask), " at real steps")
        check_finite("state", torch.stack(list(state)))
    return advantages, new


def _centre(returns: Tensor, mask: Mask, process_group: Group, name: str) -> tuple[Tensor, Tensor]:
    """Returns minus their mean over rows at each position, at least float32, and the number of real rows there."""
    leading = tuple(range(returns.dim() - 1))
    num_rows = returns.shape[:-1].numel()
    if process_group is not None:
        num_rows *= process_group.size()
    if not leading or num_rows < 2:
        raise ValueError(
            f"{name} compares rows with each other and needs at least 2 of them, got returns {[*returns.shape]}; "
            f"baselines 'running_mean' and 'none' work with one"
        )
    total, count = sum_and_count(returns, mask, dim=leading, process_group=process_group)
    return zero_masked(returns - total / count.clamp(min=1), mask), count


BASELINES: dict[str, Callable[..., Tensor]] = RenamedKeys(
    "baseline", {"none": no_baseline, "batch_mean": batch_mean, "leave_one_out": leave_one_out, "z_score": z_score}
)
"""Baselines without options, by name: ``(returns, *, mask, process_group) -> advantages``."""

__getattr__ = renamed_names(
    globals(), {"batch_centred": "batch_mean", "group_centred": "group_mean", "z_normalised": "z_score"}
)

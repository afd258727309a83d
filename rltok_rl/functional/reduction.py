"""Means over real steps, of one process or of all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def check_mask(mask: Tensor | None, values: Tensor, name: str) -> None:
    """Require a bool mask of the shape of ``values``, which the message calls ``name``."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True where a step is real, got {mask.dtype}")
    if mask.shape != values.shape:
        raise ValueError(f"mask must have the shape of {name}, {[*values.shape]}, got {[*mask.shape]}")


def zero_masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """``values`` with 0 where there is no real step, whatever stood there, NaN included; no gradient there."""
    return values if mask is None else values.masked_fill(~mask, 0.0)


def sum_and_count(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | tuple[int, ...] | None = None,
    process_group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum and number of real steps, of this process or of all.

    Args:
        values: [*L].
        mask: [*L] bool, True where a step is real; None for all.
        dim: dimensions to sum over, kept with size 1; None for all of them.
        process_group: whose sums to add up. Sums over processes carry no gradient.

    Returns:
        Two tensors of one shape; the count is at least float32.
    """
    check_mask(mask, values, "values")
    dims = tuple(range(values.dim())) if dim is None else dim
    dtype = torch.promote_types(values.dtype, torch.float32)
    total = zero_masked(values, mask).sum(dims, keepdim=True, dtype=dtype)
    real = torch.ones_like(values, dtype=dtype) if mask is None else mask.to(dtype)
    count = real.sum(dims, keepdim=True)
    if process_group is None:
        return total, count
    both = torch.stack((total.detach(), count))
    dist.all_reduce(both, group=process_group)
    return both[0], both[1]


def masked_mean(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | tuple[int, ...] | None = None,
    keepdim: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Mean over real steps; 0 where there are none.

    Args:
        values: [*L].
        mask: [*L] bool, True where a step is real; None for all.
        dim: dimensions to average over; None for all of them.
        keepdim: keep them with size 1.
        process_group: average over all its processes. The result is then a statistic: it carries no gradient.

    Returns:
        The mean, at least in float32.

    Example:
        >>> masked_mean(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    total, count = sum_and_count(values, mask, dim=dim, process_group=process_group)
    mean = total / count.clamp(min=1)
    if keepdim:
        return mean
    return mean.reshape(()) if dim is None else mean.squeeze(dim)


def loss_mean(values: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None) -> Tensor:
    """Mean of a loss, whose gradient is right after data-parallel training has averaged it over processes.

        sum_here * num_processes / count_everywhere

    The average of this over processes is the mean over all real steps everywhere. The mean of means would weigh a step
    more where a process has few of them.

    Args:
        values: [*L] losses of steps, with gradient.
        mask: [*L] bool, True where a step counts; None for all.
        process_group: the processes that train together; None for one.

    Returns:
        [] loss; differentiable with respect to this process's values.

    Example:
        >>> loss_mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """
    if process_group is None:
        return masked_mean(values, mask)
    total, _ = sum_and_count(values, mask)
    _, count = sum_and_count(values.detach(), mask, process_group=process_group)
    return (total * dist.get_world_size(process_group) / count.clamp(min=1)).reshape(())

"""Means over unmasked steps, of one process or of all.

``mask`` is bool with the shape of the values, True at steps that count; None for all.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def check_mask(mask: Tensor | None, values: Tensor, name: str) -> None:
    """Require a bool mask with the shape of ``values``, whose name is for the message."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True where a step is real, got {mask.dtype}")
    if mask.shape != values.shape:
        raise ValueError(f"mask must have the shape of {name}, {[*values.shape]}, got {[*mask.shape]}")


def zero_masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``values`` with 0 at masked steps, also for NaN; no gradient there."""
    return values if mask is None else values.masked_fill(~mask, 0.0)


def sum_and_count(
    values: Tensor,
    mask: Tensor | None = None,
    *,
    dim: int | tuple[int, ...] | None = None,
    process_group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Return sum and number of unmasked steps over ``dim`` (None: all), kept with size 1; at least float32.

    Sums over a ``process_group`` carry no gradient.
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
    """Return the mean over unmasked steps, at least float32; 0 if there are none.

    Over a ``process_group`` it is a statistic and carries no gradient.

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
    """Return the mean of a loss, whose gradient is right once it is averaged over processes.

        sum_here * num_processes / count_everywhere

    Averaged over processes this is the mean over all steps. A mean of means would overweight steps of processes with
    few.

    Example:
        >>> loss_mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """
    if process_group is None:
        return masked_mean(values, mask)
    total, _ = sum_and_count(values, mask)
    _, count = sum_and_count(values.detach(), mask, process_group=process_group)
    return (total * dist.get_world_size(process_group) / count.clamp(min=1)).reshape(())

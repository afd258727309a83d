"""Means over unmasked steps of one process or of all."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.functional.takes import check_dense, takes
from rltok_rl.ranges import shown

Mask: TypeAlias = Tensor | None
"""Bool with the shape of the values, True at steps that count; None counts all."""
Group: TypeAlias = ProcessGroup | None
"""Processes whose steps count together; None is this process alone."""


def wide(*terms: Tensor) -> torch.dtype:
    """Return the dtype to sum in: the widest of the terms', at least float32.

    In bfloat16 gamma = 0.99 is another number.
    """
    return torch.float64 if torch.float64 in [x.dtype for x in terms] else torch.float32


@takes("values: real *L", "mask: bool? *L")
def zero_masked(values: Tensor, mask: Mask) -> Tensor:
    """Return ``values`` with 0 at masked steps, also for NaN; no gradient there."""
    return values if mask is None else values.masked_fill(~mask, 0.0)


@takes("values: real *L", "mask: bool *L", "dim: axes")
def sum_and_count(
    values: Tensor, mask: Mask = None, *, dim: int | tuple[int, ...] | None = None, process_group: Group = None
) -> tuple[Tensor, Tensor]:
    """Return sum and number of unmasked steps over ``dim`` (None or (): all), kept with size 1; at least float32.

    Sums over a ``process_group`` carry no gradient.
    """
    dims = tuple(range(values.dim())) if dim is None else dim
    if dim is not None:
        places = (dim,) if isinstance(dim, int) else dim
        right = all(-values.dim() <= place < values.dim() for place in places)
        if not right or len({place % values.dim() for place in places}) < len(places):
            raise ValueError(f"dim must be different dimensions of values {[*values.shape]}, got {shown(dim)}")
    dtype = wide(values)
    total = zero_masked(values, mask).sum(dims, keepdim=True, dtype=dtype)
    if mask is None:
        count = torch.full_like(total, values.numel() / max(total.numel(), 1), requires_grad=False)
    else:
        count = mask.sum(dims, keepdim=True, dtype=dtype)
    if process_group is None:
        return total, count
    both = torch.stack((total.detach(), count))
    dist.all_reduce(both, group=process_group)
    return both[0], both[1]


@takes("values: real *L", "mask: bool *L")
def masked_mean(values: Tensor, mask: Mask = None, *, process_group: Group = None) -> Tensor:
    """Return the mean over unmasked steps, [], at least float32; 0 if there are none.

    Over a ``process_group`` it is a statistic and carries no gradient.

    Example:
        >>> masked_mean(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]))
        tensor(1.5000)
    """
    if mask is None and process_group is None:
        return values.sum(dtype=wide(values)) / max(values.numel(), 1)
    total, count = sum_and_count(values, mask, process_group=process_group)
    return (total / count.clamp(min=1)).reshape(())


@takes("rows_per_mean: whole [1, inf)", "values: real B T")
def row_groups(rows_per_mean: int, values: Tensor, *others: Mask) -> list[tuple[Any, ...]]:
    """Split values [B, T], and others of that shape or None, into groups of consecutive rows, [rows_per_mean, T] each.

    Example:
        >>> [part.shape for part, _ in row_groups(2, torch.zeros(6, 5), None)]
        [torch.Size([2, 5]), torch.Size([2, 5]), torch.Size([2, 5])]
    """
    if len(values) % rows_per_mean:
        raise ValueError(f"rows_per_mean must divide the rows [B, T], got {rows_per_mean} and {[*values.shape]}")
    if not torch.compiler.is_compiling():
        for other in others:
            _check_other(other, values)
    parts = values.split(rows_per_mean)  # one without rows if there are none
    rest = ([None] * len(parts) if x is None else x.split(rows_per_mean) for x in others)
    return list(zip(parts, *rest, strict=True))


def _check_other(other: Mask, values: Tensor) -> None:
    """Require None or a tensor with the shape and the device of the values."""
    if other is None:
        return
    check_dense("others", other, "real")
    if other.shape != values.shape or other.device != values.device:
        raise ValueError(
            f"others must have the shape of values, {[*values.shape]}, on {values.device}, got {[*other.shape]} on "
            f"{other.device}"
        )


@takes("values: real *L", "mask: bool *L")
def loss_mean(values: Tensor, mask: Mask = None, *, process_group: Group = None) -> Tensor:
    """Return the mean of a loss, whose gradient is right once it is averaged over processes.

        sum_here * num_processes / count_everywhere

    A mean of the processes' means would overweight the steps of processes with few.
    """
    if process_group is None:
        return masked_mean(values, mask)
    total, _ = sum_and_count(values, mask)
    _, count = sum_and_count(values.detach(), mask, process_group=process_group)
    return (total * dist.get_world_size(process_group) / count.clamp(min=1)).reshape(())

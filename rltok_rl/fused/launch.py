"""Run kernels on parts of rows, on as many threads as torch uses.

Sums over rows are those of parts that depend on the number of rows alone, added in order, and other kernels take every
row alone: results do not depend on threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from rltok_rl.fused.kernels import BLOCK
from rltok_rl.fused.libraries import one_thread_here

ROWS, PARTS = 1024, 16
"""Rows of the smallest part, and the largest number of parts."""
_TYPES = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64"}
observers: list[Callable[[str, Sequence[Tensor], Sequence[Tensor]], object]] = []
"""Called for every launch with its name and the tensors that it reads and writes."""


def parts_of(num_rows: int) -> int:
    """Return the number of parts."""
    return max(1, min(PARTS, num_rows // ROWS))


def launch(
    kernel: Callable[..., object],
    read: Sequence[Any],
    written: Sequence[Tensor],
    num_rows: int,
    sums: Sequence[Tensor] = (),
    *,
    parts: int | None = None,
) -> list[Tensor]:
    """Call ``kernel(*read, *written, *sums, start, stop)`` on parts of the rows; returns the sums over parts.

    ``sums`` give the shapes of sums over rows, for example gradients of weights; every part adds to zeros of its own.
    """
    threads = torch.get_num_threads()
    if threads == 1 and not sums:
        parts = 1  # parts share nothing: one call is cheapest
    elif parts is None:
        parts = parts_of(num_rows)
    block = BLOCK if num_rows > parts * BLOCK else 1
    edges = [min(num_rows, round(n * num_rows / parts / block) * block) for n in range(parts)] + [num_rows]
    sizes = [like.numel() for like in sums]
    totals = torch.empty(parts, sum(sizes))  # all sums of a part in one row
    rows = _array(totals)
    rows.fill(0)
    arrays = [_array(x) if isinstance(x, Tensor) else x for x in (*read, *written)]
    last = list(accumulate(sizes))
    calls = []
    for n, row in enumerate(rows):
        mine = [row[end - size : end].reshape(like.shape) for like, size, end in zip(sums, sizes, last, strict=True)]
        calls.append((*arrays, *mine, edges[n], edges[n + 1]))
    if threads == 1 or parts == 1:
        for arguments in calls:
            kernel(*arguments)
    else:
        list(_pool(os.getpid(), threads).map(lambda arguments: kernel(*arguments), calls))
    for observer in observers:
        tensors = [x for x in read if isinstance(x, Tensor)]
        observer(kernel.__name__, tensors, [*written, totals])
    if not sums:
        return []
    added = totals[0]
    if parts > 1:
        added = torch.empty(sum(sizes))
        rows.sum(0, out=_array(added))
    return [part.view(like.shape) for part, like in zip(added.split(sizes), sums, strict=True)]


def _array(x: Tensor) -> Any:
    """View a contiguous tensor as an array. ``Tensor.numpy`` would fix its memory's size, which FSDP changes."""
    import numpy as np

    if not x.numel():
        return np.empty(x.shape, _TYPES[x.dtype])
    memory: Any = (ctypes.c_char * x.nbytes).from_address(x.data_ptr())
    return np.frombuffer(memory, _TYPES[x.dtype]).reshape(x.shape)


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return threads of a process; a forked one makes its own."""
    return ThreadPoolExecutor(threads, "rltok-fused", initializer=one_thread_here)

"""The threshold recurrence as a compiled loop for the CPU (numba, optional)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite

import torch
from torch import Tensor

_ROWS = 8  # walked side by side: one row is a chain of dependent additions, several keep the processor busy


def numba_loop(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """[B, T], [B, T, w], [B, T] to [B, T] bool; compiled once per w and dtype.

    Raises:
        FloatingPointError: if a term may be infinite or not a number. The check is nearly free in here, and costs more
            than the walk from outside.
    """
    boundaries = torch.empty(base.shape, dtype=torch.bool)
    history = base.new_zeros(_ROWS, base.shape[1] + lags.shape[-1])
    walk = _walk(lags.shape[-1])
    checksum = walk(base.numpy(), lags.numpy(), thresholds.numpy(), boundaries.numpy(), history.numpy())
    if not isfinite(checksum):
        raise FloatingPointError("base or lags are not finite, or too large to add up")
    return boundaries


@cache
def _walk(num_lags: int) -> Callable[..., float]:
    """Compile for a number of lags, so that the sum over them is unrolled."""
    import numba
    from numba import boolean, float32, float64

    rows = _ROWS
    signatures = [
        # Strides are left open (A) where views arrive: the lags are a slice of the projection's output.
        float64(real[:, :], real[:, :, :], real[:, :], boolean[:, ::1], real[:, ::1])
        for real in (float32, float64)
    ]

    def walk(base, lags, thresholds, boundaries, history):  # pragma: no cover - runs compiled
        num_rows, length = base.shape
        one, zero = history.dtype.type(1), history.dtype.type(0)
        checksum = zero
        for first in range(0, num_rows, rows):
            last = min(first + rows, num_rows)
            for t in range(length):
                for row in range(first, last):
                    total = base[row, t]
                    for j in range(num_lags, 0, -1):  # oldest first; times 0 or 1 is exact
                        total += lags[row, t, j - 1] * history[row - first, t + num_lags - j]
                    checksum += total  # nan times 0 is nan: no term escapes
                    drawn = total > thresholds[row, t]
                    boundaries[row, t] = drawn
                    history[row - first, t + num_lags] = one if drawn else zero
        return checksum

    compiled: Callable[..., float]
    try:
        compiled = numba.njit(signatures, cache=True, nogil=True)(walk)
    except (RuntimeError, OSError):  # the cache cannot be written: compile in every process
        compiled = numba.njit(signatures, nogil=True)(walk)
    return compiled

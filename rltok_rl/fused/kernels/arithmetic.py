"""Building blocks of kernels: exponentials that vectorise, and matrix products of row blocks.

Products call the ``sgemm`` that torch was built with, one thread each. Matrices are rows in memory [rows, columns];
``sgemm`` expects columns, so it sees every matrix transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from numba import types

from rltok_rl.fused.libraries import sgemm_address

llvmlite.binding.add_symbol("rltok_sgemm", sgemm_address())
_sgemm: Any = types.ExternalFunction("rltok_sgemm", types.void(*[types.uintp] * 13))
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Sums in any order, so that they vectorise; NaN and infinity stay what they are.
    "fastmath": {"reassoc", "contract", "nsz"},
}
f32 = np.float32


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the program on disk if possible.

    What a kernel calls must be ``inline``, unless it only moves numbers or calls ``sgemm``: a kernel inside a kernel
    has two programs that round differently, and which of them runs depends on what this process has compiled.
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except (RuntimeError, OSError):  # the cache cannot be written: compile in every process
        return numba.njit(**_OPTIONS)(function)


def inline(function: Callable[..., Any]) -> Any:
    """Insert a function into those that call it."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


@inline
def exp_parts(x):
    """Return p and s with ``exp(x) = s + s p``: ``s = 2^n``, ``p = exp(x - n ln 2) - 1``; x is cut to [-87, 88]."""
    x = f32(-87.0) if x < f32(-87.0) else x
    x = f32(88.0) if x > f32(88.0) else x
    n = np.rint(x * f32(1.4426950408889634))
    r = x - n * f32(0.693359375)  # ln 2 in two parts: the first product is exact
    r = r + n * f32(2.1219444005469057e-4)
    p = f32(1.0 / 5040)  # Taylor to r^7: |r| <= ln(2) / 2, below 1e-8 of exp(r)
    p = p * r + f32(1.0 / 720)
    p = p * r + f32(1.0 / 120)
    p = p * r + f32(1.0 / 24)
    p = p * r + f32(1.0 / 6)
    p = p * r + f32(0.5)
    p = p * r * r + r
    return p, np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@inline
def exp(x):
    """Exponential."""
    p, s = exp_parts(x)
    return s * p + s


@inline
def tanh(x):
    """Hyperbolic tangent as ``t / (t + 2)`` with ``t = exp(2 x) - 1``, which is exact near 0."""
    x = f32(-20.0) if x < f32(-20.0) else x
    x = f32(20.0) if x > f32(20.0) else x
    p, s = exp_parts(f32(2.0) * x)
    t = s * p + (s - f32(1.0))
    return t / (t + f32(2.0))


@kernel
def product(transposed, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """Call ``sgemm`` on addresses; ``transposed`` holds 1 for a and 2 for b."""
    sizes = np.empty(6, np.int32)
    sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5] = m, n, k, lda, ldb, ldc
    factors, letters = np.empty(2, np.float32), np.empty(2, np.uint8)
    factors[0], factors[1] = 1.0, beta
    letters[0], letters[1] = 84 if transposed & 1 else 78, 84 if transposed & 2 else 78  # T or N
    at, real, text = sizes.ctypes.data, factors.ctypes.data, letters.ctypes.data
    _sgemm(text, text + 1, at, at + 4, at + 8, real, a, at + 12, b, at + 16, real + 4, c, at + 20)
    return sizes[0] + factors[0] + letters[0]  # read after the call: the arrays live until then


@kernel
def times_weight(x, weight, out):
    """``out = x weight^T``: [n, k], [m, k] to [n, m]."""
    (n, k), m = x.shape, weight.shape[0]
    product(1, m, n, k, weight.ctypes.data, k, x.ctypes.data, k, 0.0, out.ctypes.data, m)


@kernel
def times_transposed(grad, weight, out):
    """``out = grad weight``: [n, m], [m, k] to [n, k]."""
    (n, m), k = grad.shape, weight.shape[1]
    product(0, k, n, m, weight.ctypes.data, k, grad.ctypes.data, m, 0.0, out.ctypes.data, k)


@kernel
def add_outer(grad, x, out):
    """``out += grad^T x``: [n, m], [n, k] to [m, k]."""
    (n, m), k = grad.shape, x.shape[1]
    product(2, k, m, n, x.ctypes.data, k, grad.ctypes.data, m, 1.0, out.ctypes.data, k)

"""Building blocks of kernels: exponentials that vectorise, and matrix products of row blocks.

Products call a function that torch was built with, one thread each: oneDNN's ``brgemm``, or ``sgemm`` where torch does
not export it. Matrices are rows in memory [rows, columns].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from numba import types

from rltok_rl.fused.libraries import brgemm_address, sgemm_address

llvmlite.binding.add_symbol("rltok_sgemm", sgemm_address())
_sgemm: Any = types.ExternalFunction("rltok_sgemm", types.void(*[types.uintp] * 13))
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Sums in any order, so that they vectorise; NaN and infinity stay what they are.
    "fastmath": {"reassoc", "contract", "nsz"},
}
PRODUCT_TYPES = [*[types.int64] * 6, types.boolean, *[types.uintp] * 3, types.boolean]
"""Types of ``brgemm``'s arguments: m, n, k, three row strides, whether to add, three addresses, False."""
_rows_product: Any = types.ExternalFunction("rltok_rows_product", types.void(*PRODUCT_TYPES))
f32 = np.float32


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the program on disk if possible.

    What a kernel calls must be ``inline``, unless it only moves numbers or calls a product: a kernel inside a kernel
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
    """Return p and s with ``exp(x) = s + s p``: ``s = 2^n``, ``p = exp(x - n ln 2) - 1``; x must lie in [-87, 88]."""
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
    """Return the exponential of x, which must be at most 88 and counts as -87 below that."""
    p, s = exp_parts(f32(-87.0) if x < f32(-87.0) else x)
    return s * p + s


@inline
def tanh(x):
    """Hyperbolic tangent as ``t / (t + 2)`` with ``t = exp(2 x) - 1``, which is exact near 0."""
    x = f32(-20.0) if x < f32(-20.0) else x
    x = f32(20.0) if x > f32(20.0) else x
    p, s = exp_parts(f32(2.0) * x)
    t = s * p + (s - f32(1.0))
    return t / (t + f32(2.0))


def by_sgemm(m, n, k, lda, ldb, ldc, add, a, b, c, packed):
    """Multiply with ``sgemm``, given ``brgemm``'s arguments; it expects columns, so it sees every matrix transposed."""
    sizes, factors, letter = np.empty(6, np.int32), np.ones(2, np.float32), np.empty(1, np.uint8)
    sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5] = n, m, k, ldb, lda, ldc
    factors[1], letter[0] = f32(1.0) if add else f32(0.0), 78  # N: as it is
    at, real, text = sizes.ctypes.data, factors.ctypes.data, letter.ctypes.data
    _sgemm(text, text, at, at + 4, at + 8, real, b, at + 12, a, at + 16, real + 4, c, at + 20)
    sizes[0] = letter[0] + np.int32(factors[0])  # read after the call: the arrays live until then


_fallback: Any = None if brgemm_address() else numba.cfunc(types.void(*PRODUCT_TYPES))(by_sgemm)
llvmlite.binding.add_symbol("rltok_rows_product", brgemm_address() or _fallback.address)


@kernel
def multiply(a, b, out, add):
    """``out = a b``, or ``out += a b`` if ``add``: [n, k], [k, m] to [n, m]; rows may be strided."""
    (n, k), m = a.shape, b.shape[1]
    lda, ldb, ldc = a.strides[0] // 4, b.strides[0] // 4, out.strides[0] // 4
    _rows_product(n, m, k, lda, ldb, ldc, add, a.ctypes.data, b.ctypes.data, out.ctypes.data, False)


@kernel
def transpose(x, out, add):
    """``out = x^T``, or ``out += x^T`` if ``add``: [n, m] to [m, n], in blocks of rows that fit in the cache."""
    for a in range(0, x.shape[0], 32):
        rows, columns = x[a : a + 32], out[:, a : a + 32]  # slices: indices from 0 vectorise
        for j in range(rows.shape[1]):
            if add:
                for i in range(rows.shape[0]):
                    columns[j, i] += rows[i, j]
            else:
                for i in range(rows.shape[0]):
                    columns[j, i] = rows[i, j]


@kernel
def add_outer(x, y, columns, out):
    """``out += x^T y``: [n, k], [n, m] to [k, m]; ``columns`` [k, at least n] is room for ``x^T``."""
    x_t = columns[:, : len(x)]
    transpose(x, x_t, False)
    multiply(x_t, y, out, True)


@kernel
def transposed(x):
    """Return ``x^T``."""
    out = np.empty((x.shape[1], x.shape[0]), np.float32)
    transpose(x, out, False)
    return out

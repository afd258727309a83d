"""Triton kernel of the threshold recurrence; importing this module needs Triton.

Triton resolves the names in a kernel, those in its annotations too, among the globals of its module.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Sums have to be those of the other methods, to the last bit: nothing may be fused, whatever the default of a version.
OPTIONS = {"num_warps": 1, "enable_fp_fusion": False}


@triton.jit
def walk(base, lags, thresholds, drawn, num_rows, length, NUM_LAGS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Walk ROWS rows side by side: base, thresholds [T, B] and lags [T, w, B] to drawn [B, T]."""
    # 64 bits, as every offset below is made of it: B T w may pass 2^31.
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    exists = row < num_rows
    recent = tl.zeros((ROWS,), dtype=tl.int32)  # bit j - 1 is the boundary j bytes ago
    for t in range(length):
        here_first = tl.cast(t, tl.int64) * num_rows
        total = tl.load(base + here_first + row, mask=exists, other=0.0)
        for k in tl.static_range(NUM_LAGS):
            bit = NUM_LAGS - 1 - k  # oldest lag first, as everywhere
            term = tl.load(lags + here_first * NUM_LAGS + bit * num_rows + row, mask=exists, other=0.0)
            total += tl.where(((recent >> bit) & 1) == 1, term, 0.0)
        threshold = tl.load(thresholds + here_first + row, mask=exists, other=0.0)
        here = (total > threshold).to(tl.int32)
        tl.store(drawn + row * length + t, here.to(tl.int8), mask=exists)
        recent = ((recent << 1) | here) & ((1 << NUM_LAGS) - 1)

"""The threshold recurrence as a Triton kernel for GPUs; importing this module needs Triton.

A program walks a few rows side by side, one per lane, with the last w boundaries of a row as the bits of an integer.
Triton resolves the names in a kernel among the globals of its module.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Sums must equal those of the other methods to the last bit, so no version may fuse operations.
OPTIONS = {"num_warps": 1, "enable_fp_fusion": False}
_ROWS = 32  # lanes of one warp


@triton.jit
def walk(base, lags, thresholds, drawn, num_rows, length, NUM_LAGS: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Walk ROWS rows side by side: base, thresholds [T, B] and lags [T, w, B] to drawn [B, T]."""
    # 64 bits, and so all offsets below: B T w may exceed 2^31.
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    exists = row < num_rows
    recent = tl.zeros((ROWS,), dtype=tl.int32)  # bit j - 1 is the boundary j bytes ago
    for t in tl.range(0, length, num_stages=4):  # loads run ahead: no address needs a decision
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


def triton_loop(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """[B, T], [B, T, w], [B, T] to [B, T] bool; compiled once per w and dtype."""
    num_rows, length = base.shape
    drawn = torch.empty(base.shape, dtype=torch.int8, device=base.device)
    # Time first: rows of one position are adjacent, so that a warp reads whole lines of memory.
    base, thresholds = base.t().contiguous(), thresholds.t().contiguous()  # [T, B]
    lags = lags.permute(1, 2, 0).contiguous()  # [T, w, B]
    grid = (-(-num_rows // _ROWS),)
    walk[grid](base, lags, thresholds, drawn, num_rows, length, NUM_LAGS=lags.shape[1], ROWS=_ROWS, **OPTIONS)
    return drawn.bool()

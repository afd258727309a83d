"""The threshold recurrence as a GPU kernel (Triton, optional).

One program walks a few rows side by side, one lane each, with the last w boundaries of a row as the bits of an integer.
Only the bits travel from step to step; the terms of later positions can be fetched ahead.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_LAGS = 31  # bits of a signed 32-bit integer, its sign aside
_ROWS = 32  # lanes of one warp


def available() -> bool:
    """Whether Triton can be imported."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def triton_loop(base: Tensor, lags: Tensor, thresholds: Tensor) -> Tensor:
    """[B, T], [B, T, w], [B, T] to [B, T] bool; compiled once per w and dtype."""
    from rltok_rl.sampling.triton_kernel import OPTIONS, walk

    num_rows, length = base.shape
    drawn = torch.empty(base.shape, dtype=torch.int8, device=base.device)
    # Time first: the rows of one position lie side by side, so that a warp reads whole lines of memory.
    base, thresholds = base.t().contiguous(), thresholds.t().contiguous()  # [T, B]
    lags = lags.permute(1, 2, 0).contiguous()  # [T, w, B]
    grid = (-(-num_rows // _ROWS),)
    walk[grid](base, lags, thresholds, drawn, num_rows, length, NUM_LAGS=lags.shape[1], ROWS=_ROWS, **OPTIONS)
    return drawn.bool()

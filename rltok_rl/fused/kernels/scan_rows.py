"""Discounted sums of rows from their ends."""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels.arithmetic import kernel


@kernel
def scan_part(x, decay, out, start, stop):
    """``out_t = x_t + c_t out_{t+1}`` in rows start .. stop of [n, T], in float64; c is [n, T], or [1, 1] for all."""
    each = decay.shape[0] == x.shape[0] and decay.shape[1] == x.shape[1]
    for i in range(start, stop):
        total = 0.0
        for t in range(x.shape[1] - 1, -1, -1):
            c = decay[i, t] if each else decay[0, 0]
            total = np.float64(x[i, t]) + np.float64(c) * total
            out[i, t] = total

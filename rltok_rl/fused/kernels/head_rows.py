"""Log-likelihoods of bytes under a projection with capped logits; the logits of one block of rows exist at a time.

Shapes: n rows, D width, V bytes.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels import BLOCK
from rltok_rl.fused.kernels.arithmetic import add_outer, exp, f32, inline, kernel, tanh, times_transposed, times_weight


@inline
def _cap_rows(logits, cap):
    """``cap tanh(logits / cap)`` in place."""
    factor = f32(1.0) / cap
    for i in range(logits.shape[0]):
        for j in range(logits.shape[1]):
            logits[i, j] = cap * tanh(logits[i, j] * factor)


@inline
def _log_sums(logits, sums):
    """Write the logarithm of each row's sum of exponentials, [n]."""
    for i in range(logits.shape[0]):
        best = logits[i, 0]
        for j in range(logits.shape[1]):
            best = logits[i, j] if logits[i, j] > best else best
        total = f32(0.0)
        for j in range(logits.shape[1]):
            total += exp(logits[i, j] - best)
        sums[i] = np.log(total) + best


@kernel
def head_part(x, weight, targets, cap, log_probs, sums, start, stop):
    """Write log-likelihoods, and the logarithms of the sums of exponentials, of rows start .. stop; cap 0 is none."""
    rows = np.empty((BLOCK, weight.shape[0]), np.float32)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        logits = rows[: b - a]
        times_weight(x[a:b], weight, logits)
        if cap > 0:
            _cap_rows(logits, cap)
        _log_sums(logits, sums[a:b])
        for i in range(b - a):
            log_probs[a + i] = logits[i, targets[a + i]] - sums[a + i]


@kernel
def head_part_backward(grad, x, weight, targets, cap, sums, grad_x, grad_weight, start, stop):
    """Write ``grad_x`` of rows start .. stop, from logits that are computed again; add to ``grad_weight``."""
    rows, factor = np.empty((BLOCK, weight.shape[0]), np.float32), f32(1.0) / cap if cap > 0 else f32(0.0)
    slopes = np.ones(weight.shape[0], np.float32)  # of the cap, for one row
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        logits = rows[: b - a]
        times_weight(x[a:b], weight, logits)
        for i in range(b - a):
            row, g, total, chosen = logits[i], grad[a + i], sums[a + i], targets[a + i]
            if cap > 0:
                for j in range(len(row)):
                    t = tanh(row[j] * factor)
                    row[j] = cap * t
                    slopes[j] = f32(1.0) - t * t
            for j in range(len(row)):
                row[j] = -g * exp(row[j] - total) * slopes[j]
            row[chosen] += g * slopes[chosen]
        add_outer(logits, x[a:b], grad_weight)
        times_transposed(logits, weight, grad_x[a:b])

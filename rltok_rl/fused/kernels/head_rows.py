"""Log-likelihoods of bytes under a projection with capped logits; the logits of one block of rows exist at a time.

Shapes: n rows, D width, V bytes.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels import BLOCK
from rltok_rl.fused.kernels.arithmetic import add_outer, exp, f32, inline, kernel, multiply, tanh, transpose, transposed

LARGEST_CAP = 40.0
"""Up to this cap, sums of exponentials stay finite in float32 without subtracting the largest logit."""


@inline
def _cap_row(row, cap):
    """Cap a row in place, ``cap tanh(logit / cap)``, and return the logarithm of its sum of exponentials."""
    factor, total = f32(1.0) / cap, f32(0.0)
    for j in range(len(row)):
        capped = cap * tanh(row[j] * factor)
        row[j] = capped
        total += exp(capped)  # meaningless above LARGEST_CAP: callers then use _log_sum
    return np.log(total)


@inline
def _log_sum(row):
    """Return the logarithm of a row's sum of exponentials."""
    best, total = row[0], f32(0.0)
    for j in range(len(row)):
        best = row[j] if row[j] > best else best
    for j in range(len(row)):
        total += exp(row[j] - best)
    return np.log(total) + best


@kernel
def head_part(x, weight, targets, cap, log_probs, sums, start, stop):
    """Write log-likelihoods, and the logarithms of the sums of exponentials, of rows start .. stop; cap 0 is none."""
    rows, weight_t = np.empty((BLOCK, weight.shape[0]), np.float32), transposed(weight)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        logits = rows[: b - a]
        multiply(x[a:b], weight_t, logits, False)
        for i in range(b - a):
            row = logits[i]
            total = _cap_row(row, cap) if cap > 0 else _log_sum(row)
            total = _log_sum(row) if cap > LARGEST_CAP else total
            sums[a + i] = total
            log_probs[a + i] = row[targets[a + i]] - total


@kernel
def head_part_backward(grad, x, weight, targets, cap, sums, grad_x, grad_weight, start, stop):
    """Write ``grad_x`` of rows start .. stop, from logits that are computed again; add to ``grad_weight``."""
    rows, factor = np.empty((BLOCK, weight.shape[0]), np.float32), f32(1.0) / cap if cap > 0 else f32(0.0)
    weight_t, columns = transposed(weight), np.empty((x.shape[1], BLOCK), np.float32)
    total_t = np.zeros_like(weight_t)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        logits = rows[: b - a]
        multiply(x[a:b], weight_t, logits, False)
        for i in range(b - a):
            row, g, total, chosen, slope = logits[i], grad[a + i], sums[a + i], targets[a + i], f32(1.0)
            if cap > 0:
                t = tanh(row[chosen] * factor)
                slope -= t * t
                for j in range(len(row)):
                    t = tanh(row[j] * factor)
                    row[j] = -g * exp(cap * t - total) * (f32(1.0) - t * t)
            else:
                for j in range(len(row)):
                    row[j] = -g * exp(row[j] - total)
            row[chosen] += g * slope
        add_outer(x[a:b], logits, columns, total_t)
        multiply(logits, weight, grad_x[a:b], False)
    transpose(total_t, grad_weight, True)

"""Log-likelihoods of bytes under a projection with capped logits.

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
def head_part(x, weight, targets, cap, keep, log_probs, sums, logits, start, stop):
    """Write log-likelihoods, and the logarithms of the sums of exponentials, of rows start .. stop; cap 0 is none.

    Capped ``logits`` [n, V] are written if ``keep``, for the backward pass.
    """
    block, weight_t = np.empty((0 if keep else BLOCK, weight.shape[0]), np.float32), transposed(weight)
    if not keep:
        logits = block
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        at = a if keep else 0
        rows = logits[at : at + b - a]
        multiply(x[a:b], weight_t, rows, False)
        for i in range(b - a):
            row = rows[i]
            total = _cap_row(row, cap) if cap > 0 else _log_sum(row)
            total = _log_sum(row) if cap > LARGEST_CAP else total
            sums[a + i] = total
            log_probs[a + i] = row[targets[a + i]] - total


@kernel
def head_part_backward(grad, x, weight, targets, cap, sums, logits, grad_x, grad_weight, start, stop):
    """Write ``grad_x`` of rows start .. stop, from their capped logits; add to ``grad_weight``."""
    block, factor = np.empty((BLOCK, weight.shape[0]), np.float32), f32(1.0) / cap if cap > 0 else f32(0.0)
    columns, total_t = np.empty((x.shape[1], BLOCK), np.float32), np.zeros((x.shape[1], len(weight)), np.float32)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        slopes = block[: b - a]
        for i in range(b - a):
            row, to, g, total, chosen = logits[a + i], slopes[i], grad[a + i], sums[a + i], targets[a + i]
            for j in range(len(row)):
                t = row[j] * factor  # the cap's slope is 1 - t^2
                to[j] = -g * exp(row[j] - total) * (f32(1.0) - t * t)
            t = row[chosen] * factor
            to[chosen] += g * (f32(1.0) - t * t)
        add_outer(x[a:b], slopes, columns, total_t)
        multiply(slopes, weight, grad_x[a:b], False)
    transpose(total_t, grad_weight, True)

"""RMSNorm of rows, ``y = x r (1 + w)`` with ``r = (mean x^2 + eps)^(-1/2)``, and its gradients."""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels.arithmetic import f32, inline, kernel


@inline
def inverse_size(x, i, eps):
    """Return r of row i."""
    total = f32(0.0)
    for j in range(x.shape[1]):
        total += x[i, j] * x[i, j]
    return f32(1.0) / np.sqrt(total / f32(x.shape[1]) + eps)


@inline
def norm_rows(x, weight, eps, out):
    """Normalise [n, D]."""
    for i in range(x.shape[0]):
        r = inverse_size(x, i, eps)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * r * (f32(1.0) + weight[j])


@inline
def add_norm_rows(x, branch, weight, eps, out):
    """``out = x + norm(branch)``, [n, D] each."""
    for i in range(x.shape[0]):
        r = inverse_size(branch, i, eps)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] + branch[i, j] * r * (f32(1.0) + weight[j])


@inline
def norm_rows_backward(grad, x, weight, eps, grad_x, grad_weight):
    """``grad_x = r (g - x r^2 mean(g x))`` with ``g = grad (1 + w)``; adds to ``grad_weight`` [D]."""
    width = x.shape[1]
    for i in range(x.shape[0]):
        r, dot = inverse_size(x, i, eps), f32(0.0)
        for j in range(width):
            dot += grad[i, j] * (f32(1.0) + weight[j]) * x[i, j]
        share = r * r * r * dot / f32(width)
        for j in range(width):
            g = grad[i, j]
            grad_weight[j] += g * x[i, j] * r
            grad_x[i, j] = g * (f32(1.0) + weight[j]) * r - x[i, j] * share


@kernel
def norm_part(x, weight, eps, out, start, stop):
    """Normalise rows start .. stop of [n, D]."""
    norm_rows(x[start:stop], weight, eps, out[start:stop])


@kernel
def norm_part_backward(grad, x, weight, eps, grad_x, grad_weight, start, stop):
    """Gradients of rows start .. stop."""
    norm_rows_backward(grad[start:stop], x[start:stop], weight, eps, grad_x[start:stop], grad_weight)

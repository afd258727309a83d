"""Causal attention inside a short window: keys one by one, for a block of queries at a time.

Shapes: B rows, T places, H heads, C channels, W places in the window, n queries of a block.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels.arithmetic import exp, f32, inline, kernel
from rltok_rl.fused.kernels.vectors import add_scaled, clear, dot, prefetch

QUERIES, AHEAD = 128, 16
"""Queries of a block, and rows prefetched ahead: a head's rows are strided, which hardware prefetchers miss."""


@inline
def _softmax(scores, first, room):
    """Turn scores [W, n] into weights; [j, t] are query ``first + t`` and the key ``W - 1 - j`` places earlier."""
    window, n = scores.shape
    best, total = room[0], room[1]
    for t in range(n):
        best[t] = f32(-np.inf)
    for j in range(window):
        for t in range(n):
            best[t] = scores[j, t] if scores[j, t] > best[t] else best[t]
    for t in range(n):
        total[t] = f32(0.0)
    for j in range(window):
        for t in range(n):
            scores[j, t] = exp(scores[j, t] - best[t])
        for t in range(min(n, window - 1 - j - first)):
            scores[j, t] = f32(0.0)  # before the first key
        for t in range(n):
            total[t] += scores[j, t]
    for t in range(n):
        total[t] = f32(1.0) / total[t]
    for j in range(window):
        for t in range(n):
            scores[j, t] *= total[t]


@inline
def _softmax_backward(weights, slopes, first, scale, mean):
    """Turn gradients of weights [W, n] into those of products of queries and keys."""
    window, n = weights.shape
    for t in range(n):
        mean[t] = f32(0.0)
    for j in range(window):
        for t in range(min(n, window - 1 - j - first)):
            slopes[j, t] = f32(0.0)  # before the first key
        for t in range(n):
            mean[t] += weights[j, t] * slopes[j, t]
    for j in range(window):
        for t in range(n):
            slopes[j, t] = weights[j, t] * (slopes[j, t] - mean[t]) * scale


@inline
def _products(x, y, step_x, step_y, first, scale, lanes, out):
    """Write ``scale`` times the products of each query's row of x with the rows of y of the keys it sees.

    x and y are the addresses of row 0. Keys before the first count as -inf, which both softmax functions clear.
    """
    window, n = out.shape
    for t in range(n):
        missing = max(0, window - 1 - first - t)
        for j in range(missing):
            out[j, t] = f32(-np.inf)
        prefetch(x + np.uintp(first + t + AHEAD) * step_x, lanes)
        prefetch(y + np.uintp(first + t + AHEAD) * step_y, lanes)
        row, other = x + np.uintp(first + t) * step_x, y + np.uintp(first + t + missing + 1 - window) * step_y
        for j in range(missing, window):
            out[j, t] = scale * dot(row, other, lanes)
            other += step_y


@kernel
def band_part(qkv, window, lanes, out, start, stop):
    """Attend in heads start .. stop of all rows' heads: [B, T, 3, H, C] to [B, T, H, C]; ``lanes`` are those of C."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    scale = f32(1.0) / np.sqrt(f32(channels))
    scores, room = np.empty((window, QUERIES), np.float32), np.empty((2, QUERIES), np.float32)
    step_out = np.uintp(4 * heads * channels)
    step = np.uintp(3) * step_out
    for n in range(start, stop):
        row, head = n // heads, n % heads
        within = np.uintp(4 * head * channels)
        query = np.uintp(qkv.ctypes.data) + np.uintp(row * length) * step + within
        key, value = query + step_out, query + step_out + step_out
        to = np.uintp(out.ctypes.data) + np.uintp(row * length) * step_out + within
        for a in range(0, length, QUERIES):
            weights = scores[:, : min(QUERIES, length - a)]
            _products(query, key, step, step, a, scale, lanes, weights)
            _softmax(weights, a, room)
            for t in range(weights.shape[1]):
                missing = max(0, window - 1 - a - t)
                mine, other = to + np.uintp(a + t) * step_out, value + np.uintp(a + t + missing + 1 - window) * step
                prefetch(value + np.uintp(a + t + AHEAD) * step, lanes)
                clear(mine, lanes)
                for j in range(missing, window):
                    add_scaled(weights[j, t], other, mine, lanes)
                    other += step


@kernel
def band_part_backward(grad, qkv, window, lanes, grad_qkv, start, stop):
    """Write the gradients of queries, keys and values of heads start .. stop of all rows' heads."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    scale = f32(1.0) / np.sqrt(f32(channels))
    scores, room = np.empty((2, window, QUERIES), np.float32), np.empty((2, QUERIES), np.float32)
    step_grad = np.uintp(4 * heads * channels)
    step = np.uintp(3) * step_grad
    for n in range(start, stop):
        row, head = n // heads, n % heads
        within = np.uintp(4 * head * channels)
        at = np.uintp(row * length) * step + within
        query, grad_query = np.uintp(qkv.ctypes.data) + at, np.uintp(grad_qkv.ctypes.data) + at
        key, grad_key = query + step_grad, grad_query + step_grad
        value, grad_value = key + step_grad, grad_key + step_grad
        above = np.uintp(grad.ctypes.data) + np.uintp(row * length) * step_grad + within
        for a in range(0, length, QUERIES):
            m = min(QUERIES, length - a)
            weights, slopes = scores[0, :, :m], scores[1, :, :m]
            _products(query, key, step, step, a, scale, lanes, weights)
            _softmax(weights, a, room)
            _products(above, value, step_grad, step, a, f32(1.0), lanes, slopes)
            _softmax_backward(weights, slopes, a, scale, room[0])
            for t in range(m):
                missing = max(0, window - 1 - a - t)
                mine, other = np.uintp(a + t) * step, np.uintp(a + t + missing + 1 - window) * step
                mine_above = above + np.uintp(a + t) * step_grad
                clear(grad_query + mine, lanes)
                clear(grad_key + mine, lanes)
                clear(grad_value + mine, lanes)
                for j in range(missing, window):
                    add_scaled(slopes[j, t], key + other, grad_query + mine, lanes)
                    add_scaled(slopes[j, t], query + mine, grad_key + other, lanes)
                    add_scaled(weights[j, t], mine_above, grad_value + other, lanes)
                    other += step

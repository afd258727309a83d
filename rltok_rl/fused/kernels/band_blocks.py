"""Causal attention inside a long window: matrix products of a block of queries and the keys that any of them sees.

Shapes: B rows, T places, H heads, C channels, W places in the window, n queries of a block, m keys.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels.arithmetic import add_outer, exp, f32, inline, kernel, multiply, tanh, transpose

QUERIES = 64
"""Queries of a block. More see more keys in vain, fewer make smaller products."""


@inline
def _stride(n):
    """Return a row's length in memory: few values, because oneDNN keeps a program for each; no power of two."""
    return -(-n // 512) * 512 + 16


@inline
def _softmax(scores, slopes, before, window, scale, cap):
    """Turn products [n, m] into weights: row i sees the last ``window`` of keys 0 .. ``before + i``.

    Writes the slopes of the soft cap, if there is one (``cap`` is not 0).
    """
    for i in range(scores.shape[0]):
        end = before + i + 1
        begin = max(0, end - window)
        if cap > 0:
            for j in range(end):
                t = tanh(scores[i, j] * (scale / cap))
                scores[i, j] = t * cap
                slopes[i, j] = f32(1.0) - t * t
        else:
            for j in range(end):
                scores[i, j] *= scale
        for j in range(begin):
            scores[i, j] = f32(-np.inf)
        best, total = f32(-np.inf), f32(0.0)
        for j in range(end):
            best = scores[i, j] if scores[i, j] > best else best
        for j in range(end):
            weight = exp(scores[i, j] - best)
            scores[i, j] = weight
            total += weight
        share = f32(1.0) / total
        for j in range(end):
            scores[i, j] *= share
        for j in range(begin):
            scores[i, j] = f32(0.0)
        for j in range(end, scores.shape[1]):
            scores[i, j] = f32(0.0)
            slopes[i, j] = f32(0.0)  # another head's are there, and may be NaN


@inline
def _softmax_backward(weights, grad, slopes, scale, cap):
    """Turn gradients of weights [n, m] into those of products."""
    for i in range(weights.shape[0]):
        mean = f32(0.0)
        for j in range(weights.shape[1]):
            mean += weights[i, j] * grad[i, j]
        for j in range(weights.shape[1]):
            grad[i, j] = weights[i, j] * (grad[i, j] - mean) * scale
        if cap > 0:
            for j in range(weights.shape[1]):
                grad[i, j] *= slopes[i, j]


@kernel
def block_part(qkv, window, cap, out, start, stop):
    """Attend in heads start .. stop of all rows' heads: [B, T, 3, H, C] to [B, T, H, C]; cap 0 is none."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    room = np.empty((2, QUERIES, _stride(min(length, QUERIES + window - 1))), np.float32)
    columns, scale = np.empty((channels, _stride(length)), np.float32), f32(1.0) / np.sqrt(f32(channels))
    keys = columns[:, :length]
    for n in range(start, stop):
        row, head = n // heads, n % heads
        transpose(qkv[row, :, 1, head], keys, False)
        for a in range(0, length, QUERIES):
            b, low = min(a + QUERIES, length), max(0, a + 1 - window)
            weights = room[0, : b - a, : b - low]
            multiply(qkv[row, a:b, 0, head], keys[:, low:b], weights, False)
            _softmax(weights, room[1], a - low, window, scale, cap)
            multiply(weights, qkv[row, low:b, 2, head], out[row, a:b, head], False)


@kernel
def block_part_backward(grad, qkv, window, cap, grad_qkv, start, stop):
    """Write the gradients of queries, keys and values of heads start .. stop of all rows' heads."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    most = min(length, QUERIES + window - 1)
    room, columns = np.empty((3, QUERIES, _stride(most)), np.float32), np.empty((most, QUERIES), np.float32)
    transposed = np.empty((2, channels, _stride(length)), np.float32)
    keys, values = transposed[0, :, :length], transposed[1, :, :length]
    scale = f32(1.0) / np.sqrt(f32(channels))
    for n in range(start, stop):
        row, head = n // heads, n % heads
        for t in range(length):
            for c in range(channels):
                grad_qkv[row, t, 1, head, c] = f32(0.0)
            for c in range(channels):
                grad_qkv[row, t, 2, head, c] = f32(0.0)
        transpose(qkv[row, :, 1, head], keys, False)
        transpose(qkv[row, :, 2, head], values, False)
        for a in range(0, length, QUERIES):
            b, low = min(a + QUERIES, length), max(0, a + 1 - window)
            weights, inner, slopes = room[0, : b - a, : b - low], room[1, : b - a, : b - low], room[2]
            query, above = qkv[row, a:b, 0, head], grad[row, a:b, head]
            multiply(query, keys[:, low:b], weights, False)
            _softmax(weights, slopes, a - low, window, scale, cap)
            multiply(above, values[:, low:b], inner, False)
            _softmax_backward(weights, inner, slopes, scale, cap)
            multiply(inner, qkv[row, low:b, 1, head], grad_qkv[row, a:b, 0, head], False)
            add_outer(inner, query, columns[: b - low], grad_qkv[row, low:b, 1, head])
            add_outer(weights, above, columns[: b - low], grad_qkv[row, low:b, 2, head])

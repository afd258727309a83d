"""Causal attention inside a long window: matrix products of a block of queries and the keys that any of them sees.

Shapes: B rows, T places, H heads, C channels, W places in the window, n queries of a block, m keys.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels.arithmetic import add_outer, exp, f32, inline, kernel, multiply, transpose

QUERIES = 64
"""Queries of a block. More see more keys in vain, fewer make smaller products."""


@inline
def _softmax(scores, unseen, window, scale):
    """Turn scores [n, m] into weights; row i sees ``window`` keys up to number ``unseen + i``, those there are."""
    for i in range(scores.shape[0]):
        end = unseen + i + 1
        begin = max(0, end - window)
        for j in range(begin):
            scores[i, j] = f32(-np.inf)
        best, total = f32(-np.inf), f32(0.0)
        for j in range(end):
            best = scores[i, j] if scores[i, j] > best else best
        for j in range(end):
            weight = exp((scores[i, j] - best) * scale)
            scores[i, j] = weight
            total += weight
        share = f32(1.0) / total
        for j in range(end):
            scores[i, j] *= share
        for j in range(begin):
            scores[i, j] = f32(0.0)
        for j in range(end, scores.shape[1]):
            scores[i, j] = f32(0.0)


@kernel
def block_part(qkv, window, out, start, stop):
    """Attend in rows start .. stop: [B, T, 3, H, C] to [B, T, H, C]."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    room = np.empty((QUERIES, min(length, QUERIES + window - 1)), np.float32)
    keys, scale = np.empty((channels, length), np.float32), f32(1.0) / np.sqrt(f32(channels))
    for row in range(start, stop):
        for head in range(heads):
            transpose(qkv[row, :, 1, head], keys, False)
            for a in range(0, length, QUERIES):
                b, low = min(a + QUERIES, length), max(0, a + 1 - window)
                weights = room[: b - a, : b - low]
                multiply(qkv[row, a:b, 0, head], keys[:, low:b], weights, False)
                _softmax(weights, a - low, window, scale)
                multiply(weights, qkv[row, low:b, 2, head], out[row, a:b, head], False)


@kernel
def block_part_backward(grad, qkv, window, grad_qkv, start, stop):
    """Write the gradients of queries, keys and values of rows start .. stop."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    most, flat = min(length, QUERIES + window - 1), grad_qkv.reshape(-1)
    room, columns = np.empty((2, QUERIES, most), np.float32), np.empty((most, QUERIES), np.float32)
    keys, values = np.empty((channels, length), np.float32), np.empty((channels, length), np.float32)
    scale = f32(1.0) / np.sqrt(f32(channels))
    for i in range(start * flat.size // len(qkv), stop * flat.size // len(qkv)):
        flat[i] = f32(0.0)
    for row in range(start, stop):
        for head in range(heads):
            transpose(qkv[row, :, 1, head], keys, False)
            transpose(qkv[row, :, 2, head], values, False)
            for a in range(0, length, QUERIES):
                b, low = min(a + QUERIES, length), max(0, a + 1 - window)
                weights, slopes = room[0, : b - a, : b - low], room[1, : b - a, : b - low]
                query, above = qkv[row, a:b, 0, head], grad[row, a:b, head]
                multiply(query, keys[:, low:b], weights, False)
                _softmax(weights, a - low, window, scale)
                multiply(above, values[:, low:b], slopes, False)
                for i in range(b - a):
                    mean = f32(0.0)
                    for j in range(b - low):
                        mean += weights[i, j] * slopes[i, j]
                    for j in range(b - low):
                        slopes[i, j] = weights[i, j] * (slopes[i, j] - mean) * scale
                multiply(slopes, qkv[row, low:b, 1, head], grad_qkv[row, a:b, 0, head], False)
                add_outer(slopes, query, columns[: b - low], grad_qkv[row, low:b, 1, head])
                add_outer(weights, above, columns[: b - low], grad_qkv[row, low:b, 2, head])

"""Causal attention inside a window: one query after the other, or matrix products where the window holds all places.

Shapes: B rows, T places, H heads, C channels.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels.arithmetic import exp, f32, inline, kernel, multiply, transpose


@inline
def _weights(qkv, row, head, t, low, scale, out):
    """Write the weights of keys low .. t for query t."""
    channels, best = qkv.shape[4], f32(-np.inf)
    for u in range(low, t + 1):
        dot = f32(0.0)
        for c in range(channels):
            dot += qkv[row, t, 0, head, c] * qkv[row, u, 1, head, c]
        out[u - low] = dot * scale
    for j in range(t + 1 - low):
        best = out[j] if out[j] > best else best
    total = f32(0.0)
    for j in range(t + 1 - low):
        weight = exp(out[j] - best)
        out[j] = weight
        total += weight
    share = f32(1.0) / total
    for j in range(t + 1 - low):
        out[j] *= share


@inline
def _whole_weights(query, keys, scale, out):
    """Write all weights [T, T], 0 at later keys, of queries [T, C] and keys [C, T]."""
    length = len(out)
    multiply(query, keys, out, False)
    for t in range(length):
        best, total = out[t, 0], f32(0.0)
        for u in range(t + 1):
            best = out[t, u] if out[t, u] > best else best
        for u in range(t + 1):
            weight = exp((out[t, u] - best) * scale)
            out[t, u] = weight
            total += weight
        share = f32(1.0) / total
        for u in range(t + 1):
            out[t, u] *= share
        for u in range(t + 1, length):
            out[t, u] = f32(0.0)


@inline
def _whole_part(qkv, out, start, stop):
    """As :func:`band_part`, for a window of at least T."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    weights, keys = np.empty((length, length), np.float32), np.empty((channels, length), np.float32)
    scale = f32(1.0) / np.sqrt(f32(channels))
    for row in range(start, stop):
        for head in range(heads):
            transpose(qkv[row, :, 1, head], keys, False)
            _whole_weights(qkv[row, :, 0, head], keys, scale, weights)
            multiply(weights, qkv[row, :, 2, head], out[row, :, head], False)


@inline
def _whole_part_backward(grad, qkv, grad_qkv, start, stop):
    """As :func:`band_part_backward`, for a window of at least T."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    weights, slopes = np.empty((length, length), np.float32), np.empty((length, length), np.float32)
    square_t, columns = np.empty((length, length), np.float32), np.empty((channels, length), np.float32)
    scale = f32(1.0) / np.sqrt(f32(channels))
    for row in range(start, stop):
        for head in range(heads):
            query, key, value = qkv[row, :, 0, head], qkv[row, :, 1, head], qkv[row, :, 2, head]
            above, to = grad[row, :, head], grad_qkv[row]
            transpose(key, columns, False)
            _whole_weights(query, columns, scale, weights)
            transpose(value, columns, False)
            multiply(above, columns, slopes, False)
            for t in range(length):
                mean = f32(0.0)
                for u in range(length):
                    mean += weights[t, u] * slopes[t, u]
                for u in range(length):
                    slopes[t, u] = weights[t, u] * (slopes[t, u] - mean) * scale
            multiply(slopes, key, to[:, 0, head], False)
            transpose(slopes, square_t, False)
            multiply(square_t, query, to[:, 1, head], False)
            transpose(weights, square_t, False)
            multiply(square_t, above, to[:, 2, head], False)


@kernel
def band_part(qkv, window, out, start, stop):
    """Attend in rows start .. stop: [B, T, 3, H, C] to [B, T, H, C]."""
    if window >= qkv.shape[1]:
        _whole_part(qkv, out, start, stop)
        return
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    weights = np.empty(min(window, length), np.float32)
    scale = f32(1.0) / np.sqrt(f32(channels))
    for row in range(start, stop):
        for head in range(heads):
            for t in range(length):
                low = max(0, t + 1 - window)
                _weights(qkv, row, head, t, low, scale, weights)
                for c in range(channels):
                    out[row, t, head, c] = f32(0.0)
                for u in range(low, t + 1):
                    weight = weights[u - low]
                    for c in range(channels):
                        out[row, t, head, c] += weight * qkv[row, u, 2, head, c]


@kernel
def band_part_backward(grad, qkv, window, grad_qkv, start, stop):
    """Write the gradients of queries, keys and values of rows start .. stop."""
    if window >= qkv.shape[1]:
        _whole_part_backward(grad, qkv, grad_qkv, start, stop)
        return
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    weights, slopes = np.empty(min(window, length), np.float32), np.empty(min(window, length), np.float32)
    scale = f32(1.0) / np.sqrt(f32(channels))
    flat = grad_qkv.reshape(-1)
    for i in range(start * flat.size // len(grad_qkv), stop * flat.size // len(grad_qkv)):
        flat[i] = f32(0.0)
    for row in range(start, stop):
        for head in range(heads):
            for t in range(length):
                low = max(0, t + 1 - window)
                _weights(qkv, row, head, t, low, scale, weights)
                mean = f32(0.0)
                for u in range(low, t + 1):
                    dot = f32(0.0)
                    for c in range(channels):
                        dot += grad[row, t, head, c] * qkv[row, u, 2, head, c]
                    slopes[u - low] = dot
                    mean += weights[u - low] * dot
                for u in range(low, t + 1):
                    weight = weights[u - low]
                    slope = weight * (slopes[u - low] - mean) * scale
                    for c in range(channels):
                        grad_qkv[row, t, 0, head, c] += slope * qkv[row, u, 1, head, c]
                        grad_qkv[row, u, 1, head, c] += slope * qkv[row, t, 0, head, c]
                        grad_qkv[row, u, 2, head, c] += weight * grad[row, t, head, c]

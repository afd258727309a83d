"""Causal attention inside a window: one query after the other, or matrix products where the window holds all places.

Shapes: B rows, T places, H heads, C channels.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels.arithmetic import exp, f32, inline, kernel, product


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
def _whole_weights(query, key, step, channels, scale, out):
    """Write all weights [T, T], 0 at later keys; rows of the queries and keys at these addresses are ``step`` apart."""
    length = len(out)
    product(1, length, length, channels, key, step, query, step, 0.0, out.ctypes.data, length)
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
    weights, width = np.empty((length, length), np.float32), heads * channels
    scale = f32(1.0) / np.sqrt(f32(channels))
    for row in range(start, stop):
        for head in range(heads):
            query = qkv.ctypes.data + 4 * (3 * row * length * width + head * channels)
            key, value = query + 4 * width, query + 8 * width
            _whole_weights(query, key, 3 * width, channels, scale, weights)
            at = out.ctypes.data + 4 * (row * length * width + head * channels)
            product(0, channels, length, length, value, 3 * width, weights.ctypes.data, length, 0.0, at, width)
            weights[0, 0] = f32(0.0)  # in use until here


@inline
def _whole_part_backward(grad, qkv, grad_qkv, start, stop):
    """As :func:`band_part_backward`, for a window of at least T."""
    length, heads, channels = qkv.shape[1], qkv.shape[3], qkv.shape[4]
    weights, slopes = np.empty((length, length), np.float32), np.empty((length, length), np.float32)
    scale, width = f32(1.0) / np.sqrt(f32(channels)), heads * channels
    step, w, s = 3 * width, weights.ctypes.data, slopes.ctypes.data
    for row in range(start, stop):
        for head in range(heads):
            place = 4 * (3 * row * length * width + head * channels)
            query, to = qkv.ctypes.data + place, grad_qkv.ctypes.data + place
            key, value, above = (
                query + 4 * width,
                query + 8 * width,
                grad.ctypes.data + 4 * (row * length * width + head * channels),
            )
            _whole_weights(query, key, step, channels, scale, weights)
            product(1, length, length, channels, value, step, above, width, 0.0, s, length)
            for t in range(length):
                mean = f32(0.0)
                for u in range(length):
                    mean += weights[t, u] * slopes[t, u]
                for u in range(length):
                    slopes[t, u] = weights[t, u] * (slopes[t, u] - mean) * scale
            product(0, channels, length, length, key, step, s, length, 0.0, to, step)
            product(2, channels, length, length, query, step, s, length, 0.0, to + 4 * width, step)
            product(2, channels, length, length, above, width, w, length, 0.0, to + 8 * width, step)
            weights[0, 0] = slopes[0, 0]  # in use until here


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

"""A transformer layer before and after its attention, block by block of rows, so that intermediates stay in the cache.

Shapes: n rows, D width, H heads of C channels, h hidden units.
"""

from __future__ import annotations

import numpy as np

from rltok_rl.fused.kernels import BLOCK
from rltok_rl.fused.kernels.arithmetic import add_outer, exp_parts, f32, inline, kernel, multiply, transpose, transposed
from rltok_rl.fused.kernels.norm_rows import add_norm_rows, norm_rows, norm_rows_backward
from rltok_rl.fused.kernels.vectors import rotate


@inline
def rotate_rows(qkv, first, cos, sin, sign, half_lanes):
    """Rotate queries and keys, the first two thirds of rows [n, 3 D] without gaps, in place.

    Row 0 has the angles of row ``first``; a ``sign`` of -1 rotates back; ``half_lanes`` are those of C / 2.
    """
    period, size, width = cos.shape[0], cos.shape[1], qkv.shape[1]
    row, step = np.uintp(qkv.ctypes.data), np.uintp(4 * size)
    cosines, sines = np.uintp(cos.ctypes.data), np.uintp(sin.ctypes.data)
    for i in range(qkv.shape[0]):
        angle, left = np.uintp((first + i) % period) * step, row
        for _ in range(width // 3 // size):  # twice D / C heads
            rotate(left, left + step, cosines + angle, sines + angle, sign, half_lanes)
            left += step + step
        row += np.uintp(4 * width)


@kernel
def heads_part(x, norm, eps, weight, cos, sin, half_lanes, qkv, start, stop):
    """Write rotated queries, keys and values of rows start .. stop; ``half_lanes`` are those of C / 2."""
    normed, weight_t = np.empty((BLOCK, x.shape[1]), np.float32), transposed(weight)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        block = normed[: b - a]
        norm_rows(x[a:b], norm, eps, block)
        multiply(block, weight_t, qkv[a:b], False)
        rotate_rows(qkv[a:b], a, cos, sin, f32(1.0), half_lanes)


@kernel
def heads_part_backward(
    grad_qkv, x, norm, eps, weight, cos, sin, half_lanes, grad_x, grad_norm, grad_weight, start, stop
):
    """Write ``grad_x`` of rows start .. stop; add to the weights' gradients."""
    normed, back = np.empty((BLOCK, x.shape[1]), np.float32), np.empty((BLOCK, x.shape[1]), np.float32)
    rotated, columns = np.empty((BLOCK, grad_qkv.shape[1]), np.float32), np.empty((x.shape[1], BLOCK), np.float32)
    total_t = np.zeros((x.shape[1], grad_qkv.shape[1]), np.float32)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        block, grad, inner = normed[: b - a], rotated[: b - a], back[: b - a]
        for i in range(b - a):
            for j in range(grad_qkv.shape[1]):
                grad[i, j] = grad_qkv[a + i, j]
        rotate_rows(grad, a, cos, sin, f32(-1.0), half_lanes)
        norm_rows(x[a:b], norm, eps, block)
        add_outer(block, grad, columns, total_t)
        multiply(grad, weight, inner, False)
        norm_rows_backward(inner, x[a:b], norm, eps, grad_x[a:b], grad_norm)
    transpose(total_t, grad_weight, True)


@inline
def gelu_parts(x):
    """Return the tanh of GELU's approximation, and its argument's derivative."""
    square = x * x
    u = f32(0.7978845608028654) * x * (f32(1.0) + f32(0.044715) * square)
    u = f32(-10.0) if u < f32(-10.0) else u
    u = f32(10.0) if u > f32(10.0) else u
    p, s = exp_parts(f32(2.0) * u)
    t = s * p + (s - f32(1.0))
    return t / (t + f32(2.0)), f32(0.7978845608028654) * (f32(1.0) + f32(3 * 0.044715) * square)


@inline
def gate_rows(gate_up, hidden):
    """``gelu(gate) up``: [n, 2 h] to [n, h]."""
    width = hidden.shape[1]
    for i in range(hidden.shape[0]):
        for j in range(width):
            x = gate_up[i, j]
            t, _ = gelu_parts(x)
            hidden[i, j] = f32(0.5) * x * (f32(1.0) + t) * gate_up[i, width + j]


@inline
def gate_rows_backward(grad, gate_up, hidden, grad_gate_up):
    """Gradients [n, 2 h] of gate and up; also writes ``hidden`` [n, h] again."""
    width = hidden.shape[1]
    for i in range(hidden.shape[0]):
        for j in range(width):
            x, up, g = gate_up[i, j], gate_up[i, width + j], grad[i, j]
            t, slope = gelu_parts(x)
            gelu = f32(0.5) * x * (f32(1.0) + t)
            hidden[i, j] = gelu * up
            grad_gate_up[i, width + j] = g * gelu
            grad_gate_up[i, j] = g * up * f32(0.5) * ((f32(1.0) + t) + x * (f32(1.0) - t * t) * slope)


@kernel
def finish_part(
    x, attended, out_weight, out_norm, mlp_norm, gate_up_weight, down_weight, mlp_out_norm, eps, keep, branch, gate_up,
    mlp, out, start, stop,
):  # fmt: skip
    """Add attention's output and the MLP to rows start .. stop.

    ``branch`` [n, D], ``gate_up`` [n, 2 h] and ``mlp`` [n, D] are written if ``keep``, for the backward pass.
    """
    width, held = x.shape[1], 0 if keep else BLOCK
    branch_block, gate_up_block = np.empty((held, width), np.float32), np.empty((held, len(gate_up_weight)), np.float32)
    mlp_block = np.empty((held, width), np.float32)
    if not keep:
        branch, gate_up, mlp = branch_block, gate_up_block, mlp_block
    middle_rows, normed = np.empty((BLOCK, width), np.float32), np.empty((BLOCK, width), np.float32)
    hidden_rows = np.empty((BLOCK, down_weight.shape[1]), np.float32)
    out_weight_t, gate_up_weight_t, down_weight_t = (
        transposed(out_weight),
        transposed(gate_up_weight),
        transposed(down_weight),
    )
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        n, at = b - a, a if keep else 0
        middle, block, hidden = middle_rows[:n], normed[:n], hidden_rows[:n]
        branch_rows, gate_up_rows, mlp_rows = branch[at : at + n], gate_up[at : at + n], mlp[at : at + n]
        multiply(attended[a:b], out_weight_t, branch_rows, False)
        add_norm_rows(x[a:b], branch_rows, out_norm, eps, middle)
        norm_rows(middle, mlp_norm, eps, block)
        multiply(block, gate_up_weight_t, gate_up_rows, False)
        gate_rows(gate_up_rows, hidden)
        multiply(hidden, down_weight_t, mlp_rows, False)
        add_norm_rows(middle, mlp_rows, mlp_out_norm, eps, out[a:b])


@kernel
def finish_part_backward(
    grad, x, attended, out_weight, out_norm, mlp_norm, gate_up_weight, down_weight, mlp_out_norm, eps, branch, gate_up,
    mlp, grad_x, grad_attended, grad_out_weight, grad_out_norm, grad_mlp_norm, grad_gate_up_weight, grad_down_weight,
    grad_mlp_out_norm, start, stop,
):  # fmt: skip
    """Write ``grad_x`` and ``grad_attended`` of rows start .. stop; add to the weights' gradients."""
    width, size = x.shape[1], down_weight.shape[1]
    narrow = np.empty((4, BLOCK, width), np.float32)
    hidden_rows, grad_hidden_rows = np.empty((BLOCK, size), np.float32), np.empty((BLOCK, size), np.float32)
    grad_gate_up_rows = np.empty((BLOCK, 2 * size), np.float32)
    columns, total_t = np.empty((width, BLOCK), np.float32), np.zeros((width, 2 * size), np.float32)
    for a in range(start, stop, BLOCK):
        b = min(a + BLOCK, stop)
        n = b - a
        middle, normed, inner, outer = narrow[0, :n], narrow[1, :n], narrow[2, :n], narrow[3, :n]
        hidden, grad_hidden, grad_gate_up = hidden_rows[:n], grad_hidden_rows[:n], grad_gate_up_rows[:n]
        add_norm_rows(x[a:b], branch[a:b], out_norm, eps, middle)
        norm_rows(middle, mlp_norm, eps, normed)
        norm_rows_backward(grad[a:b], mlp[a:b], mlp_out_norm, eps, inner, grad_mlp_out_norm)
        multiply(inner, down_weight, grad_hidden, False)
        gate_rows_backward(grad_hidden, gate_up[a:b], hidden, grad_gate_up)
        add_outer(inner, hidden, columns, grad_down_weight)
        add_outer(normed, grad_gate_up, columns, total_t)
        multiply(grad_gate_up, gate_up_weight, inner, False)
        norm_rows_backward(inner, middle, mlp_norm, eps, outer, grad_mlp_norm)
        total = grad_x[a:b]
        for i in range(n):
            for j in range(width):
                total[i, j] = grad[a + i, j] + outer[i, j]
        norm_rows_backward(total, branch[a:b], out_norm, eps, inner, grad_out_norm)
        add_outer(inner, attended[a:b], columns, grad_out_weight)
        multiply(inner, out_weight, grad_attended[a:b], False)
    transpose(total_t, grad_gate_up_weight, True)

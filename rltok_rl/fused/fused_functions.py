"""Fused operations on tensors, with gradients: the parts of a layer, windowed attention, norms, byte likelihoods.

Shapes: L any dimensions of rows, B rows, T places, D width, H heads, C channels, h hidden units, V bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rltok_rl.fused.launch import PARTS, launch

SHORT_WINDOW = 16
"""Largest window whose keys are taken one by one; above, products of blocks are faster."""


def _rows(x: Tensor) -> Tensor:
    """[*L, D] to contiguous [n, D]."""
    return x.contiguous().view(-1, x.shape[-1])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute ``x / sqrt(mean x^2 + eps) * (1 + weight)`` over the last dimension."""
    return _Norm.apply(x, weight, eps)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        from rltok_rl.fused.kernels.norm_rows import norm_part

        rows = _rows(x)
        out = torch.empty_like(rows)
        launch(norm_part, (rows, weight, _real(eps)), (out,), len(rows))
        ctx.save_for_backward(rows, weight)
        ctx.eps = eps
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        from rltok_rl.fused.kernels.norm_rows import norm_part_backward

        x, weight = ctx.saved_tensors
        grad_x = torch.empty_like(x)
        (grad_weight,) = launch(
            norm_part_backward, (_rows(grad), x, weight, _real(ctx.eps)), (grad_x,), len(x), (weight,)
        )
        return grad_x.view(grad.shape), grad_weight, None


def project_heads(x: Tensor, norm: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Normalise [*L, D], project to [*L, 3 D], and rotate queries and keys.

    Angles [*M, 1, C / 2] repeat along the first dimensions of L; C is the size of a head.
    """
    return _Heads.apply(x, norm, weight, cos, sin, eps)


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
        from rltok_rl.fused.kernels.layer_rows import heads_part
        from rltok_rl.fused.kernels.vectors import lanes_of

        rows, cos, sin = _rows(x), _rows(cos), _rows(sin)
        out, ctx.half_lanes, ctx.eps = rows.new_empty(len(rows), len(weight)), lanes_of(cos.shape[-1]), eps
        launch(heads_part, (rows, norm, _real(eps), weight, cos, sin, ctx.half_lanes), (out,), len(rows))
        ctx.save_for_backward(rows, norm, weight, cos, sin)
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        from rltok_rl.fused.kernels.layer_rows import heads_part_backward

        x, norm, weight, cos, sin = ctx.saved_tensors
        grad_x, read = torch.empty_like(x), (_rows(grad), x, norm, _real(ctx.eps), weight, cos, sin, ctx.half_lanes)
        grad_norm, grad_weight = launch(heads_part_backward, read, (grad_x,), len(x), (norm, weight))
        return grad_x.view(*grad.shape[:-1], -1), grad_norm, grad_weight, None, None, None


def finish_layer(x: Tensor, attended: Tensor, weights: Sequence[Tensor], eps: float) -> Tensor:
    """Add attention's output and the gated MLP to [*L, D], as ``TransformerLayer.finish``.

    ``weights``: projection of attention [D, D], its norm, the MLP's norm, gate and up [2 h, D], down [D, h], its norm.
    """
    keep = torch.is_grad_enabled() and any(y.requires_grad for y in (x, attended, *weights))
    return _Finish.apply(x, attended, eps, keep, *weights)


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, attended: Tensor, eps: float, keep: bool, *weights: Tensor) -> Tensor:
        from rltok_rl.fused.kernels.layer_rows import finish_part

        rows, attended, kept = _rows(x), _rows(attended), x.numel() // x.shape[-1] if keep else 0
        inner = tuple(rows.new_empty(kept, size) for size in (rows.shape[1], len(weights[3]), rows.shape[1]))
        out = torch.empty_like(rows)
        launch(finish_part, (rows, attended, *weights, _real(eps), keep), (*inner, out), len(rows))
        ctx.save_for_backward(rows, attended, *weights, *inner)
        ctx.eps = eps
        return out.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        from rltok_rl.fused.kernels.layer_rows import finish_part_backward

        saved = ctx.saved_tensors  # once: recomputed layers unpack it once
        (x, attended, *weights), inner = saved[:8], saved[8:]
        grads = torch.empty_like(x), torch.empty_like(attended)
        read = (_rows(grad), x, attended, *weights, _real(ctx.eps), *inner)
        sums = launch(finish_part_backward, read, grads, len(x), weights)
        return grads[0].view(grad.shape), grads[1].view(grad.shape), None, None, *sums


def band_attention(qkv: Tensor, num_heads: int, window: int, cap: float | None = None) -> Tensor:
    """Attend to the last ``window`` places, the own one included: [B, T, 3 D] to [B, T, D]; ``cap`` caps scores."""
    if window < 1:
        raise ValueError(f"window must be at least 1 (a byte sees itself), got {window}")
    if qkv.dtype != torch.float32:
        raise TypeError(f"qkv must be float32, got {qkv.dtype}")
    return _Band.apply(qkv, num_heads, window, cap)


class _Band(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, num_heads: int, window: int, cap: float | None) -> Tensor:
        from rltok_rl.fused.kernels.vectors import lanes_of

        batch, length, width = qkv.shape
        qkv = qkv.contiguous().view(batch, length, 3, num_heads, width // 3 // num_heads)
        out = qkv.new_empty(batch, length, num_heads, qkv.shape[-1])
        window, heads = min(window, length), batch * num_heads
        ctx.short = cap is None and window <= SHORT_WINDOW
        last = lanes_of(qkv.shape[-1]) if ctx.short else _real(cap or 0.0)
        ctx.options = (window, last)
        launch(_band_kernels(ctx.short)[0], (qkv, *ctx.options), (out,), heads, parts=min(heads, PARTS))
        ctx.save_for_backward(qkv)
        return out.view(batch, length, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (qkv,) = ctx.saved_tensors
        grad_qkv, heads = torch.empty_like(qkv), qkv.shape[0] * qkv.shape[3]
        grad = grad.contiguous().view(*qkv.shape[:2], *qkv.shape[3:])
        launch(_band_kernels(ctx.short)[1], (grad, qkv, *ctx.options), (grad_qkv,), heads, parts=min(heads, PARTS))
        return grad_qkv.view(*qkv.shape[:2], -1), None, None, None


def _band_kernels(short: bool) -> tuple[Any, Any]:
    from rltok_rl.fused.kernels import band_blocks, band_rows

    if short:
        return band_rows.band_part, band_rows.band_part_backward
    return band_blocks.block_part, band_blocks.block_part_backward


def head_log_prob(x: Tensor, weight: Tensor, targets: Tensor, cap: float | None) -> Tensor:
    """Compute log-likelihoods [*L] of ``targets`` under capped logits of [*L, D], ``weight`` [V, D]."""
    keep = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return _HeadLogProb.apply(x, weight, targets, cap, keep)


class _HeadLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, cap: float | None, keep: bool) -> Tensor:
        from rltok_rl.fused.kernels.head_rows import head_part

        rows, chosen, limit = _rows(x), targets.to(torch.int64).contiguous().view(-1), _real(cap or 0.0)
        log_probs, sums = rows.new_empty(len(rows)), rows.new_empty(len(rows))
        logits = rows.new_empty(len(rows) if keep else 0, len(weight))
        launch(head_part, (rows, weight, chosen, limit, keep), (log_probs, sums, logits), len(rows))
        ctx.save_for_backward(rows, weight, chosen, sums, logits)
        ctx.limit = limit
        return log_probs.view(targets.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        from rltok_rl.fused.kernels.head_rows import head_part_backward

        x, weight, chosen, sums, logits = ctx.saved_tensors
        grad_x, read = torch.empty_like(x), (grad.contiguous().view(-1), x, weight, chosen, ctx.limit, sums, logits)
        (grad_weight,) = launch(head_part_backward, read, (grad_x,), len(x), (weight,))
        return grad_x.view(*grad.shape, -1), grad_weight, None, None, None


def _real(x: float) -> Any:
    import numpy as np

    return np.float32(x)


def scan(x: Tensor, decay: float | Tensor) -> Tensor:
    """Compute ``out_t = x_t + c_t out_{t+1}`` from the end, over the last dimension of [*B, T], without gradients.

    ``decay`` is c, one number or [*B, T].
    """
    from rltok_rl.fused.kernels.scan_rows import scan_part

    rows, out = _rows(x.detach()), x.new_empty(x.shape)
    if isinstance(decay, Tensor) and decay.dim():
        factors = _rows(decay.detach().to(x).expand_as(x))
    else:
        factors = x.new_full((1, 1), float(decay), dtype=torch.float64)
    launch(scan_part, (rows, factors), (out.view(rows.shape),), len(rows), parts=1)
    return out

"""Thresholds: everything in a boundary decision besides its logit, as one number per position.

    a_t = [u_t < sigmoid(l_t)] = [l_t > theta_t],        theta_t = logit(u_t)

A soft cap is monotone and moves to the other side; forced and greedy decisions are thresholds too:

    sampled          theta = logit(u)
    soft-capped      theta = c atanh(logit(u) / c),  infinite where |logit(u)| >= c
    greedy           theta = 0                       (a tie at p = 1/2 draws no boundary)
    forced to 1, 0   theta = -inf, +inf
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def boundary_thresholds(
    uniforms: Tensor | None, shape: torch.Size, *, cap: float | None, forced: Tensor | None, like: Tensor
) -> Tensor:
    """Return the threshold theta of each uncapped logit, with the dtype and device of ``like``.

    Args:
        uniforms: [*B, T] in [0, 1); None is greedy. A uniform of 0 (probability 2^-24 in float32) always draws a
            boundary, because 0 < sigmoid(l). The logit is taken in the wider precision of ``uniforms`` and ``like``:
            rounding float64 numbers near 1 to 1 would exclude boundaries.
        shape: ``[*B, T]``.
        cap: soft cap of the logits, or None.
        forced: integers, -1 free, 0 or 1 forced, broadcastable to ``shape``; or None.
        like: any tensor.
    """
    if uniforms is None:
        thresholds = like.new_zeros(shape)
    else:
        thresholds = _logit(uniforms, like.dtype)
        if cap is not None:
            # |theta| >= cap maps to +-inf: tanh never reaches it, so the decision is certain.
            thresholds = cap * torch.atanh((thresholds / cap).clamp(-1.0, 1.0))
    if forced is not None:
        thresholds = thresholds.masked_fill(forced == 1, float("-inf")).masked_fill(forced == 0, float("inf"))
    return thresholds


def draw_boundary(logits: Tensor, uniforms: Tensor | None) -> Tensor:
    """Decide single positions by ``a = [l > logit(u)]``: logits [*L], soft-capped already, to bool [*L].

    Args:
        logits: [*L].
        uniforms: [*L] in [0, 1); None is greedy.

    Example:
        >>> draw_boundary(torch.tensor([0.0, 0.0]), torch.tensor([0.4, 0.6]))
        tensor([ True, False])
    """
    if logits.device.type == "cpu" and bool(logits.isnan().any()):
        raise ValueError(f"logits must be numbers, got nan at index {logits.isnan().nonzero()[0].tolist()}")
    thresholds = torch.zeros_like(logits) if uniforms is None else _logit(uniforms, logits.dtype)
    return logits > thresholds


def _logit(uniforms: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.logit(uniforms.to(torch.promote_types(uniforms.dtype, dtype))).to(dtype)


def check_options(
    uniforms: Tensor | None, shape: torch.Size, *, cap: float | None, forced: Tensor | None, device: torch.device
) -> None:
    """Check options of drawing; values on the CPU only, because reading them elsewhere makes the host wait."""
    if cap is not None and not 0 < cap < math.inf:
        raise ValueError(f"cap must be positive and finite, or None, got {cap}")
    for name, option in (("uniforms", uniforms), ("forced", forced)):
        if option is not None and not isinstance(option, Tensor):
            raise TypeError(f"{name} must be a tensor or None, got {type(option).__name__}")
    if uniforms is not None:
        if uniforms.shape != shape or not uniforms.dtype.is_floating_point or uniforms.device != device:
            raise ValueError(
                f"uniforms must be a floating-point tensor of shape {[*shape]} on {device}, "
                f"got {uniforms.dtype} {[*uniforms.shape]} on {uniforms.device}"
            )
        if device.type == "cpu" and uniforms.numel():
            low, high = (float(x) for x in uniforms.aminmax())
            if not (low >= 0.0 and high < 1.0):
                raise ValueError(f"uniforms must lie in [0, 1), got values from {low} to {high}")
    if forced is not None:
        if forced.dtype.is_floating_point or forced.dtype == torch.bool:
            raise TypeError(f"forced must be an integer tensor of -1 (free), 0 and 1, got {forced.dtype}")
        if forced.device != device:
            raise ValueError(f"forced must be on base's device, {device}, got {forced.device}")
        if forced.dim() > len(shape) or any(
            n not in (1, size) for n, size in zip(reversed(forced.shape), reversed(shape), strict=False)
        ):
            raise ValueError(f"forced must broadcast to {[*shape]}, got {[*forced.shape]}")
        if device.type == "cpu" and not bool(((forced >= -1) & (forced <= 1)).all()):
            raise ValueError(f"forced must hold -1 (free), 0 and 1, got {sorted(set(forced.flatten().tolist()))[:5]}")

"""Everything that decides a boundary besides its logit, folded into one number per position.

    a_t = [u_t < sigmoid(l_t)] = [l_t > theta_t],        theta_t = logit(u_t)

A soft cap is monotone, so that it moves to the other side; what is forced or thresholded is a threshold as well:

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
    """Return what each uncapped logit has to exceed.

    Args:
        uniforms: [*B, T] in [0, 1); None for greedy decisions. A uniform of 0 (probability 2^-24 in float32) always
            draws a boundary, as 0 < sigmoid(l) demands. Their logit is taken in their own precision if that is wider
            than ``like``'s: float64 numbers near 1 must not be rounded to 1, which no probability exceeds.
        shape: ``[*B, T]``.
        cap: soft cap of the logits, or None.
        forced: integers, -1 free, 0 or 1 forced, broadcastable to ``shape``; or None.
        like: a tensor with the dtype and device to return.

    Returns:
        [*B, T] thresholds theta.
    """
    if uniforms is None:
        thresholds = like.new_zeros(shape)
    else:
        thresholds = _logit(uniforms, like.dtype)
        if cap is not None:
            # |theta| >= cap maps to +-inf: tanh cannot get there, so that the decision is certain.
            thresholds = cap * torch.atanh((thresholds / cap).clamp(-1.0, 1.0))
    if forced is not None:
        thresholds = thresholds.masked_fill(forced == 1, float("-inf")).masked_fill(forced == 0, float("inf"))
    return thresholds


def draw_boundary(logits: Tensor, uniforms: Tensor | None) -> Tensor:
    """Decide single positions by the rule of the recurrence, ``a = [l > logit(u)]``.

    Args:
        logits: [*L] finished logits, soft-capped where they are.
        uniforms: [*L] in [0, 1); None is greedy.

    Returns:
        [*L] bool.

    Example:
        >>> draw_boundary(torch.tensor([0.0, 0.0]), torch.tensor([0.4, 0.6]))
        tensor([ True, False])
    """
    if logits.device.type == "cpu" and bool(logits.isnan().any()):
        raise ValueError(f"logits must be numbers, got nan at index {logits.isnan().nonzero()[0].tolist()}")
    thresholds = torch.zeros_like(logits) if uniforms is None else _logit(uniforms, logits.dtype)
    return logits > thresholds


def _logit(uniforms: Tensor, dtype: torch.dtype) -> Tensor:
    """Take the logit in the wider precision of the two, then round: 1 - 1e-12 is not to become 1 beforehand."""
    return torch.logit(uniforms.to(torch.promote_types(uniforms.dtype, dtype))).to(dtype)


def check_options(
    uniforms: Tensor | None, shape: torch.Size, *, cap: float | None, forced: Tensor | None, device: torch.device
) -> None:
    """Refuse options that do not fit, by name. Values are looked at on the CPU only: elsewhere the host would wait."""
    if cap is not None and not 0 < cap < math.inf:
        raise ValueError(f"cap must be positive and finite, or None, got {cap}")
    for name, given in (("uniforms", uniforms), ("forced", forced)):
        if given is not None and not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a tensor or None, got {type(given).__name__}")
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
        try:
            fits = torch.broadcast_shapes(forced.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(f"forced must broadcast to {[*shape]}, got {[*forced.shape]}")
        if device.type == "cpu" and not bool(((forced >= -1) & (forced <= 1)).all()):
            raise ValueError(f"forced must hold -1 (free), 0 and 1, got {sorted(set(forced.flatten().tolist()))[:5]}")

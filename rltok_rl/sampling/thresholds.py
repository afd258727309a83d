"""Thresholds: everything in a boundary decision besides its logit, as one number per position.

    a_t = [u_t < sigmoid(l_t)] = [l_t > theta_t],        theta_t = logit(u_t)

A soft cap is monotone and moves to the other side; forced and greedy decisions are thresholds too:

    sampled          theta = logit(u)
    soft-capped      theta = c atanh(logit(u) / c),  infinite where |logit(u)| >= c
    greedy           theta = 0                       (a tie at p = 1/2 draws no boundary)
    forced to 1, 0   theta = -inf, +inf
"""

from __future__ import annotations

import torch
from torch import Tensor


def boundary_thresholds(
    uniforms: Tensor | None, shape: torch.Size, *, cap: float | None, forced: Tensor | None, like: Tensor
) -> Tensor:
    """Return the threshold theta of each uncapped logit [*B, T], with the dtype and device of ``like``.

    ``uniforms`` [*B, T] are in [0, 1); None is greedy. A uniform of 0 always draws a boundary, because 0 < sigmoid(l).
    ``forced`` is -1 where free, 0 or 1 where forced, and broadcasts to the shape.
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
    """Decide single positions by ``a = [l > logit(u)]``: soft-capped logits [*L] to bool [*L]; None is greedy.

    Example:
        >>> draw_boundary(torch.tensor([0.0, 0.0]), torch.tensor([0.4, 0.6]))
        tensor([ True, False])
    """
    if logits.device.type == "cpu" and bool(logits.isnan().any()):
        raise ValueError(f"logits must be numbers, got nan at index {logits.isnan().nonzero()[0].tolist()}")
    thresholds = torch.zeros_like(logits) if uniforms is None else _logit(uniforms, logits.dtype)
    return logits > thresholds


def _logit(uniforms: Tensor, dtype: torch.dtype) -> Tensor:
    """In the wider precision: rounding float64 numbers near 1 to 1 would exclude boundaries."""
    wide = dtype if uniforms.dtype == dtype else torch.promote_types(uniforms.dtype, dtype)
    return torch.logit(uniforms.to(wide)).to(dtype)


def check_values(uniforms: Tensor | None, base: Tensor, forced: Tensor | None) -> None:
    """Check numbers to draw with; values on the CPU only, because reading them elsewhere makes the host wait."""
    if uniforms is not None and uniforms.device.type == "cpu" and uniforms.numel():
        low, high = (float(x) for x in uniforms.aminmax())
        if not (low >= 0.0 and high < 1.0):
            raise ValueError(f"uniforms must lie in [0, 1), got values from {low} to {high}")
    if forced is None:
        return
    if not isinstance(forced, Tensor) or forced.dtype.is_floating_point or forced.dtype == torch.bool:
        kind = str(forced.dtype) if isinstance(forced, Tensor) else type(forced).__name__
        raise TypeError(f"forced must be an integer tensor of -1 (free), 0 and 1, got {kind}")
    if forced.device != base.device:
        raise ValueError(f"forced must be on base's device, {base.device}, got {forced.device}")
    try:
        forced.expand(base.shape)
    except RuntimeError:
        raise ValueError(f"forced must broadcast to {[*base.shape]}, got {[*forced.shape]}") from None
    if forced.device.type == "cpu" and forced.numel():
        least, most = (int(x) for x in forced.aminmax())
        if least < -1 or most > 1:
            raise ValueError(f"forced must hold -1 (free), 0 and 1, got {sorted(set(forced.flatten().tolist()))[:5]}")

"""Gradients and advantages against a reference, with what chance does to the comparison.

Shapes: K repetitions of P numbers each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rltok_rl.diagnostics.gradient_quality import Signal, jackknife_error


@dataclass(frozen=True)
class Comparison:
    """An expected gradient beside a reference; lengths and angles without what noise adds."""

    cosine: float
    """Between the two, without the part that noise takes; nan where noise hides it."""
    cosine_error: float
    """Its standard error: the corrected cosine may come out above 1 by as much."""
    scale: float
    """Length of the expected gradient over that of the reference; nan likewise."""
    scale_error: float
    """Its standard error."""
    bias: float
    """``|E g - reference|`` over the length of the reference, what noise adds removed; 0 where noise adds more."""
    bias_limit: float
    """What the bias is below with 97.5 % confidence: two standard errors of its square above it."""


def compare(found: Signal, reference: Tensor | Signal) -> Comparison:
    """Cosine, scale and relative bias of an expected gradient against a reference, noise removed.

    Means of K noisy gradients are longer than the expected one, and point elsewhere; lengths are therefore taken from
    products of different repetitions. Where those leave less than two standard errors of signal, on either side, cosine
    and scale are nan. Errors are jackknifed over the repetitions of both sides.

    Args:
        found: what was measured of a candidate.
        reference: the exact gradient [P], or a measured one.
    """
    own = torch.tensor(found.signal, dtype=torch.float64)
    mean, lost = found.mean.double(), found.ratio < 2 * found.error
    # Without each repetition of the candidate, then without each of the reference.
    if isinstance(reference, Signal):
        target, length = reference.mean.double(), torch.tensor(reference.signal, dtype=torch.float64)
        cases = [(_left_out(found), length, _products_left(found, target))]
        cases.append((own, _left_out(reference), _products_left(reference, mean)))
        lost = lost or reference.ratio < 2 * reference.error
    else:
        target, length = reference.double(), reference.double().square().sum()
        cases = [(_left_out(found), length, _products_left(found, target))]
    known = bool(length > 0)
    lost = lost or not known

    def measures(signal: Tensor, squared: Tensor, along: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cosine = along / (signal * squared).clamp(min=0).sqrt()
        return cosine, (signal / squared).clamp(min=0).sqrt(), (signal - 2 * along + squared) / squared

    cosine, scale, bias = (x.item() for x in measures(own, length, mean @ target))
    left = [measures(*case) for case in cases]
    errors = [math.hypot(*(jackknife_error(values[i]) for values in left)) for i in range(3)]
    return Comparison(
        cosine=math.nan if lost else cosine,
        cosine_error=math.nan if lost else errors[0],
        scale=math.nan if lost else scale,
        scale_error=math.nan if lost else errors[1],
        bias=math.sqrt(max(bias, 0.0)) if known else math.nan,
        bias_limit=math.sqrt(max(bias + 2 * errors[2], 0.0)) if known else math.nan,
    )


def _left_out(found: Signal) -> Tensor:
    """[K] the signal without each repetition in turn."""
    gradients = found.gradients.double()
    count, total = len(gradients), gradients.sum(0)
    crossed = gradients @ total - gradients.square().sum(1)
    return (crossed.sum() - 2 * crossed) / ((count - 1) * (count - 2))


def _products_left(found: Signal, target: Tensor) -> Tensor:
    """[K] product of the mean with a target, without each repetition in turn."""
    along = found.gradients.double() @ target
    return (along.sum() - along) / (len(along) - 1)


def correlation(estimates: Tensor, truth: Tensor, *, groups: Tensor | None = None) -> tuple[float, float]:
    """Correlation over all entries of two tensors of one shape, and its standard error.

    Decisions of one text share what comes after them, so that thousands of them may say no more than a few. The error
    is therefore jackknifed over whole groups.

    Args:
        estimates: [...] one number per decision.
        truth: [...] of the same shape.
        groups: [...] int64, equal where entries depend on each other; None takes all entries for independent.

    Example:
        >>> value, error = correlation(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, -1.0, -1.0, 1.0]))
        >>> value, round(error, 3)
        (0.0, 0.707)
    """
    x, y = (v.double().flatten() - v.double().mean() for v in (estimates, truth))
    if not len(x) or not x.norm() * y.norm() > 0:
        raise ValueError(f"estimates and truth must both vary, got {len(x)} entries of which one side is constant")
    value = float((x @ y) / (x.norm() * y.norm()))
    if groups is None:
        return value, math.sqrt(max(0.0, 1 - value**2) / max(1, len(x) - 2))
    _, index = groups.flatten().unique(return_inverse=True)
    moments = torch.stack((torch.ones_like(x), x, y, x * x, y * y, x * y))  # [6, N]
    sums = torch.zeros(6, int(index.max()) + 1, dtype=x.dtype).index_add_(1, index, moments)
    if sums.shape[1] < 2:
        raise ValueError("groups must be at least 2 for a standard error, got 1")
    n, sx, sy, sxx, syy, sxy = sums.sum(1, keepdim=True) - sums  # [G] each, without group g
    left = (sxy - sx * sy / n) / ((sxx - sx * sx / n) * (syy - sy * sy / n)).sqrt()
    return value, jackknife_error(left)

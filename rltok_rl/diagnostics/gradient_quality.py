"""Quality of gradient estimates: policy gradients, signal and noise, comparison with a reference.

Shapes: B rows, T decisions, D width, w lags, K independent gradients of P numbers each. Standard errors are jackknifed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.models.unet import UNet


@torch.no_grad()
def policy_gradient(model: UNet, rollout: TensorDictBase, advantages: Tensor) -> Tensor:
    """Compute the gradient of ``-mean_t A_t log pi(a_t)`` for the weights of the boundary head, in closed form.

        d log pi(a_t) / d W_j  =  (a_t - p_t) (1 - l_t^2 / cap^2) scale  a_{t-j} X_t,        a_{t-0} := 1

    The mean is over all B T decisions; forced ones contribute 0. The head is where the policy gradient enters the
    model: the encoder's gradient is a linear function of the same terms. The soft cap is that of the model's mode.

    The model's rollout [*B, T] holds ``encoder_state``, ``recent``, ``logits``, ``action`` and ``forced``. Advantages
    are [*B, T]; gradients [*B', (1 + w) D], averaged over the last batch dimension.
    """
    head = model.boundary_head
    if head.projection.bias is not None:
        raise ValueError("model must have boundary_bias=False: the closed form covers the weights alone")
    logits, cap = rollout["logits"], head.cap
    if advantages.shape != logits.shape:
        raise ValueError(f"advantages must have the shape of logits, {[*logits.shape]}, got {[*advantages.shape]}")
    score = advantages * (rollout["action"].to(logits.dtype) - logits.sigmoid()) * head.scale
    if cap is not None:
        score = score * (1 - (logits / cap).square())
    score = score.masked_fill(rollout["forced"], 0.0)
    recent = rollout["recent"].to(logits.dtype)
    factors = torch.cat((torch.ones_like(logits).unsqueeze(-1), recent), -1) * score.unsqueeze(-1)  # [*B, T, 1 + w]
    states = model.encoder_norm(rollout["encoder_state"].to(head.projection.weight.dtype))  # [*B, T, D]
    per_row = factors.transpose(-1, -2) @ states  # [*B, 1 + w, D]
    return -per_row.flatten(-2).mean(-2) / logits.shape[-1]


@dataclass(frozen=True)
class Signal:
    """Signal and noise of a gradient estimate."""

    mean: Tensor  # [P]
    signal: float  # |E g|^2, without bias
    noise: float  # trace of the covariance of one estimate
    ratio: float  # signal / noise
    error: float  # standard error of the ratio (jackknife)
    gradients: Tensor  # [K, P]
    signal_error: float  # standard error of the signal (jackknife)


def signal_to_noise(gradients: Tensor) -> Signal:
    """Measure signal and noise of a gradient estimate from K >= 3 independent repetitions [K, P].

        |E g|^2  ~  mean over pairs i != j of g_i . g_j            tr Cov(g)  ~  mean_i |g_i|^2 - |E g|^2

    The square of the mean gradient would count noise as signal; products of different repetitions do not.

    Example:
        >>> estimate = signal_to_noise(torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]]))
        >>> round(estimate.signal, 3), round(estimate.noise, 3)
        (0.667, 1.0)
    """
    count = len(gradients)
    if gradients.dim() != 2 or count < 3:
        raise ValueError(f"gradients must be [K >= 3, P], got {[*gradients.shape]}")
    products = gradients.double() @ gradients.double().T  # [K, K]
    squares = products.diagonal()
    crossed = products.sum(1) - squares  # [K] of each with all others
    signal = crossed.sum() / (count * (count - 1))
    noise = squares.mean() - signal
    left_signal = (crossed.sum() - 2 * crossed) / ((count - 1) * (count - 2))
    left_noise = (squares.sum() - squares) / (count - 1) - left_signal
    error = jackknife_error(left_signal / left_noise)
    measures = signal.item(), noise.item(), (signal / noise).item(), error
    return Signal(gradients.mean(0), *measures, gradients, jackknife_error(left_signal))


def jackknife_error(left_out: Tensor) -> float:
    """Compute the standard error of an estimate from its values [K] without each of K independent repetitions in turn.

    error^2 = (K - 1) / K  sum_i (v_(-i) - mean v)^2
    """
    return ((len(left_out) - 1) * (left_out - left_out.mean()).square().mean()).sqrt().item()


@dataclass(frozen=True)
class Comparison:
    """An expected gradient compared with a reference, corrected for noise."""

    cosine: float  # corrected for noise; nan if noise hides it
    cosine_error: float  # its standard error; the corrected cosine may exceed 1 by as much
    scale: float  # length of the expected gradient over that of the reference; nan likewise
    scale_error: float
    bias: float  # ``|E g - reference| / |reference|``, corrected for noise; 0 if noise is larger
    bias_limit: float  # with at least 97.5 % confidence: sqrt(max(bias^2, 0) + 2 standard errors of bias^2)


def compare(estimate: Signal, reference: Tensor | Signal) -> Comparison:
    """Compute cosine, scale and relative bias of an expected gradient against a reference, exact [P] or measured.

    Means of K noisy gradients are longer than the expected one; lengths therefore come from products of different
    repetitions. If less than two standard errors of signal are left on either side, cosine and scale are nan.
    """
    strength = torch.tensor(estimate.signal, dtype=torch.float64)
    mean, lost = estimate.mean.double(), estimate.ratio < 2 * estimate.error
    cases = []  # without each repetition of the candidate, then without each of a measured reference
    if isinstance(reference, Signal):
        target, length = reference.mean.double(), torch.tensor(reference.signal, dtype=torch.float64)
        cases.append((strength, _left_out(reference), _products_left(reference, mean)))
        lost = lost or reference.ratio < 2 * reference.error
    else:
        target, length = reference.double(), reference.double().square().sum()
    cases.append((_left_out(estimate), length, _products_left(estimate, target)))
    known = bool(length > 0)

    def measures(signal: Tensor, squared: Tensor, along: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cosine = along / (signal * squared).clamp(min=0).sqrt()
        return cosine, (signal / squared).clamp(min=0).sqrt(), (signal - 2 * along + squared) / squared

    cosine, scale, bias = (x.item() for x in measures(strength, length, mean @ target))
    left = [measures(*case) for case in cases]
    errors = [math.hypot(*(jackknife_error(values[i]) for values in left)) for i in range(3)]
    direction = [cosine, errors[0], scale, errors[1]] if known and not lost else [math.nan] * 4
    square = max(bias, 0.0) if known else math.nan
    bounds = [math.sqrt(square), math.sqrt(square + 2 * errors[2])]
    return Comparison(*direction, *bounds)


def _left_out(estimate: Signal) -> Tensor:
    """[K] the signal without each repetition in turn."""
    gradients = estimate.gradients.double()
    count, total = len(gradients), gradients.sum(0)
    crossed = gradients @ total - gradients.square().sum(1)
    return (crossed.sum() - 2 * crossed) / ((count - 1) * (count - 2))


def _products_left(estimate: Signal, target: Tensor) -> Tensor:
    """[K] product of the mean with a target, without each repetition in turn."""
    along = estimate.gradients.double() @ target
    return (along.sum() - along) / (len(along) - 1)


def correlation(estimates: Tensor, truth: Tensor, *, groups: Tensor) -> tuple[float, float]:
    """Compute the correlation of two tensors of one shape, and its standard error over groups.

    Decisions of one text share later bytes and are not independent, so the error is jackknifed over whole groups, int64
    of the same shape.
    """
    x, y = (v.double().flatten() - v.double().mean() for v in (estimates, truth))
    if not len(x) or not x.norm() * y.norm() > 0:
        raise ValueError(f"estimates and truth must both vary, got {len(x)} entries of which one side is constant")
    value = float((x @ y) / (x.norm() * y.norm()))
    _, index = groups.flatten().unique(return_inverse=True)
    moments = torch.stack((torch.ones_like(x), x, y, x * x, y * y, x * y))  # [6, N]
    sums = torch.zeros(6, int(index.max()) + 1, dtype=x.dtype).index_add_(1, index, moments)
    if sums.shape[1] < 2:
        raise ValueError("groups must be at least 2 for a standard error, got 1")
    n, sx, sy, sxx, syy, sxy = sums.sum(1, keepdim=True) - sums  # [G] each, without group g
    left = (sxy - sx * sy / n) / ((sxx - sx * sx / n) * (syy - sy * sy / n)).sqrt()
    return value, jackknife_error(left)

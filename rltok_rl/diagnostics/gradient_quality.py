"""What a batch and its advantages do to the weights of the boundary policy, and how much of that is signal.

Shapes: B rows, T decisions, D width, w lags, K gradients of P numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.models.unet import UNet


@torch.no_grad()
def policy_gradient(model: UNet, rollout: TensorDictBase, advantages: Tensor) -> Tensor:
    """Gradient of ``-mean_t A_t log pi(a_t)`` with respect to the weights of the boundary head, in closed form.

        d log pi(a_t) / d W_j  =  (a_t - p_t) (1 - l_t^2 / cap^2) scale  a_{t-j} X_t,        a_{t-0} := 1

    The mean is over all B T decisions; forced ones contribute 0. Without autograd this costs less than the estimators
    that it serves to measure, and the head is where the policy gradient enters the model: what reaches the encoder is
    a linear function of the same per-decision terms.

    Args:
        model: the U-Net whose policy drew the rollout; its soft cap is that of its mode.
        rollout: tensordict [*B, T] with ``encoder_state``, ``recent``, ``logits``, ``action`` and ``forced``.
        advantages: [*B, T].

    Returns:
        [*B', (1 + w) D] where the rows [*B] have been averaged over the last batch dimension.
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
    factors = torch.cat((torch.ones_like(recent[..., :1]), recent), -1) * score.unsqueeze(-1)  # [*B, T, 1 + w]
    states = model.encoder_norm(rollout["encoder_state"].to(head.projection.weight.dtype))  # [*B, T, D]
    per_row = factors.transpose(-1, -2) @ states  # [*B, 1 + w, D]
    return -per_row.flatten(-2).mean(-2) / logits.shape[-1]


@dataclass(frozen=True)
class Signal:
    """How much of a gradient estimate is signal, judged from independent repetitions."""

    mean: Tensor  # [P]
    signal: float  # |E g|^2, without bias
    noise: float  # trace of the covariance of one estimate
    ratio: float  # signal / noise
    error: float  # standard error of the ratio (jackknife)
    gradients: Tensor  # [K, P] what it was judged from


def signal_to_noise(gradients: Tensor) -> Signal:
    """Signal and noise of a gradient estimate from K independent repetitions.

        |E g|^2  ~  mean over pairs i != j of g_i . g_j            tr Cov(g)  ~  mean_i |g_i|^2 - |E g|^2

    The square of the mean gradient would count noise as signal; products of different repetitions do not.

    Args:
        gradients: [K, P], K >= 3.

    Example:
        >>> found = signal_to_noise(torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 0.0]]))
        >>> round(found.signal, 3), round(found.noise, 3)
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
    # The same without each repetition in turn.
    left_signal = (crossed.sum() - 2 * crossed) / ((count - 1) * (count - 2))
    left_noise = (squares.sum() - squares) / (count - 1) - left_signal
    error = jackknife_error(left_signal / left_noise)
    return Signal(gradients.mean(0), signal.item(), noise.item(), (signal / noise).item(), error, gradients)


def jackknife_error(left_out: Tensor) -> float:
    """Standard error of an estimate, from its values without each of K independent repetitions in turn.

        error^2 = (K - 1) / K  sum_i (v_(-i) - mean v)^2

    Args:
        left_out: [K] the estimate without repetition i.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 6.0])
        >>> means = (x.sum() - x) / 2
        >>> round(jackknife_error(means), 4) == round((x.std() / 3**0.5).item(), 4)
        True
    """
    return ((len(left_out) - 1) * (left_out - left_out.mean()).square().mean()).sqrt().item()

"""Figures that tell how a policy update goes: scalars over real steps, without gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from rltok_rl.functional.policy_gradient import Clip, clip_bounds
from rltok_rl.functional.reduction import check_mask, masked_mean, zero_masked


@torch.no_grad()
def effective_sample_size(log_ratios: Tensor, mask: Tensor | None = None) -> Tensor:
    """Share of the steps that importance weights leave in effect, in (0, 1]; 1 on-policy.

        ESS = (sum_t r_t)^2 / (n sum_t r_t^2)

    Args:
        log_ratios: [*L] log pi(a_t) - log pi_old(a_t).
        mask: [*L] bool, True where a step counts.

    Returns:
        [].

    Example:
        >>> effective_sample_size(torch.zeros(5))
        tensor(1.)
    """
    check_mask(mask, log_ratios, "log_ratios")
    real = torch.ones_like(log_ratios) if mask is None else mask.to(log_ratios.dtype)
    # Relative to the largest, so that no weight overflows; the share does not depend on the scale.
    kept = log_ratios if mask is None else log_ratios.masked_fill(~mask, float("-inf"))
    weights = (kept - kept.max()).exp() * real
    return weights.sum().square() / (real.sum() * weights.square().sum()).clamp(min=torch.finfo(weights.dtype).tiny)


@torch.no_grad()
def approximate_kl(log_ratios: Tensor, mask: Tensor | None = None) -> Tensor:
    """Divergence of the new policy from the one that decided, ``mean_t (r_t - 1 - log r_t)``: never negative.

    Args:
        log_ratios: [*L] log pi(a_t) - log pi_old(a_t).
        mask: [*L] bool, True where a step counts.

    Example:
        >>> approximate_kl(torch.zeros(5))
        tensor(0.)
    """
    quiet = zero_masked(log_ratios, mask)
    return masked_mean(torch.expm1(quiet) - quiet, mask)


@torch.no_grad()
def clip_fraction(log_ratios: Tensor, clip: Clip, mask: Tensor | None = None) -> Tensor:
    """Share of the steps whose ratio lies outside the clip range.

    Args:
        log_ratios: [*L] log pi(a_t) - log pi_old(a_t).
        clip: epsilon, or (low, high).
        mask: [*L] bool, True where a step counts.

    Example:
        >>> clip_fraction(torch.tensor([0.0, 1.0]), 0.2)
        tensor(0.5000)
    """
    low, high = clip_bounds(clip)
    ratios = zero_masked(log_ratios, mask).exp()
    return masked_mean(((ratios < 1 - low) | (ratios > 1 + high)).to(ratios.dtype), mask)


@torch.no_grad()
def mean_and_spread(values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over real steps.

    Args:
        values: [*L].
        mask: [*L] bool, True where a step counts.

    Example:
        >>> mean_and_spread(torch.tensor([1.0, 3.0]))
        (tensor(2.), tensor(1.))
    """
    mean = masked_mean(values, mask)
    return mean, masked_mean((values - mean).square(), mask).sqrt()

"""Metrics of a policy update: scalars over unmasked steps of all processes, without gradient.

``log_ratios`` [*L] are log pi(a_t) - log pi_old(a_t).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from rltok_rl.functional.policy_gradient import Clip, clip_bounds
from rltok_rl.functional.reduction import Group, Mask, masked_mean, sum_and_count, wide, zero_masked
from rltok_rl.functional.takes import takes


@torch.no_grad()
@takes("log_ratios: float *L", "mask: bool *L")
def effective_sample_size(log_ratios: Tensor, mask: Mask = None, *, process_group: Group = None) -> Tensor:
    """Compute the share of steps that importance weights leave in effect, in (0, 1]; 1 on-policy or without steps.

    ESS = (sum_t r_t)^2 / (n sum_t r_t^2)        (Kish, Survey Sampling, 1965)
    """
    kept = log_ratios.to(wide(log_ratios))
    kept = kept if mask is None else kept.masked_fill(~mask, float("-inf"))
    # Relative to the largest, so that no weight overflows.
    largest = kept.max() if kept.numel() else kept.new_tensor(float("-inf"))
    if process_group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=process_group)
    weights = (kept - largest).exp()
    first, count = sum_and_count(weights, mask, process_group=process_group)
    second, _ = sum_and_count(weights.square(), mask, process_group=process_group)
    return torch.where(count > 0, first.square() / (count * second).clamp(min=1), 1.0).reshape(())


@torch.no_grad()
@takes("log_ratios: float *L", "mask: bool *L")
def approximate_kl(log_ratios: Tensor, mask: Mask = None, *, process_group: Group = None) -> Tensor:
    """Estimate the KL from the deciding policy, ``mean_t (r_t - 1 - log r_t)`` (joschu.net/blog/kl-approx.html, k3)."""
    quiet = zero_masked(log_ratios, mask).to(wide(log_ratios))
    return masked_mean(torch.expm1(quiet) - quiet, mask, process_group=process_group)


@torch.no_grad()
@takes("log_ratios: float *L", "mask: bool *L")
def clip_fraction(log_ratios: Tensor, clip: Clip, mask: Mask = None, *, process_group: Group = None) -> Tensor:
    """Return the share of steps whose ratio is outside the clip range."""
    low, high = clip_bounds(clip, log_ratios.device)
    ratios = zero_masked(log_ratios, mask).exp()
    return masked_mean(((ratios < 1 - low) | (ratios > 1 + high)).to(ratios.dtype), mask, process_group=process_group)


@torch.no_grad()
@takes("values: real *L", "mask: bool *L")
def mean_and_spread(values: Tensor, mask: Mask = None, *, process_group: Group = None) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of values [*L]."""
    mean = masked_mean(values, mask, process_group=process_group)
    return mean, masked_mean((values.to(mean.dtype) - mean).square(), mask, process_group=process_group).sqrt()

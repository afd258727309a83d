"""Metrics of a policy update: scalars over unmasked steps of all processes, without gradient.

``log_ratios`` [*L] are log pi(a_t) - log pi_old(a_t).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rltok_rl.functional.policy_gradient import Clip, clip_bounds
from rltok_rl.functional.reduction import check_mask, masked_mean, sum_and_count, zero_masked


@torch.no_grad()
def effective_sample_size(
    log_ratios: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> Tensor:
    """Share of the steps that importance weights leave in effect, in (0, 1]; 1 on-policy, and without steps.

        ESS = (sum_t r_t)^2 / (n sum_t r_t^2)

    Example:
        >>> effective_sample_size(torch.zeros(5))
        tensor(1.)

    Reference: Kish, Survey Sampling, 1965
    """
    check_mask(mask, log_ratios, "log_ratios")
    wide = log_ratios.to(torch.promote_types(log_ratios.dtype, torch.float32))
    # Relative to the largest, so that no weight overflows.
    kept = wide if mask is None else wide.masked_fill(~mask, float("-inf"))
    largest = kept.max() if kept.numel() else kept.new_tensor(float("-inf"))
    if process_group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=process_group)
    weights = (kept - largest).exp()
    first, count = sum_and_count(weights, mask, process_group=process_group)
    second, _ = sum_and_count(weights.square(), mask, process_group=process_group)
    return torch.where(count > 0, first.square() / (count * second).clamp(min=1), 1.0).reshape(())


@torch.no_grad()
def approximate_kl(
    log_ratios: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> Tensor:
    """Divergence of the new policy from the one that decided, ``mean_t (r_t - 1 - log r_t)``: never negative.

    Example:
        >>> approximate_kl(torch.zeros(5))
        tensor(0.)

    Reference: http://joschu.net/blog/kl-approx.html (its third estimator)
    """
    quiet = zero_masked(log_ratios, mask)
    return masked_mean(torch.expm1(quiet) - quiet, mask, process_group=process_group)


@torch.no_grad()
def clip_fraction(
    log_ratios: Tensor, clip: Clip, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> Tensor:
    """Share of the steps whose ratio is outside the clip range.

    Example:
        >>> clip_fraction(torch.tensor([0.0, 1.0]), 0.2)
        tensor(0.5000)
    """
    low, high = clip_bounds(clip)
    ratios = zero_masked(log_ratios, mask).exp()
    return masked_mean(((ratios < 1 - low) | (ratios > 1 + high)).to(ratios.dtype), mask, process_group=process_group)


@torch.no_grad()
def mean_and_spread(
    values: Tensor, mask: Tensor | None = None, *, process_group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of values [*L].

    Example:
        >>> mean_and_spread(torch.tensor([1.0, 3.0]))
        (tensor(2.), tensor(1.))
    """
    mean = masked_mean(values, mask, process_group=process_group)
    return mean, masked_mean((values.to(mean.dtype) - mean).square(), mask, process_group=process_group).sqrt()

"""Rate control: losses on boundary logits that keep the number of boundaries per byte at a target.

All controls take ``(logits, boundaries, target, *, mask, process_group)`` and return a loss []; coefficients are the
caller's. ``logits`` l_t and ``boundaries`` a_t are [*L], ``target`` is in (0, 1), and ``mask`` [*L] is True for
decisions of the policy. Rates and mean probabilities span all processes of ``process_group``; the gradient averaged
over processes is that of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup

from rltok_rl.functional.reduction import check_mask, loss_mean, masked_mean, zero_masked


def check_target(target: float) -> float:
    """Require a rate strictly between 0 and 1."""
    if not 0.0 < target < 1.0:
        raise ValueError(f"target must lie strictly between 0 and 1, got {target}")
    return target


def straight_through(boundaries: Tensor, probs: Tensor) -> Tensor:
    """Return the decisions with the gradient of their probabilities [*L]: ``a + p - sg(p)``.

    Example:
        >>> p = torch.tensor([0.25, 0.75], requires_grad=True)
        >>> straight_through(torch.tensor([1, 0]), p).tolist()
        [1.0, 0.0]

    Reference: https://arxiv.org/abs/1308.3432
    """
    return boundaries.to(probs.dtype) + probs - probs.detach()


def logit_pressure(
    logits: Tensor,
    boundaries: Tensor,
    target: float | Tensor,
    *,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Push all logits down while the mean probability is above the target, and up below it (Eq. 24).

        L = mean_t(l_t) sg(mean_t(p_t) - target)

    Every logit gets the same push, which shifts the threshold; the gradient of the probability itself would leave
    decided logits alone. The value of the loss means nothing. A target [*L] per step gives the steps with one target a
    common mean:

        L = mean_t( l_t sg(mean_u(p_u) - target_t) ),       the mean over all u with target_u = target_t

    Example:
        >>> logit_pressure(torch.tensor([0.0, 2.0]), torch.tensor([0, 1]), 0.5)
        tensor(0.1904)
    """
    if isinstance(target, Tensor):
        return _pressures(logits, boundaries, target, mask, process_group)
    _check(logits, boundaries, target, mask)
    mean_prob = masked_mean(zero_masked(logits, mask).detach().sigmoid(), mask, process_group=process_group)
    return loss_mean(logits, mask, process_group=process_group) * (mean_prob - target)


def _pressures(
    logits: Tensor, boundaries: Tensor, targets: Tensor, mask: Tensor | None, process_group: ProcessGroup | None
) -> Tensor:
    """The pressure with a target per step."""
    _check(logits, boundaries, 0.5, mask)
    if targets.shape != logits.shape:
        raise ValueError(f"target must have the shape of logits, {[*logits.shape]}, got {[*targets.shape]}")
    counted = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
    probs = zero_masked(logits, mask).detach().sigmoid()
    values, group = targets.unique(return_inverse=True)  # [n], [*L]
    sums = _sums(probs.masked_fill(~counted, 0.0), group, len(values))  # [n]
    counts = _sums(counted.to(probs.dtype), group, len(values))
    if process_group is not None:
        sums, counts = _sums_everywhere(values, sums, counts, process_group)
    error = (sums / counts.clamp(min=1) - values)[group].masked_fill(~counted, 0.0)  # [*L]
    return loss_mean(logits * error, mask, process_group=process_group)


def _sums(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    return values.new_zeros(num_groups).index_add(0, group.flatten(), values.flatten())


def _sums_everywhere(
    values: Tensor, sums: Tensor, counts: Tensor, process_group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Sums and counts [n] of the groups named by ``values`` [n], over processes that may have other groups."""
    width = torch.tensor(len(values), device=values.device)
    dist.all_reduce(width, op=dist.ReduceOp.MAX, group=process_group)
    padded = sums.new_zeros(3, int(width))  # a count of 0 adds nothing
    padded[:, : len(values)] = torch.stack((values.to(sums.dtype), sums, counts))
    gathered = [torch.empty_like(padded) for _ in range(process_group.size())]
    dist.all_gather(gathered, padded, group=process_group)
    all_values, all_sums, all_counts = torch.cat(gathered, 1)  # [all groups of all processes]
    same = (all_values == values.to(sums.dtype)[:, None]).to(sums.dtype)  # [n, all]
    return same @ all_sums, same @ all_counts


def ratio_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Compute H-Net's load-balancing loss for a rate ``alpha = 1/N``.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha),        F = mean_t sg(a_t),  G = mean_t p_t

    1 if F = G = alpha, and 1 for every G if F = alpha: there is no gradient at the target. It can be below 1 if F and G
    differ.

    Example:
        >>> ratio_loss(torch.tensor([0.0, 0.0]), torch.tensor([0, 1]), 0.5)
        tensor(1.)

    Reference: https://arxiv.org/abs/2507.07955
    """
    _check(logits, boundaries, target, mask)
    rate = masked_mean(boundaries.to(logits.dtype), mask, process_group=process_group)
    mean_prob = loss_mean(zero_masked(logits, mask).sigmoid(), mask, process_group=process_group)
    return load_balance(rate, mean_prob, target)


def load_balance(rate: Tensor, mean_prob: Tensor, target: float) -> Tensor:
    """Compute the ratio loss from its two means [*L], for probabilities without logits.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha)

    Example:
        >>> load_balance(torch.tensor(0.1), torch.tensor(0.6), 0.2)
        tensor(0.7500)
    """
    return rate * mean_prob / target + (1 - rate) * (1 - mean_prob) / (1 - target)


def binomial_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Compute how unlikely each row's number of boundaries is at the target rate, in nats per byte (Nawrot et al.).

        L = -mean_b (1/n_b) log Binomial(k_b; n_b, target),        k_b = sum_t a_{t,b}, straight through to p

    Rows [*B, T] without an unmasked step do not count.

    Example:
        >>> binomial_loss(torch.zeros(1, 4), torch.tensor([[1, 0, 1, 0]]), 0.5)  # -log(6 / 16) / 4
        tensor(0.2452)

    Reference: https://arxiv.org/abs/2211.09761
    """
    _check(logits, boundaries, target, mask)
    drawn = straight_through(boundaries, zero_masked(logits, mask).sigmoid())
    k = zero_masked(drawn, mask).sum(-1)
    n = torch.full_like(k, logits.shape[-1]) if mask is None else mask.sum(-1).to(k.dtype)
    return loss_mean(binomial_cost(k, n, target), n > 0, process_group=process_group)


def binomial_cost(k: Tensor, n: Tensor, target: float) -> Tensor:
    """Compute ``-(1/n) log Binomial(k; n, target)`` [*L], the cost per trial; 0 if n = 0.

    Example:
        >>> binomial_cost(torch.tensor(2.0), torch.tensor(4.0), 0.5)
        tensor(0.2452)
    """
    target_odds = torch.tensor(target, dtype=torch.float64).logit().item()
    choose = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_likelihood = choose + k * target_odds + n * torch.log1p(torch.tensor(-target, dtype=torch.float64)).item()
    return -log_likelihood / n.clamp(min=1)


def hinge_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    slack: float = 0.005,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Penalise a rate outside a band around the target.

        L = max(r - (target + slack), 0) + max((target - slack) - r, 0),        r = mean_t a_t, straight through to p

    (FlexiTokens has another band, from three standard deviations below its target up to the target.)

    Example:
        >>> hinge_loss(torch.zeros(4), torch.tensor([1, 0, 1, 0]), 0.25, slack=0.05)
        tensor(0.2000)

    Reference: https://arxiv.org/abs/2507.12720
    """
    _check(logits, boundaries, target, mask)
    if slack < 0:
        raise ValueError(f"slack must be at least 0, got {slack}")
    drawn = straight_through(boundaries, zero_masked(logits, mask).sigmoid())
    rate = loss_mean(drawn, mask, process_group=process_group)
    total_rate = masked_mean(drawn.detach(), mask, process_group=process_group)  # all processes are on one side
    above, below = (total_rate > target + slack).to(rate.dtype), (total_rate < target - slack).to(rate.dtype)
    return above * (rate - target - slack) + below * (target - slack - rate)


class Controller(NamedTuple):
    """The state of a proportional-integral controller."""

    integral: Tensor  # [] sum of the errors so far
    coefficient: Tensor  # [] factor of its signal

    @classmethod
    def empty(cls, *, device: torch.device | str | None = None) -> Controller:
        """Return the state before the first update."""
        return cls(torch.zeros((), device=device), torch.zeros((), device=device))


def controller_update(
    state: Controller, error: Tensor, *, proportional: float, integral: float, limit: float = math.inf
) -> Controller:
    """Update a proportional-integral controller with an error, rate minus target.

        I' = I + clip(e, -limit, limit),        c' = proportional e + integral I'

    Without a limit the way to a distant target would fill the integral, and the rate would overshoot. The new
    coefficient is the push towards fewer boundaries.

    Example:
        >>> controller_update(Controller.empty(), torch.tensor(0.5), proportional=2.0, integral=1.0).coefficient
        tensor(1.5000)

    Reference: https://arxiv.org/abs/2410.20771 (MrT5 controls its deletion rate so)
    """
    total = state.integral + error.clamp(-limit, limit)
    return Controller(total, proportional * error + integral * total)


def controlled_logits(
    logits: Tensor, coefficient: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None
) -> Tensor:
    """Compute the loss of a PI controller of the mean logit, ``c mean_t(l_t)``.

    Example:
        >>> controlled_logits(torch.tensor([0.0, 2.0]), torch.tensor(0.5))
        tensor(0.5000)
    """
    return coefficient * loss_mean(logits, mask, process_group=process_group)


def priced_boundaries(
    logits: Tensor, price: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None
) -> Tensor:
    """Compute the loss of a price per boundary in nats, ``price mean_t(p_t)``: its expected cost.

    With an integral controller of the price this is dual ascent on the constraint; with a proportional part also, the
    method of multipliers, which does not oscillate. To let the cost reach earlier decisions, charge it from the
    rewards: :func:`~rltok_rl.functional.rewards.charge_boundaries`.

    Example:
        >>> priced_boundaries(torch.tensor([0.0, 0.0]), torch.tensor(0.5))
        tensor(0.2500)

    Reference: https://arxiv.org/abs/2007.03964 (a controller of a Lagrange multiplier)
    """
    return price * loss_mean(zero_masked(logits, mask).sigmoid(), mask, process_group=process_group)


RATE_CONTROLS: dict[str, Callable[..., Tensor]] = {
    "logit_pressure": logit_pressure,
    "ratio": ratio_loss,
    "binomial": binomial_loss,
    "hinge": hinge_loss,
}
"""Controls without memory, by name: ``(logits, boundaries, target, *, mask, process_group) -> loss``."""


def _check(logits: Tensor, boundaries: Tensor, target: float, mask: Tensor | None) -> None:
    check_target(target)
    check_mask(mask, logits, "logits")
    if boundaries.shape != logits.shape:
        raise ValueError(f"boundaries must have the shape of logits, {[*logits.shape]}, got {[*boundaries.shape]}")

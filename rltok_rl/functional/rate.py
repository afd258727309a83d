"""Keeping the number of boundaries per byte at a target: losses on boundary logits.

All controls take ``(logits, boundaries, target)`` and return one loss, so that one can stand for another. What a
control knows of the rate spans all real steps of the batch, and all processes where a group is given; averaged over
processes, its gradient is that of the whole batch. None of them takes a coefficient: losses do.
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
    """Decisions in value, probabilities in gradient: ``a + p - sg(p)``.

    Args:
        boundaries: [*L] the decisions a, bool or 0/1.
        probs: [*L] their probabilities p.

    Returns:
        [*L].

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
    """Push all logits down together while the mean probability is above the target, and up below it (Eq. 24).

        L = mean_t(l_t) sg(mean_t(p_t) - target)

    The push is the same for every logit, so that it shifts the threshold without saturating anything: the gradient of
    the probability itself would leave decided logits alone.

    Targets may differ from step to step. Then steps with one target share a mean, and are pushed by their own distance:

        L = mean_t( l_t sg(mean_u(p_u) - target_t) ),       the mean over all u with target_u = target_t

    With one target for all that is the loss above. Texts that drew their targets at random hold each its own.

    Args:
        logits: [*L] l_t.
        boundaries: [*L] the decisions; not used.
        target: boundaries per byte, in (0, 1); [*L] of each step.
        mask: [*L] bool, True where a decision was the policy's.
        process_group: take the mean probability over all its processes.

    Returns:
        [] loss; its value means nothing, its gradient does.

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
    """The pressure of steps with targets of their own."""
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
    """Sums and counts [n] of the groups named by ``values`` [n], over processes that know other groups too."""
    width = torch.tensor(len(values), device=values.device)
    dist.all_reduce(width, op=dist.ReduceOp.MAX, group=process_group)
    mine = sums.new_zeros(3, int(width))  # a place that is not filled counts nothing
    mine[:, : len(values)] = torch.stack((values.to(sums.dtype), sums, counts))
    gathered = [torch.empty_like(mine) for _ in range(process_group.size())]
    dist.all_gather(gathered, mine, group=process_group)
    everyone = torch.cat(gathered, 1)  # [3, all groups of all]
    same = (everyone[0] == values.to(sums.dtype)[:, None]).to(sums.dtype)  # [n, all]
    return same @ everyone[1], same @ everyone[2]


def ratio_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    mask: Tensor | None = None,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """The load-balancing loss of H-Net, written for a rate ``alpha = 1/N``.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha),        F = mean_t sg(a_t),  G = mean_t p_t

    1 where F = G = alpha, and 1 for every G where F = alpha: at the target there is no gradient. It is not bounded
    below by 1 where F and G differ.

    Args and returns as for :func:`logit_pressure`; F is that of all processes.

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
    """The value of the ratio loss from its two means, for probabilities that come without logits.

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha)

    Args:
        rate: [*L] F, boundaries per byte.
        mean_prob: [*L] G, their mean probability.
        target: alpha, in (0, 1).

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
    """How unlikely each row's number of boundaries is, were they drawn at the target rate (Nawrot et al.).

        L = -mean_b (1/n_b) log Binomial(k_b; n_b, target),        k_b = sum_t a_{t,b}, straight through to p

    Args:
        logits: [*B, T] l_t.
        boundaries: [*B, T] the decisions.
        target: boundaries per byte, in (0, 1).
        mask: [*B, T] bool, True where a decision was the policy's; n_b counts them.
        process_group: the processes whose rows are averaged over.

    Returns:
        [] loss in nats per byte.

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
    """Cost per trial of k successes among n at the target rate, ``-(1/n) log Binomial(k; n, target)``.

    Args:
        k: [*L] successes, straight through where they are to carry a gradient.
        n: [*L] trials, of the same dtype; a row without trials costs 0.
        target: rate in (0, 1).

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
    """How far the rate is outside a band around the target; nothing inside it.

        L = max(r - (target + slack), 0) + max((target - slack) - r, 0),        r = mean_t a_t, straight through to p

    FlexiTokens has a band of its own, from three standard deviations below its target up to the target.

    Args and returns as for :func:`logit_pressure`; r is that of all processes.

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
    seen = masked_mean(drawn.detach(), mask, process_group=process_group)  # the side is everybody's
    above, below = (seen > target + slack).to(rate.dtype), (seen < target - slack).to(rate.dtype)
    return above * (rate - target - slack) + below * (target - slack - rate)


class Controller(NamedTuple):
    """What a proportional-integral controller remembers."""

    integral: Tensor  # [] sum of the errors so far
    coefficient: Tensor  # [] what it multiplies its signal with

    @classmethod
    def empty(cls, *, device: torch.device | str | None = None) -> Controller:
        """Nothing seen yet."""
        return cls(torch.zeros((), device=device), torch.zeros((), device=device))


def controller_update(
    state: Controller, error: Tensor, *, proportional: float, integral: float, limit: float = math.inf
) -> Controller:
    """One step of a proportional-integral controller.

        I' = I + clip(e, -limit, limit),        c' = proportional e + integral I'

    Without a limit the long way to a far target would fill the integral, which then has to be emptied beyond it.

    Args:
        state: integral and coefficient before.
        error: [] rate minus target.
        proportional: gain of the error.
        integral: gain of the sum of errors.
        limit: largest error that is added to the sum.

    Returns:
        The state after; its coefficient is the push towards fewer boundaries.

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
    """The loss of a PI controller: ``c mean_t(l_t)``, the pressure of Eq. 24 with a coefficient that remembers.

    Args:
        logits: [*L].
        coefficient: [] c, without gradient.
        mask: [*L] bool.
        process_group: the processes that train together.

    Returns:
        [] loss.

    Example:
        >>> controlled_logits(torch.tensor([0.0, 2.0]), torch.tensor(0.5))
        tensor(0.5000)
    """
    return coefficient * loss_mean(logits, mask, process_group=process_group)


def priced_boundaries(
    logits: Tensor, price: Tensor, *, mask: Tensor | None = None, process_group: ProcessGroup | None = None
) -> Tensor:
    """The loss of a price per boundary: ``price mean_t(p_t)``, its expected cost given the boundaries before.

    With a price that follows the sum of errors this is dual ascent on the constraint; with a proportional part beside
    it, the method of multipliers, which does not swing. To let the cost reach earlier decisions too, charge it from
    the rewards instead: :func:`~rltok_rl.functional.rewards.charge_boundaries`.

    Args:
        logits: [*L].
        price: [] nats per boundary, without gradient.
        mask: [*L] bool.
        process_group: the processes that train together.

    Returns:
        [] loss.

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
"""Controls by name that need no memory: ``(logits, boundaries, target, *, mask, process_group) -> loss``."""


def _check(logits: Tensor, boundaries: Tensor, target: float, mask: Tensor | None) -> None:
    check_target(target)
    check_mask(mask, logits, "logits")
    if boundaries.shape != logits.shape:
        raise ValueError(f"boundaries must have the shape of logits, {[*logits.shape]}, got {[*boundaries.shape]}")

"""Rate control: losses on boundary logits that keep the number of boundaries per byte at a target.

Controls take logits l_t and boundaries a_t [*L] and a ``target`` in (0, 1), and return a loss []; coefficients are the
caller's. ``mask`` [*L] is True for decisions of the policy. Rates and mean probabilities span all processes of
``process_group``; the gradient averaged over processes is that of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from rltok_rl.functional.reduction import (
    Group,
    Mask,
    loss_mean,
    masked_mean,
    row_groups,
    zero_masked,
)
from rltok_rl.functional.takes import check_finite, check_result, check_scalar, readable, takes
from rltok_rl.ranges import check_number


def check_target(target: float) -> float:
    """Require a rate strictly between 0 and 1."""
    check_number("target", target, "(0, 1)")
    return target


def _check_targets(target: Tensor, mask: Mask) -> None:
    """Require rates strictly between 0 and 1 at real steps, where they can be read."""
    if not readable(target) or not target.numel():
        return
    low, high = target.aminmax()  # NaN if any is
    if 0.0 < low.item() and high.item() < 1.0:
        return
    wrong = ~((target > 0) & (target < 1)) & (True if mask is None else mask)
    places = wrong.nonzero().tolist()
    if places:
        value = target[tuple(places[0])].item()
        raise ValueError(f"target must lie strictly between 0 and 1, got {value} at index {places[0]}")


@takes("boundaries: real *L", "probs: float *L")
def straight_through(boundaries: Tensor, probs: Tensor) -> Tensor:
    """Return decisions with the gradient of their probabilities, ``a + p - sg(p)`` (https://arxiv.org/abs/1308.3432)."""
    return boundaries.to(probs.dtype) + probs - probs.detach()


@takes("logits: float *L", "boundaries: real *L", "target: number (0, 1) | float *L", "mask: bool *L")
def logit_pressure(
    logits: Tensor, boundaries: Tensor, target: float | Tensor, *, mask: Mask = None, process_group: Group = None
) -> Tensor:
    """Push all logits down while the mean probability is above the target, and up below it (Eq. 24).

        L = mean_t(l_t) sg(mean_t(p_t) - target)

    Every logit gets the same push, which shifts the threshold; the gradient of the probability itself would leave
    decided logits alone. The value of the loss means nothing. With a target [*L] per step, the mean probability is that
    of the steps with the same target.

    Example:
        >>> logit_pressure(torch.tensor([0.0, 2.0]), torch.tensor([0, 1]), 0.5)
        tensor(0.1904)
    """
    if isinstance(target, Tensor):
        _check_targets(target, mask)
        error = zero_masked(_errors(logits, target, mask, process_group), mask)
        return loss_mean(logits * error, mask, process_group=process_group)
    mean_prob = masked_mean(logits.detach().sigmoid(), mask, process_group=process_group)
    return loss_mean(logits, mask, process_group=process_group) * (mean_prob - target)


def _errors(logits: Tensor, targets: Tensor, mask: Mask, process_group: Group) -> Tensor:
    """For each step, the mean probability of the steps with its target, minus that target."""
    counted = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
    probs = zero_masked(zero_masked(logits, mask).detach().sigmoid(), counted)
    values, group = targets.unique(return_inverse=True)  # [n], [*L]
    flat = torch.stack((probs, counted.to(probs.dtype))).reshape(2, logits.numel())
    sums = flat.new_zeros(2, len(values)).index_add(1, group.flatten(), flat)  # of probabilities and steps, [2, n]
    if process_group is not None:
        sums = _sums_everywhere(values.to(sums.dtype), sums, process_group)
    return (sums[0] / sums[1].clamp(min=1) - values)[group]


def _sums_everywhere(values: Tensor, sums: Tensor, process_group: Group) -> Tensor:
    """Sums [2, n] of the groups named by ``values`` [n], over processes that may have other groups."""
    width = torch.tensor(len(values), device=values.device)
    dist.all_reduce(width, op=dist.ReduceOp.MAX, group=process_group)
    padded = sums.new_zeros(3, int(width))  # a count of 0 adds nothing
    padded[:, : len(values)] = torch.cat((values[None], sums))
    gathered = [torch.empty_like(padded) for _ in range(dist.get_world_size(process_group))]
    dist.all_gather(gathered, padded, group=process_group)
    everywhere = torch.cat(gathered, 1)  # [3, groups of all processes]
    return everywhere[1:] @ (everywhere[0, :, None] == values).to(sums.dtype)


@takes("logits: float *L", "boundaries: real *L", "target: number (0, 1)", "mask: bool *L")
def ratio_loss(
    logits: Tensor, boundaries: Tensor, target: float, *, mask: Mask = None, process_group: Group = None
) -> Tensor:
    """Compute H-Net's load-balancing loss for a rate ``alpha = 1/N`` (https://arxiv.org/abs/2507.07955).

        L = F G / alpha + (1 - F)(1 - G) / (1 - alpha),        F = mean_t sg(a_t),  G = mean_t p_t

    1 if F = G = alpha, and 1 for every G if F = alpha: there is no gradient at the target. It can be below 1 if F and G
    differ.

    Example:
        >>> ratio_loss(torch.tensor([0.0, 0.0]), torch.tensor([0, 1]), 0.5)
        tensor(1.)
    """
    rate = masked_mean(boundaries.to(logits.dtype), mask, process_group=process_group)
    mean_prob = loss_mean(zero_masked(logits, mask).sigmoid(), mask, process_group=process_group)
    return load_balance(rate, mean_prob, target)


@takes("rate, mean_prob: float *L", "target: number (0, 1)")
def load_balance(rate: Tensor, mean_prob: Tensor, target: float) -> Tensor:
    """Compute :func:`ratio_loss` from F and G, for probabilities without logits."""
    return rate * mean_prob / target + (1 - rate) * (1 - mean_prob) / (1 - target)


@takes("logits: float *B T", "boundaries: real *B T", "target: number (0, 1)", "mask: bool *B T")
def binomial_loss(
    logits: Tensor, boundaries: Tensor, target: float, *, mask: Mask = None, process_group: Group = None
) -> Tensor:
    """Compute how unlikely each row's number of boundaries is at the target rate, in nats per byte.

        L = -mean_b (1/n_b) log Binomial(k_b; n_b, target),        k_b = sum_t a_{t,b}, straight through to p

    Rows [*B, T] without an unmasked step do not count. From https://arxiv.org/abs/2211.09761.

    Example:
        >>> binomial_loss(torch.zeros(1, 4), torch.tensor([[1, 0, 1, 0]]), 0.5)  # -log(6 / 16) / 4
        tensor(0.2452)
    """
    drawn = _drawn(logits, boundaries, mask)
    k = zero_masked(drawn, mask).sum(-1)
    n = torch.full_like(k, logits.shape[-1]) if mask is None else mask.sum(-1).to(k.dtype)
    return loss_mean(binomial_cost(k, n, target), n > 0, process_group=process_group)


@takes("k, n: float *L", "target: number (0, 1)")
def binomial_cost(k: Tensor, n: Tensor, target: float) -> Tensor:
    """Compute ``-(1/n) log Binomial(k; n, target)`` [*L], the cost per trial; 0 if n = 0."""
    target_odds = torch.tensor(target, dtype=torch.float64).logit().item()
    choose = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_likelihood = choose + k * target_odds + n * torch.log1p(torch.tensor(-target, dtype=torch.float64)).item()
    return -log_likelihood / n.clamp(min=1)


@takes("logits: float *L", "boundaries: real *L", "target: number (0, 1)", "slack: number [0, inf)", "mask: bool *L")
def hinge_loss(
    logits: Tensor,
    boundaries: Tensor,
    target: float,
    *,
    slack: float = 0.005,
    mask: Mask = None,
    process_group: Group = None,
) -> Tensor:
    """Penalise a rate outside a band around the target.

        L = max(r - (target + slack), 0) + max((target - slack) - r, 0),        r = mean_t a_t, straight through to p

    (In FlexiTokens, https://arxiv.org/abs/2507.12720, the band is [target - 3 standard deviations, target].)
    """
    drawn = _drawn(logits, boundaries, mask)
    rate = loss_mean(drawn, mask, process_group=process_group)
    total_rate = masked_mean(drawn.detach(), mask, process_group=process_group)  # all processes are on one side
    above, below = (total_rate > target + slack).to(rate.dtype), (total_rate < target - slack).to(rate.dtype)
    return above * (rate - target - slack) + below * (target - slack - rate)


RATE_CONTROLS: dict[str, Callable[..., Tensor]] = {
    "logit_pressure": logit_pressure,
    "ratio": ratio_loss,
    "binomial": binomial_loss,
    "hinge": hinge_loss,
}
"""Controls without memory, by name: ``(logits, boundaries, target, *, mask, process_group) -> loss``."""


@takes(
    "logits: float B T",
    "boundaries: real B T",
    "target: number (0, 1) | float B T",
    "control: callable",
    "rows_per_mean: whole [1, inf)",
    "mask: bool B T",
)
def control_per_rows(
    logits: Tensor,
    boundaries: Tensor,
    target: float | Tensor,
    *,
    control: Callable[..., Tensor],
    rows_per_mean: int,
    mask: Mask = None,
    process_group: Group = None,
) -> Tensor:
    """Average a control over groups of consecutive rows [rows_per_mean, T], each with its own mean probability.

        L = (1 / groups) sum_g control(l_g, a_g, target)

    A group lies in one process, so ``process_group`` is not used: the average over processes is that over all groups if
    they have equally many.
    """
    targets = target if isinstance(target, Tensor) else None
    if targets is not None:
        _check_targets(targets, mask)
    losses = []
    for part, drawn, row_target, real in row_groups(rows_per_mean, logits, boundaries, targets, mask):
        loss = control(part, drawn, target if row_target is None else row_target, mask=real)
        losses.append(check_result("control", loss, part, ()))
    return torch.stack(losses).mean()


class Controller(NamedTuple):
    """The state of a proportional-integral controller: the sum of its errors so far, and its signal, [] each."""

    integral: Tensor
    coefficient: Tensor

    @classmethod
    def empty(cls, *, device: torch.device | str | None = None) -> Controller:
        """Return the state before the first update."""
        return cls(torch.zeros((), device=device), torch.zeros((), device=device))


@takes("error: float", "proportional, integral: number (-inf, inf)", "limit: number [0, inf]")
def controller_update(
    state: Controller, error: Tensor, *, proportional: float, integral: float, limit: float = math.inf
) -> Controller:
    """Update a proportional-integral controller with an error, rate minus target.

        I' = I + clip(e, -limit, limit),        c' = proportional e + integral I'

    The coefficient pushes towards fewer boundaries. Without a limit, a distant target would fill the integral and the
    rate would overshoot. MrT5 (https://arxiv.org/abs/2410.20771) controls deletions in this way. The error and the
    state must be finite, or no later state would be.
    """
    if not isinstance(state, Controller):
        raise TypeError(f"state must be a Controller, got {type(state).__name__}")
    if not torch.compiler.is_compiling():
        for part in state:
            if not isinstance(part, Tensor):
                raise TypeError(f"state must hold tensors, got {type(part).__name__}")
            check_scalar("state", part)
            if part.device != error.device and not part.is_cpu and not error.is_cpu:
                raise ValueError(f"error and state must be on one device, got {error.device} and {part.device}")
    limit = limit if limit <= torch.finfo(error.dtype).max else math.inf  # clamp takes numbers of the dtype
    total = state.integral + error.clamp(-limit, limit)
    new = Controller(total, proportional * error + integral * total)
    if readable(new.coefficient) and not math.isfinite(new.coefficient.item()):
        check_finite("error", error)
        check_finite("state", state.integral)
    return new


@takes("logits: float *L", "coefficient: float", "mask: bool *L")
def controlled_logits(logits: Tensor, coefficient: Tensor, *, mask: Mask = None, process_group: Group = None) -> Tensor:
    """Compute the loss of a PI controller of the mean logit, ``c mean_t(l_t)``."""
    return coefficient * loss_mean(logits, mask, process_group=process_group)


@takes("logits: float *L", "price: float", "mask: bool *L")
def priced_boundaries(logits: Tensor, price: Tensor, *, mask: Mask = None, process_group: Group = None) -> Tensor:
    """Compute the loss of a price per boundary in nats, ``price mean_t(p_t)``: its expected cost.

    An integral controller of the price makes this dual ascent on the constraint. Adding a proportional part gives the
    method of multipliers, which does not oscillate (https://arxiv.org/abs/2007.03964). For costs that also reach
    earlier decisions, use :func:`~rltok_rl.functional.rewards.charge_boundaries`.
    """
    return price * loss_mean(zero_masked(logits, mask).sigmoid(), mask, process_group=process_group)


def _drawn(logits: Tensor, boundaries: Tensor, mask: Mask) -> Tensor:
    """Decisions with the gradient of their probabilities."""
    return straight_through(boundaries, zero_masked(logits, mask).sigmoid())

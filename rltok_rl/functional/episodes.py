"""Returns of a rollout as sums per row, and ratios of such sums with their standard errors.

Shapes: B rows of T steps. Rows hold independent texts. A row whose text ends early holds several episodes, so a mean
is a ratio of two sums over rows, [B, 2] float64: of what is averaged, and of how often it counts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltok_rl.functional.returns import check_gamma, cut, reverse_scan
from rltok_rl.functional.takes import takes

NUM_MOMENTS = 5
"""Moments of a metric (:func:`ratio_moments`)."""


@torch.no_grad()
@takes("rewards: real B T", "done, free: bool B T", "gamma: scalar [0, 1]")
def return_sums(
    rewards: Tensor, done: Tensor, *, free: Tensor | None = None, gamma: float | Tensor | None = None
) -> dict[str, Tensor]:
    """Return sums [B, 2] of a rollout's rewards and returns, by metric.

        reward = mean_t R_{t+1}        episode_return = mean over episodes of sum_t R_{t+1}        return = mean_t G_t

    ``episode_return`` leaves out episodes that the end of the rollout cuts. ``return`` averages the discounted return
    G_t (Eq. 16) over ``free`` decisions, as the policy's loss does; it is left out without ``gamma``.

    Args:
        rewards: [B, T].
        done: [B, T] bool, whether an episode ends after the step.
        free: [B, T] bool, whether the policy decides; default: everywhere.
        gamma: discount in [0, 1].

    Example:
        >>> rewards, done = torch.tensor([[1.0, 0.0, 4.0]]), torch.tensor([[False, True, False]])
        >>> {name: sums.tolist() for name, sums in return_sums(rewards, done, gamma=0.5).items()}
        {'reward': [[5.0, 3.0]], 'episode_return': [[1.0, 1.0]], 'return': [[5.0, 3.0]]}
    """
    gamma = None if gamma is None else check_gamma(gamma)
    x, ones = rewards.double(), torch.ones_like(done)
    whole = done.flip(-1).cumsum(-1).flip(-1) > 0  # steps of episodes that end within the rollout
    parts = {"reward": (x, ones), "episode_return": (x * whole, done)}
    if gamma is not None:
        free = ones if free is None else free
        parts["return"] = (reverse_scan(x, cut(gamma, done, like=x)) * free, free)
    averaged, counted = (
        torch.stack(column).sum(-1, dtype=torch.float64) for column in zip(*parts.values(), strict=True)
    )
    return dict(zip(parts, torch.stack((averaged, counted), -1).unbind(), strict=True))


@takes("sums: real *K B 2")
def ratio_moments(sums: Tensor) -> Tensor:
    """Return means over rows of n, d, n^2, n d and d^2, [*K, 5], of sums [*K, B, 2].

    Their means over micro-batches and processes of equally many rows are the moments of all rows.
    """
    n, d = sums.double().unbind(-1)
    return torch.stack((n, d, n * n, n * d, d * d), -2).mean(-1)


@takes("moments: numbers | real 5", "num_rows: whole [1, inf)")
def ratio_with_error(moments: Tensor | list[float], num_rows: int) -> tuple[float, float]:
    """Return a ratio of sums and its standard error over rows, from its moments; NaN for the error of one row.

    To first order, a ratio of two means deviates as the mean of its residuals e does:

        R = mean(n) / mean(d),        SE = sqrt(mean(e^2) / (B - 1)) / mean(d),        e = n - R d

    Example:
        >>> ratio_with_error(ratio_moments(torch.tensor([[2.0, 1.0], [4.0, 1.0]])), 2)
        (3.0, 1.0)
    """
    if isinstance(moments, Tensor) and moments.is_meta:
        raise ValueError("moments must be on a device with values, got meta")
    if len(moments) != 5:
        raise ValueError(f"moments must be 5 numbers, got {len(moments)}")
    n, d, nn, nd, dd = moments.tolist() if isinstance(moments, Tensor) else moments
    if not d:
        return math.nan, math.nan
    ratio = n / d
    variance = max(0.0, nn - 2 * ratio * nd + ratio * ratio * dd)
    return ratio, math.sqrt(variance / (num_rows - 1)) / abs(d) if num_rows > 1 else math.nan

"""Policies to draw from: random ones, ones like a trained model's, and ones made to be hard."""

from __future__ import annotations

import torch
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.sampling import portable

Terms = tuple[Tensor, Tensor]  # base [B, T], lags [B, T, w]


def random_policy(num_rows: int, length: int, num_lags: int, *, scale: float = 1.0, seed: int = 0) -> Terms:
    """Independent normal terms."""
    generator = torch.Generator().manual_seed(seed)
    both = scale * torch.randn(num_rows, length, 1 + num_lags, generator=generator)
    return both[..., 0], both[..., 1:]  # a strided view, as the model's projection gives


def trained_policy(num_rows: int, length: int, num_lags: int, *, rate: float = 0.18, seed: int = 0) -> Terms:
    """Mostly decided: boundaries where a "space" was read, held off right after a boundary."""
    generator = torch.Generator().manual_seed(seed)
    space = torch.rand(num_rows, length, generator=generator) < rate
    noise = torch.randn(num_rows, length, 1 + num_lags, generator=generator)
    base = torch.where(space, 2.5, -4.0) + 0.8 * noise[..., 0]
    inhibition = -3.0 * torch.exp(-torch.arange(num_lags) / 2.0)
    return base, inhibition + 0.5 * noise[..., 1:]


def alternating(num_rows: int, length: int, num_lags: int) -> Terms:
    """A boundary exactly if the byte before has none: nothing is known before all before it is."""
    return _rule(num_rows, length, num_lags, base=1.0, lag_values={1: -2.0})


def every_third(num_rows: int, length: int, num_lags: int) -> Terms:
    """Period 3: a boundary if neither of the last two bytes has one."""
    return _rule(num_rows, length, num_lags, base=1.0, lag_values={1: -2.0, min(2, num_lags): -2.0})


def long_chain(num_rows: int, length: int, num_lags: int) -> Terms:
    """The oldest visible boundary is copied or negated, at random: one flip changes everything after it."""
    generator = torch.Generator().manual_seed(7)
    sign = torch.where(torch.rand(num_rows, length, generator=generator) < 0.5, 1.0, -1.0)
    lags = torch.zeros(num_rows, length, num_lags)
    if num_lags:
        lags[..., -1] = 2 * sign
    return -sign, lags


def parity(num_rows: int, length: int, num_lags: int) -> Terms:
    """Copy or negate the previous boundary with strengths that other lags nearly undo."""
    base, lags = long_chain(num_rows, length, num_lags)
    generator = torch.Generator().manual_seed(8)
    return base, lags + 0.05 * torch.randn(lags.shape, generator=generator)


def _rule(num_rows: int, length: int, num_lags: int, *, base: float, lag_values: dict[int, float]) -> Terms:
    lags = torch.zeros(num_rows, length, num_lags)
    for lag, value in lag_values.items():
        if 0 < lag <= num_lags:
            lags[..., lag - 1] = value
    return torch.full((num_rows, length), base), lags


def tight_thresholds(base: Tensor, lags: Tensor) -> Tensor:
    """[B, T] thresholds that equal the logits, or lie one rounding step below where the loop draws at threshold 0.

    Every decision then hangs on the last bit, and another order of summation is another string. Thresholds drawn at
    random lie so close to a sum so rarely that they cannot tell one order from another.
    """
    drawn = portable.loop(base, lags, torch.zeros_like(base))
    sums = boundary_logits(base, lags, drawn)
    return torch.where(drawn, torch.nextafter(sums, sums.new_tensor(float("-inf"))), sums)


POLICIES = {
    "random": random_policy,
    "sharp": lambda *shape: random_policy(*shape, scale=10.0),
    "trained": trained_policy,
    "trained, sparse": lambda *shape: trained_policy(*shape, rate=0.05),
    "trained, dense": lambda *shape: trained_policy(*shape, rate=0.5),
    "alternating": alternating,
    "every third": every_third,
    "long chain": long_chain,
    "parity": parity,
}

"""Policies to draw from: random ones, ones like a trained model's, and ones made to be hard."""

from __future__ import annotations

import torch
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.sampling import solvers

Terms = tuple[Tensor, Tensor]  # base [B, T], lags [B, T, w]


def random_policy(num_rows: int, length: int, num_lags: int, *, scale: float = 1.0) -> Terms:
    """Independent normal terms."""
    both = scale * torch.randn(num_rows, length, 1 + num_lags, generator=torch.Generator().manual_seed(0))
    return both[..., 0], both[..., 1:]  # a strided view, as the model's projection gives


def trained_policy(num_rows: int, length: int, num_lags: int, *, rate: float = 0.18) -> Terms:
    """Mostly decided: boundaries where a "space" was read, held off right after a boundary."""
    generator = torch.Generator().manual_seed(0)
    space = torch.rand(num_rows, length, generator=generator) < rate
    noise = torch.randn(num_rows, length, 1 + num_lags, generator=generator)
    inhibition = -3.0 * torch.exp(-torch.arange(num_lags) / 2.0)
    return torch.where(space, 2.5, -4.0) + 0.8 * noise[..., 0], inhibition + 0.5 * noise[..., 1:]


def spaced(num_rows: int, length: int, num_lags: int, *, period: int = 2) -> Terms:
    """A boundary if none of the last ``period - 1`` bytes has one: nothing is known before all before it is."""
    lags = torch.zeros(num_rows, length, num_lags)
    lags[..., : period - 1] = -2.0
    return torch.ones(num_rows, length), lags


def long_chain(num_rows: int, length: int, num_lags: int, *, noise: float = 0.0) -> Terms:
    """The oldest visible boundary is copied or negated, at random: one flip changes everything after it.

    With ``noise`` other lags nearly undo it.
    """
    generator = torch.Generator().manual_seed(7)
    sign = torch.where(torch.rand(num_rows, length, generator=generator) < 0.5, 1.0, -1.0)
    lags = noise * torch.randn(num_rows, length, num_lags, generator=generator)
    lags[..., -1:] += 2 * sign[..., None]
    return -sign, lags


def tight_thresholds(base: Tensor, lags: Tensor) -> Tensor:
    """[B, T] thresholds that equal the logits, or lie one rounding step below where the loop draws at threshold 0.

    Every decision then hangs on the last bit, and another order of summation is another string. Thresholds drawn at
    random lie so close to a sum so rarely that they cannot tell one order from another.
    """
    drawn = solvers.loop(base, lags, torch.zeros_like(base))
    sums = boundary_logits(base, lags, drawn)
    return torch.where(drawn, torch.nextafter(sums, sums.new_tensor(float("-inf"))), sums)


POLICIES = {
    "random": random_policy,
    "sharp": lambda *shape: random_policy(*shape, scale=10.0),
    "trained": trained_policy,
    "trained, sparse": lambda *shape: trained_policy(*shape, rate=0.05),
    "trained, dense": lambda *shape: trained_policy(*shape, rate=0.5),
    "alternating": spaced,
    "every third": lambda *shape: spaced(*shape, period=3),
    "long chain": long_chain,
    "parity": lambda *shape: long_chain(*shape, noise=0.05),
}

"""Boundary logits, log-probabilities and entropies against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Bernoulli

from rltok_rl.functional.policy import (
    boundary_entropy,
    boundary_log_prob,
    boundary_logits,
    lagged_logit,
    recent_boundaries,
    soft_cap,
)

from ..each import each


def terms(*shape: int, num_lags: int = 3, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype), torch.randn(*shape, num_lags, dtype=dtype)


def logits_by_definition(base, lags, boundaries):
    """Eq. 21, one position and one lag at a time."""
    rows = []
    for t in range(base.shape[1]):
        total = base[:, t]
        for j in range(min(t, lags.shape[-1]), 0, -1):
            total = total + lags[:, t, j - 1] * boundaries[:, t - j]
        rows.append(total)
    return torch.stack(rows, 1) if rows else base


@each(num_lags=[0, 1, 2, 8, 12], length=[0, 1, 5, 30], dtype=[torch.float32, torch.float64])
def test_logits_and_their_gradients_follow_the_definition(num_lags, length, dtype):
    """Bit for bit: one order of summation. Lags whose boundary was not drawn get no gradient."""
    base, lags = (x.requires_grad_() for x in terms(2, length, num_lags=num_lags, dtype=dtype))
    boundaries, weights = torch.rand(2, length) < 0.4, torch.randn(2, length, dtype=dtype)
    expected, ours = logits_by_definition(base, lags, boundaries), boundary_logits(base, lags, boundaries)
    assert torch.equal(ours, expected)
    torch.testing.assert_close(boundary_logits(base, lags, boundaries, cap=2.0), 2 * torch.tanh(expected / 2))
    recent = recent_boundaries(boundaries, num_lags)
    slopes = [torch.autograd.grad((weights * x).sum(), (base, lags), materialize_grads=True) for x in (ours, expected)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)
    assert (slopes[0][1][~recent] == 0).all() and (slopes[0][1][recent] != 0).all()


def test_the_newest_lag_is_added_last():
    """1 + 2^-24 is lost in float32, 2^-24 + 2^-24 first is not."""
    tiny = 2.0**-24
    base, recent = torch.tensor([tiny]), torch.ones(1, 2)
    assert lagged_logit(base, torch.tensor([[1.0, tiny]]), recent).item() == 1.0 + 2 * tiny
    assert lagged_logit(base, torch.tensor([[tiny, 1.0]]), recent).item() == 1.0


def test_any_leading_shape_and_the_wider_precision():
    base, lags = terms(2, 3, 7)
    boundaries = torch.rand(2, 3, 7) < 0.5
    flat = boundary_logits(base.flatten(0, 1), lags.flatten(0, 1), boundaries.flatten(0, 1))
    assert torch.equal(boundary_logits(base, lags, boundaries), flat.view(2, 3, 7))
    assert torch.equal(boundary_logits(base[0, 0], lags[0, 0], boundaries[0, 0]), flat[0])
    for narrow, wide in ((base.float(), lags), (base, lags.float())):
        expected = boundary_logits(narrow.double(), wide.double(), boundaries)
        assert torch.equal(boundary_logits(narrow, wide, boundaries), expected)
        assert torch.equal(lagged_logit(narrow, wide, recent_boundaries(boundaries, 3)), expected)


@each(dtype=[torch.float32, torch.float64])
def test_log_prob_and_entropy_equal_torch(dtype):
    """And at |l| = 30, H = e^-30 (1 + 30) to first order, where the textbook formula cancels in float32."""
    logits = torch.linspace(-15, 15, 101, dtype=dtype)
    theirs = Bernoulli(logits=logits)
    for boundaries in (torch.zeros_like(logits), torch.ones_like(logits)):
        torch.testing.assert_close(boundary_log_prob(logits, boundaries), theirs.log_prob(boundaries))
    torch.testing.assert_close(boundary_entropy(logits), theirs.entropy(), rtol=1e-4, atol=1e-6)
    decided = boundary_entropy(torch.tensor([30.0, -30.0, 0.0], dtype=dtype)).tolist()
    assert decided == pytest.approx([31 * math.exp(-30), 31 * math.exp(-30), math.log(2)], rel=1e-4)


def test_a_soft_cap_is_reached():
    torch.testing.assert_close(soft_cap(torch.tensor([-1e9, 0.0, 1e9]), 6.0), torch.tensor([-6.0, 0.0, 6.0]))

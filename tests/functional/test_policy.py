"""Boundary logits, log-probabilities and entropies against their definitions."""

from __future__ import annotations

import math
import re

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


def terms(*shape: int, num_lags: int = 3, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype), torch.randn(*shape, num_lags, dtype=dtype)


def logits_by_definition(base, lags, boundaries):
    """Eq. 21, one position and one lag at a time."""
    out = torch.zeros_like(base)
    for row in range(base.shape[0]):
        for t in range(base.shape[1]):
            total = base[row, t]
            for j in range(lags.shape[-1], 0, -1):
                if t - j >= 0 and boundaries[row, t - j]:
                    total = total + lags[row, t, j - 1]
            out[row, t] = total
    return out


@pytest.mark.parametrize("num_lags", [0, 1, 2, 8, 12])
@pytest.mark.parametrize("length", [0, 1, 5, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_follow_the_definition(num_lags, length, dtype):
    base, lags = terms(2, length, num_lags=num_lags, dtype=dtype)
    boundaries = torch.rand(2, length) < 0.4
    expected = logits_by_definition(base, lags, boundaries)
    assert torch.equal(boundary_logits(base, lags, boundaries), expected)  # bit for bit: one order of summation
    torch.testing.assert_close(boundary_logits(base, lags, boundaries, cap=2.0), 2 * torch.tanh(expected / 2))


def test_order_of_summation_matters_and_is_kept():
    """1 + 2^-24 is lost in float32, 2^-24 + 2^-24 first is not: the newest lag is added last."""
    tiny = 2.0**-24
    base, recent = torch.tensor([tiny]), torch.ones(1, 2)
    assert lagged_logit(base, torch.tensor([[1.0, tiny]]), recent).item() == 1.0 + 2 * tiny
    assert lagged_logit(base, torch.tensor([[tiny, 1.0]]), recent).item() == 1.0


def test_any_leading_shape():
    base, lags = terms(2, 3, 7)
    boundaries = torch.rand(2, 3, 7) < 0.5
    flat = boundary_logits(base.flatten(0, 1), lags.flatten(0, 1), boundaries.flatten(0, 1))
    assert torch.equal(boundary_logits(base, lags, boundaries), flat.view(2, 3, 7))
    assert torch.equal(boundary_logits(base[0, 0], lags[0, 0], boundaries[0, 0]), flat[0])


def test_recent_boundaries_by_definition():
    boundaries = torch.rand(2, 9) < 0.5
    recent = recent_boundaries(boundaries, 4)
    for t in range(9):
        for j in range(1, 5):
            expected = boundaries[:, t - j] if t >= j else torch.zeros(2, dtype=torch.bool)
            assert torch.equal(recent[:, t, j - 1], expected)


def test_gradients():
    base, lags = (x.requires_grad_() for x in terms(2, 6))
    boundaries = torch.rand(2, 6) < 0.5
    forced = torch.rand(2, 6) < 0.3
    for function in (
        lambda b, w: boundary_logits(b, w, boundaries, cap=3.0),
        lambda b, w: boundary_log_prob(boundary_logits(b, w, boundaries), boundaries, forced=forced),
        lambda b, w: boundary_entropy(boundary_logits(b, w, boundaries), forced=forced),
    ):
        assert torch.autograd.gradcheck(function, (base, lags))


@pytest.mark.parametrize("cap", [None, 3.0])
def test_gradients_equal_a_plain_loops(cap):
    """A decision's terms get gradient from its own logit alone; lags whose boundary was not drawn get none."""
    base, lags = (x.requires_grad_() for x in terms(2, 30, num_lags=8))
    boundaries = torch.rand(2, 30) < 0.4
    weights = torch.randn(2, 30, dtype=torch.float64)
    expected = torch.zeros(2, 30, dtype=torch.float64)
    for t in range(30):
        for j in range(1, min(t, 8) + 1):
            reached = torch.zeros(30, dtype=torch.float64)
            reached[t] = 1.0
            expected = expected + reached * (lags[:, t, j - 1] * boundaries[:, t - j])[:, None]
    expected = expected + base
    expected = expected if cap is None else cap * torch.tanh(expected / cap)
    theirs = torch.autograd.grad((weights * expected).sum(), (base, lags))
    ours = torch.autograd.grad((weights * boundary_logits(base, lags, boundaries, cap=cap)).sum(), (base, lags))
    for mine, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain)
    recent = recent_boundaries(boundaries, 8)
    assert (ours[1][~recent] == 0).all() and (ours[1][recent] != 0).all()


def test_the_wider_of_two_precisions_counts():
    """As in the sampler, whichever of the two terms it is that is wider."""
    base, lags = terms(2, 9)
    boundaries = torch.rand(2, 9) < 0.5
    for narrow, wide in ((base.float(), lags), (base, lags.float())):
        expected = boundary_logits(narrow.double(), wide.double(), boundaries)
        assert torch.equal(boundary_logits(narrow, wide, boundaries), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_and_entropy_equal_torch(dtype):
    logits = torch.linspace(-15, 15, 101, dtype=dtype)
    theirs = Bernoulli(logits=logits)
    for boundary in (0, 1):
        boundaries = torch.full_like(logits, boundary)
        torch.testing.assert_close(boundary_log_prob(logits, boundaries), theirs.log_prob(boundaries))
    torch.testing.assert_close(boundary_entropy(logits), theirs.entropy(), rtol=1e-4, atol=1e-6)


def test_entropy_of_decided_policies_is_exact():
    """At |l| = 30, H = e^-30 (1 + 30) to first order; the textbook formula cancels there in float32."""
    for logit in (30.0, -30.0):
        entropy = boundary_entropy(torch.tensor(logit)).item()
        assert entropy == pytest.approx(31 * math.exp(-30), rel=1e-4)
    assert boundary_entropy(torch.tensor(0.0)).item() == pytest.approx(math.log(2))


def test_forced_decisions_carry_nothing():
    logits = torch.randn(5, requires_grad=True)
    forced = torch.tensor([1, 0, 1, 0, 0]).bool()
    for values in (
        boundary_log_prob(logits, torch.ones(5), forced=forced),
        boundary_entropy(logits, forced=forced),
    ):
        assert (values[forced] == 0).all() and (values[~forced] != 0).all()
        (grad,) = torch.autograd.grad(values.sum(), logits)
        assert (grad[forced] == 0).all() and (grad[~forced] != 0).all()


def test_soft_cap():
    torch.testing.assert_close(soft_cap(torch.tensor([-1e9, 0.0, 1e9]), 6.0), torch.tensor([-6.0, 0.0, 6.0]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: soft_cap(torch.zeros(1), 0.0), ValueError, "cap must be positive and finite, got 0.0"),
        (lambda: soft_cap(torch.zeros(1), math.inf), ValueError, "cap must be positive and finite, got inf"),
        (
            lambda: boundary_log_prob(torch.zeros(2), torch.zeros(2), forced=torch.zeros(2).long()),
            TypeError,
            "forced must be a bool mask here (forced >= 0 of the sampler's), got torch.int64",
        ),
        (
            lambda: boundary_logits(torch.zeros(2, 5), torch.zeros(2, 4, 3), torch.zeros(2, 5)),
            ValueError,
            "base must be [*B, T] and lags [*B, T, w], got [2, 5] and [2, 4, 3]",
        ),
        (
            lambda: boundary_logits(torch.zeros(2, 5), torch.zeros(2, 5, 3), torch.zeros(2, 4)),
            ValueError,
            "boundaries must have the shape of base, [2, 5], got [2, 4]",
        ),
        (
            lambda: boundary_logits(torch.zeros(5).long(), torch.zeros(5, 3), torch.zeros(5)),
            TypeError,
            "base must be a floating-point tensor, got torch.int64",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()

"""Laws of all rate controls."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.functional.rate import RATE_CONTROLS, hinge_loss, logit_pressure, ratio_loss, straight_through

from ..each import each
from ..layout import ONE_GRAPH


def at_rate(rate, spread=1.0, shape=(8, 400)):
    """Logits whose mean probability is ``rate``, and decisions with exactly that rate in every row."""
    logits = spread * torch.randn(shape, dtype=torch.float64)
    for _ in range(60):  # shift until the mean probability fits
        p = logits.sigmoid()
        logits = logits + (rate - p.mean()) / (p * (1 - p)).mean()
    order = torch.rand(shape).argsort(-1)
    return logits.detach().requires_grad_(), order < round(rate * shape[-1])


def slope(name, logits, boundaries, target, **options):
    (found,) = torch.autograd.grad(RATE_CONTROLS[name](logits, boundaries, target, **options), logits)
    return found


@each(name=RATE_CONTROLS, target=[0.1, 0.25, 0.5])
def test_no_gradient_at_the_target(name, target):
    """The binomial's most likely count lies within one boundary of the target: its gradient is what rounding leaves."""
    logits, boundaries = at_rate(target)
    pushed = slope(name, logits, boundaries, target).sum().abs()
    reference = slope(name, *at_rate(min(0.9, 2 * target)), target).sum().abs()
    assert pushed < (0.05 if name == "binomial" else 1e-6) * reference


@each(name=RATE_CONTROLS, target=[0.1, 0.33])
def test_every_logit_is_pushed_the_right_way(name, target):
    for rate, sign in ((0.05, -1), (0.8, 1)):
        found = slope(name, *at_rate(rate), target) * sign
        assert (found >= 0).all() and (found > 0).any()


@each(name=RATE_CONTROLS)
def test_a_mask_is_a_shorter_batch(name):
    logits, boundaries = at_rate(0.6, shape=(4, 50))
    mask = torch.zeros(4, 70, dtype=torch.bool)
    mask[:, :50] = True
    padded = torch.nn.functional.pad(logits.detach(), (0, 20), value=float("nan")).requires_grad_()
    more = torch.nn.functional.pad(boundaries, (0, 20), value=True)
    torch.testing.assert_close(
        RATE_CONTROLS[name](padded, more, 0.2, mask=mask), RATE_CONTROLS[name](logits, boundaries, 0.2)
    )
    found = slope(name, padded, more, 0.2, mask=mask)
    torch.testing.assert_close(found[:, :50], slope(name, logits, boundaries, 0.2))
    assert (found[:, 50:] == 0).all()


@each(name=RATE_CONTROLS)
def test_rows_without_a_decision_do_not_count(name):
    """A row of padding alone adds neither its cost of 0 nor a row to the mean."""
    logits, boundaries = at_rate(0.6, shape=(3, 50))
    mask = torch.ones(3, 50, dtype=torch.bool)
    mask[1] = False
    expected = RATE_CONTROLS[name](logits[::2], boundaries[::2], 0.2)
    torch.testing.assert_close(RATE_CONTROLS[name](logits, boundaries, 0.2, mask=mask), expected)


@each(name=RATE_CONTROLS)
def test_large_logits_are_numbers(name):
    for value in (1e4, -1e4):
        logits = torch.full((2, 30), value, requires_grad=True)
        boundaries = torch.full((2, 30), value > 0)
        assert RATE_CONTROLS[name](logits, boundaries, 0.2).isfinite()
        assert slope(name, logits, boundaries, 0.2).isfinite().all()


@ONE_GRAPH
@each(name=RATE_CONTROLS)
def test_compiles_in_one_graph(name):
    logits, boundaries = at_rate(0.5, shape=(4, 50))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, a: RATE_CONTROLS[name](x, a, 0.2), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits, boundaries), RATE_CONTROLS[name](logits, boundaries, 0.2))


@each(name=RATE_CONTROLS, target=[0.0, 1.0, -0.2])
def test_a_target_out_of_range_is_refused(name, target):
    with pytest.raises(ValueError, match="target must lie strictly between 0 and 1, got"):
        RATE_CONTROLS[name](torch.zeros(2, 3), torch.zeros(2, 3), target)


@each(name=RATE_CONTROLS)
def test_shapes_that_differ_are_refused(name):
    with pytest.raises(ValueError, match=r"boundaries must have the shape of logits, \[2, 3\], got \[3\]"):
        RATE_CONTROLS[name](torch.zeros(2, 3), torch.zeros(3), 0.2)
    with pytest.raises(ValueError, match="mask must have the shape of logits"):
        RATE_CONTROLS[name](torch.zeros(2, 3), torch.zeros(2, 3), 0.2, mask=torch.ones(3, dtype=torch.bool))


def test_pressure_moves_decided_logits_as_much_as_undecided_ones():
    logits = torch.tensor([[-9.0, 0.0, 9.0]], requires_grad=True)
    logit_pressure(logits, torch.tensor([[0, 0, 1]]), 0.2).backward()
    assert logits.grad.unique().numel() == 1


def test_the_ratio_loss_is_as_published():
    """N/(N - 1) ((N - 1) F G + (1 - F)(1 - G)), and its known weakness: below 1 where F and G differ."""
    logits, boundaries = torch.tensor([[math.log(0.6 / 0.4)] * 10]), torch.tensor([[1] + [0] * 9])
    n, f, g = 5, 0.1, 0.6
    published = n / (n - 1) * ((n - 1) * f * g + (1 - f) * (1 - g))
    assert ratio_loss(logits, boundaries, 1 / n).item() == pytest.approx(published, rel=1e-6) == pytest.approx(0.75)


def test_the_binomial_is_the_exact_log_likelihood():
    boundaries = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 1, 0, 0]])
    exact = torch.distributions.Binomial(10, torch.tensor(0.2)).log_prob(torch.tensor(3.0))
    found = RATE_CONTROLS["binomial"](torch.randn(1, 10), boundaries, 0.2)
    torch.testing.assert_close(found, -exact / 10)


def test_inside_its_band_a_hinge_is_still():
    logits, boundaries = at_rate(0.2)
    assert hinge_loss(logits, boundaries, 0.204, slack=0.005) == 0
    with pytest.raises(ValueError, match="slack must be at least 0, got -1"):
        hinge_loss(logits, boundaries, 0.2, slack=-1)


def test_straight_through_is_the_decision_in_value_and_the_probability_in_gradient():
    p = torch.tensor([0.3, 0.8], requires_grad=True)
    drawn = straight_through(torch.tensor([1, 0]), p)
    assert drawn.tolist() == pytest.approx([1.0, 0.0])
    assert torch.autograd.grad(drawn.sum(), p)[0].tolist() == [1.0, 1.0]

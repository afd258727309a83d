"""Laws of all rate controls."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import ProcessGroup

from rltok_rl.functional.rate import (
    RATE_CONTROLS,
    control_per_rows,
    controlled_logits,
    hinge_loss,
    logit_pressure,
    priced_boundaries,
    ratio_loss,
)

from ..each import each
from ..layout import ONE_GRAPH


def at_rate(rate, shape=(8, 400)):
    """Logits whose mean probability is ``rate``, and decisions with exactly that rate in every row."""
    logits = torch.randn(shape, dtype=torch.float64)
    for _ in range(60):  # shift until the mean probability fits
        p = logits.sigmoid()
        logits = logits + (rate - p.mean()) / (p * (1 - p)).mean()
    return logits.detach().requires_grad_(), torch.rand(shape).argsort(-1) < round(rate * shape[-1])


CONTROLS = RATE_CONTROLS | {  # with memory too: at a coefficient, or a price
    name: lambda logits, boundaries, target, act=act, **options: act(logits, torch.tensor(0.7).double(), **options)
    for name, act in (("pi", controlled_logits), ("price", priced_boundaries))
}


def slope(name, logits, boundaries, target, **options):
    return torch.autograd.grad(CONTROLS[name](logits, boundaries, target, **options), logits)[0]


@each(name=RATE_CONTROLS, target=[0.1, 0.25, 0.5])
def test_no_gradient_at_the_target_and_the_right_sign_elsewhere(name, target):
    """The binomial's most likely count lies within one boundary of the target: its gradient is what rounding leaves."""
    pushed, reference = (slope(name, *at_rate(rate), target).sum().abs() for rate in (target, min(0.9, 2 * target)))
    assert pushed < (0.05 if name == "binomial" else 1e-6) * reference
    for rate, sign in ((0.05, -1), (0.8, 1)):
        push = slope(name, *at_rate(rate), target) * sign
        assert (push >= 0).all() and (push > 0).any()


@each(name=CONTROLS)
def test_a_mask_is_a_smaller_batch(name):
    """A row of padding alone adds neither its cost of 0 nor a row to the mean."""
    logits, boundaries = at_rate(0.6, shape=(4, 50))
    mask = torch.zeros(5, 70, dtype=torch.bool)
    mask[:4, :50] = True
    padded = torch.nn.functional.pad(logits.detach(), (0, 20, 0, 1), value=float("nan")).requires_grad_()
    more = torch.nn.functional.pad(boundaries, (0, 20, 0, 1), value=True)
    control = CONTROLS[name]
    torch.testing.assert_close(control(padded, more, 0.2, mask=mask), control(logits, boundaries, 0.2))
    push = slope(name, padded, more, 0.2, mask=mask)
    torch.testing.assert_close(push[:4, :50], slope(name, logits, boundaries, 0.2))
    assert (push[~mask] == 0).all()


@each(name=RATE_CONTROLS, value=[1e4, -1e4])
def test_large_logits_are_numbers(name, value):
    logits, boundaries = torch.full((2, 30), value, requires_grad=True), torch.full((2, 30), value > 0)
    assert RATE_CONTROLS[name](logits, boundaries, 0.2).isfinite()
    assert slope(name, logits, boundaries, 0.2).isfinite().all()


@ONE_GRAPH
@each(name=RATE_CONTROLS)
def test_compiles_in_one_graph(name):
    logits, boundaries = at_rate(0.5, shape=(4, 50))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, a: RATE_CONTROLS[name](x, a, 0.2), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(logits, boundaries), RATE_CONTROLS[name](logits, boundaries, 0.2))


def test_published_values():
    """H-Net's N/(N - 1) ((N - 1) F G + (1 - F)(1 - G)), which is below 1 where F and G differ; the exact binomial."""
    logits, boundaries = torch.full((1, 10), 0.6).logit(), torch.tensor([[1] + [0] * 9])
    n, f, g = 5, 0.1, 0.6
    published = n / (n - 1) * ((n - 1) * f * g + (1 - f) * (1 - g))
    assert ratio_loss(logits, boundaries, 1 / n).item() == pytest.approx(published, rel=1e-6) == pytest.approx(0.75)
    boundaries = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 1, 0, 0]])
    exact = torch.distributions.Binomial(10, torch.tensor(0.2)).log_prob(torch.tensor(3.0))
    torch.testing.assert_close(RATE_CONTROLS["binomial"](torch.randn(1, 10), boundaries, 0.2), -exact / 10)


def test_a_hinge_is_still_inside_its_band():
    logits, boundaries = at_rate(0.2)
    assert hinge_loss(logits, boundaries, 0.204, slack=0.005) == 0
    with pytest.raises(ValueError, match="slack must be at least 0 and finite, got -1"):
        hinge_loss(logits, boundaries, 0.2, slack=-1)


def test_a_group_of_rows_asks_no_other_process():
    logits, boundaries = at_rate(0.3, shape=(4, 10))
    options = {"control": logit_pressure, "rows_per_mean": 2}
    groups = (None, ProcessGroup(0, 1))
    alone, among = (control_per_rows(logits, boundaries, 0.2, **options, process_group=g) for g in groups)
    assert torch.equal(alone, among)

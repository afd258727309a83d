"""Laws of all policy objectives, and of the metrics that go with them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn.functional import logsigmoid, pad

from rltok_rl.functional.policy_gradient import clipped_ratio, importance_weighted, score_function, vtrace
from rltok_rl.functional.policy_metrics import approximate_kl, clip_fraction, effective_sample_size, mean_and_spread
from rltok_rl.functional.returns import generalized_advantage

from ..each import each
from .registry import OBJECTIVES, draw

STRINGS = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)  # [16, 4]


def log_probs_of(logits):
    """Of all strings [16, 4]."""
    return logsigmoid(torch.where(STRINGS.bool(), logits, -logits))


@each(name=OBJECTIVES)
def test_on_policy_the_gradient_is_the_score_functions(name):
    log_probs = draw().requires_grad_()
    for advantages in (draw(), 0 * draw()):
        objective = OBJECTIVES[name].function(log_probs, log_probs.detach(), advantages).sum()
        torch.testing.assert_close(torch.autograd.grad(objective, log_probs)[0], advantages)


@each(name=OBJECTIVES)
def test_compiles_in_one_graph_with_right_gradients(name):
    """Where a weight is held constant by definition, no finite difference has its gradient; others must."""
    new, old, advantages = draw(), draw(), draw()
    function = OBJECTIVES[name].function
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: function(*x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(new, old, advantages), function(new, old, advantages))
    if OBJECTIVES[name].plain:
        assert torch.autograd.gradcheck(lambda new: function(new, old, advantages), new.requires_grad_())


@each(name=[n for n, o in OBJECTIVES.items() if o.unbiased_off_policy])
def test_unbiased_off_policy_for_single_decisions(name):
    """Decisions of another policy, weighted, have the expected gradient of the learner's own, by enumeration."""
    logits, others, values = draw(4).requires_grad_(), draw(4), draw(4, 2)
    advantages = values.gather(1, STRINGS.long().T).T  # [16, 4] each decision pays for itself
    probs = logits.sigmoid()
    (exact,) = torch.autograd.grad((probs * values[:, 1] + (1 - probs) * values[:, 0]).sum(), logits)
    new, old = log_probs_of(logits), log_probs_of(others)
    chance = old.sum(1, keepdim=True).exp()
    weighted, plain = OBJECTIVES[name].function(new, old, advantages), score_function(new, advantages)
    (ours,) = torch.autograd.grad((chance * weighted).sum(), logits, retain_graph=True)
    (unweighted,) = torch.autograd.grad((chance * plain).sum(), logits)
    torch.testing.assert_close(ours, exact)
    assert not torch.allclose(unweighted, exact, rtol=0.05)


@each(name=OBJECTIVES)
def test_biased_off_policy_for_strings(name):
    """An autoregressive policy, paid at the end: weights of single steps are biased, those of whole strings are not."""
    base, lag, others = draw(4).requires_grad_(), draw(4).requires_grad_(), (draw(4), draw(4))
    previous = pad(STRINGS, (1, 0))[:, :-1]
    returns = (draw(16, 1) + 2).expand(16, 4)  # one reward at the end, of the whole string
    new, old = log_probs_of(base + lag * previous), log_probs_of(others[0] + others[1] * previous)
    exact = torch.cat(torch.autograd.grad((new.sum(1).exp() * returns[:, 0]).sum(), (base, lag), retain_graph=True))
    chance = old.sum(1, keepdim=True).exp()
    objective = chance * OBJECTIVES[name].function(new, old, returns)
    ours = torch.cat(torch.autograd.grad(objective.sum(), (base, lag), retain_graph=True))
    assert not torch.allclose(ours, exact, rtol=0.05)
    objective = chance * (new - old).sum(1, keepdim=True).detach().exp() * score_function(new, returns)
    whole = torch.cat(torch.autograd.grad(objective.sum(), (base, lag)))
    torch.testing.assert_close(whole, exact)


def test_importance_weights():
    """A cut weight is cut."""
    new = torch.tensor([2.0]).requires_grad_()
    importance_weighted(new, torch.tensor([0.0]), torch.tensor([1.0]), max_weight=1.5).backward()
    assert new.grad.item() == 1.5


@each(far=[200.0, -200.0])
def test_ratios_beyond_all_numbers_leave_no_nan(far):
    """exp(200) is infinite in float32, and the clipped side of it has gradient 0, not 0 times infinity."""
    one = torch.ones(1, 4)
    new, ratios = (torch.full((1, 4), far, requires_grad=True) for _ in range(2))
    clipped_ratio(new, 0 * one, one * (1 if far > 0 else -1), 0.2).sum().backward()
    assert (new.grad == 0).all()
    advantages, targets = vtrace(one, 0 * one, 0 * one, ratios, 0.9)
    (advantages + targets).sum().backward()
    assert ratios.grad.isfinite().all()


@each(lmbda=[0.0, 0.6, 1.0])
def test_vtrace_on_policy_is_td_lambda(lmbda):
    rewards, values = draw(3, 12), draw(3, 12)
    after, done = torch.cat((values[:, 1:], draw(3, 1)), 1), torch.rand(3, 12) < 0.2
    _, target = vtrace(rewards, values, after, 0 * rewards, 0.9, lmbda=lmbda, done=done)
    advantages = generalized_advantage(rewards, values, after, 0.9, lmbda, done=done)
    torch.testing.assert_close(target, values + advantages)


METRICS = {
    "effective_sample_size": effective_sample_size,
    "approximate_kl": approximate_kl,
    "clip_fraction": lambda log_ratios, mask=None: clip_fraction(log_ratios, 0.2, mask),
    "mean_and_spread": mean_and_spread,
}


@each(name=METRICS)
def test_metrics_are_of_real_steps_alone(name):
    """On-policy, and in a batch in which no step is real, there is no NaN in the log."""
    values, mask = torch.randn(6, 7), torch.rand(6, 7) < 0.5
    for shifted in (values, values - 4):  # also if all decisions are less likely now
        broken = shifted.masked_fill(~mask, float("nan"))
        torch.testing.assert_close(METRICS[name](broken, mask), METRICS[name](shifted[mask]))
    expected = {"effective_sample_size": 1, "mean_and_spread": (0, 0)}.get(name, 0)
    assert METRICS[name](values, torch.zeros_like(mask)) == METRICS[name](torch.zeros(4, 5)) == expected


def test_the_divergence_is_exact_in_expectation_and_never_negative():
    """Step by step, unlike the mean of -log r, which has the same expectation."""
    assert all(approximate_kl(torch.tensor([log_ratio])) >= 0 for log_ratio in (-3.0, -1e-3, 0.0, 1e-3, 3.0))
    assert approximate_kl(torch.tensor([0.5])) == pytest.approx(0.5**2 / 2, rel=0.2)
    old, new = torch.tensor([0.3, 0.7]).log(), torch.tensor([0.6, 0.4]).log()
    estimate = sum(p * approximate_kl(lr[None]) for p, lr in zip(old.exp(), new - old, strict=True))
    torch.testing.assert_close(estimate, (old.exp() * (old - new)).sum())


@each(offset=[0.0, 500.0, -500.0])
def test_effective_sample_size_by_hand(offset):
    """Weights 1 and 3: 16 / (2 * 10). A common factor does not matter, however large."""
    log_ratios = torch.tensor([1.0, 3.0]).log() + offset
    torch.testing.assert_close(effective_sample_size(log_ratios), torch.tensor(0.8), rtol=1e-3, atol=0)


def test_a_ratio_at_a_bound_of_the_clip_is_inside():
    assert clip_fraction(torch.zeros(4), 0.0) == 0

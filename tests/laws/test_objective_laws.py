"""Laws of all policy objectives, and of the figures that go with them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from rltok_rl.functional.policy_gradient import clipped_ratio, importance_weighted, score_function, vtrace
from rltok_rl.functional.policy_metrics import approximate_kl, clip_fraction, effective_sample_size, mean_and_spread
from rltok_rl.functional.returns import td_lambda_return

from ..each import each
from .registry import OBJECTIVES


def draw(*shape):
    return torch.randn(*(shape or (5, 9)), dtype=torch.float64)


def slope(name, new, old, advantages):
    new = new.detach().requires_grad_()
    (found,) = torch.autograd.grad(OBJECTIVES[name].function(new, old, advantages).sum(), new)
    return found


@each(name=OBJECTIVES)
def test_on_policy_the_gradient_is_the_score_functions(name):
    log_probs, advantages = draw(), draw()
    torch.testing.assert_close(slope(name, log_probs, log_probs, advantages), advantages)


@each(name=OBJECTIVES)
def test_no_advantage_no_gradient(name):
    assert (slope(name, draw(), draw(), torch.zeros(5, 9, dtype=torch.float64)) == 0).all()


@each(name=[n for n, o in OBJECTIVES.items() if o.plain])
def test_gradients_are_finite_differences(name):
    """Where a weight is held constant by definition, no finite difference has its gradient; others must."""
    old, advantages = draw(), draw()
    assert torch.autograd.gradcheck(
        lambda new: OBJECTIVES[name].function(new, old, advantages), draw().requires_grad_()
    )


@each(name=OBJECTIVES)
def test_compiles_in_one_graph(name):
    given = draw(), draw(), draw()
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: OBJECTIVES[name].function(*x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*given), OBJECTIVES[name].function(*given))


@pytest.mark.parametrize(("clip", "low", "high"), [(0.2, 0.2, 0.2), ((0.1, 0.4), 0.1, 0.4)])
def test_the_clip_stops_only_what_goes_too_far(clip, low, high):
    """Beyond the range a step is stopped from going on, never from coming back."""
    ratios = torch.tensor([1 - low - 0.05, 1 - low + 0.01, 1 + high - 0.01, 1 + high + 0.05]).double()
    for sign, moves in ((1.0, [True, True, True, False]), (-1.0, [False, True, True, True])):
        new = ratios.log().requires_grad_()
        clipped_ratio(new, torch.zeros(4).double(), sign * torch.ones(4).double(), clip).sum().backward()
        assert (new.grad != 0).tolist() == moves


def test_equal_bounds_are_one_epsilon():
    given = draw(), draw(), draw()
    assert torch.equal(clipped_ratio(*given, 0.3), clipped_ratio(*given, (0.3, 0.3)))


def test_a_wide_clip_is_the_plain_ratio():
    new, old, advantages = draw(), draw(), draw()
    expected = (new - old).exp() * advantages
    torch.testing.assert_close(clipped_ratio(new, old, advantages, (1.0, 1e9)), expected)


@each(name=[n for n, o in OBJECTIVES.items() if o.unbiased_off_policy])
def test_unbiased_off_policy_for_single_decisions(name):
    """Decisions of another policy, weighted, have the expected gradient of the learner's own, by enumeration."""
    logits, others = draw(4).requires_grad_(), draw(4)
    strings = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    values = draw(4, 2)
    advantages = values.gather(1, strings.long().T).T  # [n, 4] each decision pays for itself

    def log_probs(logit):
        return torch.nn.functional.logsigmoid(torch.where(strings.bool(), logit, -logit))

    probs = logits.sigmoid()
    (exact,) = torch.autograd.grad((probs * values[:, 1] + (1 - probs) * values[:, 0]).sum(), logits)
    weight = log_probs(others).sum(1, keepdim=True).exp()
    (found,) = torch.autograd.grad(
        (weight * OBJECTIVES[name].function(log_probs(logits), log_probs(others), advantages)).sum(), logits
    )
    torch.testing.assert_close(found, exact)
    (unweighted,) = torch.autograd.grad((weight * score_function(log_probs(logits), advantages)).sum(), logits)
    assert not torch.allclose(unweighted, exact, rtol=0.05)


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_unbiased_off_policy_for_strings(name):
    """An autoregressive policy, paid at the end: unbiased where that is claimed, and shown not to be elsewhere."""
    base, lag = draw(4).requires_grad_(), draw(4).requires_grad_()
    others = draw(4), draw(4)
    strings = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    previous = torch.nn.functional.pad(strings, (1, 0))[:, :-1]
    returns = (draw(16, 1) + 2).expand(16, 4)  # one reward at the end, of the whole string

    def log_probs(base, lag):
        logits = base + lag * previous
        return torch.nn.functional.logsigmoid(torch.where(strings.bool(), logits, -logits))

    new, old = log_probs(base, lag), log_probs(*others)
    exact = torch.cat(torch.autograd.grad((new.sum(1).exp() * returns[:, 0]).sum(), (base, lag), retain_graph=True))
    chance = old.sum(1, keepdim=True).exp()

    objective = chance * OBJECTIVES[name].function(new, old, returns)
    found = torch.cat(torch.autograd.grad(objective.sum(), (base, lag)))
    if OBJECTIVES[name].unbiased_for_strings:
        torch.testing.assert_close(found, exact)
    else:
        assert not torch.allclose(found, exact, rtol=0.05)


def test_weights_of_whole_rows_end_with_the_row():
    new, old, returns = draw(16, 4), draw(16, 4), draw(16, 4)
    longer = [torch.nn.functional.pad(x, (0, 2), value=float("nan")) for x in (new, old, returns)]
    real = torch.arange(6).expand(16, 6) < 4
    padded = importance_weighted(*longer, whole_row=True, mask=real)
    torch.testing.assert_close(padded[real].view(16, 4), importance_weighted(new, old, returns, whole_row=True))


@each(far=[200.0, -200.0])
def test_ratios_beyond_all_numbers_leave_no_nan(far):
    """exp(200) is infinite in float32, and the clipped side of it has gradient 0, not 0 times infinity."""
    good = torch.ones(1, 4)
    new = torch.full((1, 4), far, requires_grad=True)
    clipped_ratio(new, torch.zeros(1, 4), good * (1 if far > 0 else -1), 0.2).sum().backward()
    assert (new.grad == 0).all()
    ratios = torch.full((1, 4), far, requires_grad=True)
    advantages, targets = vtrace(good, 0 * good, 0 * good, ratios, 0.9)
    (advantages + targets).sum().backward()
    assert ratios.grad.isfinite().all()


def test_the_divergence_is_never_negative():
    """Step by step, unlike the mean of -log r, which has the same expectation."""
    for log_ratio in (-3.0, -1e-3, 0.0, 1e-3, 3.0):
        assert approximate_kl(torch.tensor([log_ratio])) >= 0
    assert approximate_kl(torch.tensor([0.5])) == pytest.approx(0.5**2 / 2, rel=0.2)


def test_figures_of_nothing_are_figures():
    """A batch in which no step is real: no NaN in the log."""
    nothing, log_ratios = torch.zeros(2, 3, dtype=torch.bool), torch.randn(2, 3)
    assert effective_sample_size(log_ratios, nothing) == 1
    assert approximate_kl(log_ratios, nothing) == 0 and clip_fraction(log_ratios, 0.2, nothing) == 0
    assert mean_and_spread(log_ratios, nothing) == (0, 0)


def test_a_cut_weight_is_cut():
    new = torch.tensor([2.0]).requires_grad_()
    importance_weighted(new, torch.tensor([0.0]), torch.tensor([1.0]), max_weight=1.5).backward()
    assert new.grad.item() == 1.5


@each(lmbda=[0.0, 0.6, 1.0])
def test_vtrace_on_policy_is_td_lambda(lmbda):
    rewards, values = draw(3, 12), draw(3, 12)
    following = torch.cat((values[:, 1:], draw(3, 1)), 1)
    done = torch.rand(3, 12) < 0.2
    _, target = vtrace(rewards, values, following, 0 * rewards, 0.9, lmbda=lmbda, done=done)
    torch.testing.assert_close(target, td_lambda_return(rewards, values, following, 0.9, lmbda, done=done))


def test_vtrace_is_its_definition():
    """The sum over future temporal differences, each under the product of the weights before it."""
    rewards, values, log_ratios = draw(1, 7), draw(1, 7), draw(1, 7)
    following = torch.cat((values[:, 1:], draw(1, 1)), 1)
    advantages, target = vtrace(rewards, values, following, log_ratios, 0.9, lmbda=0.8, rho_clip=1.2, c_clip=0.7)
    ratio = log_ratios.exp()[0]
    rho, c = ratio.clamp(max=1.2), 0.8 * ratio.clamp(max=0.7)
    for t in range(7):
        total = values[0, t].clone()
        for s in range(t, 7):
            delta = rho[s] * (rewards[0, s] + 0.9 * following[0, s] - values[0, s])
            total += 0.9 ** (s - t) * c[t:s].prod() * delta
        torch.testing.assert_close(target[0, t], total)
    ahead = torch.cat((target[:, 1:], following[:, -1:]), 1)
    torch.testing.assert_close(advantages, rho * (rewards + 0.9 * ahead - values))


def test_figures_on_policy():
    zero = torch.zeros(4, 5)
    assert effective_sample_size(zero) == 1 and approximate_kl(zero) == 0 and clip_fraction(zero, 0.1) == 0


@each(offset=[0.0, 500.0, -500.0])
def test_effective_sample_size_by_hand(offset):
    """Weights 1 and 3: 16 / (2 * 10). A common factor does not matter, however large."""
    log_ratios = torch.tensor([1.0, 3.0]).log() + offset
    torch.testing.assert_close(effective_sample_size(log_ratios), torch.tensor(0.8), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("clip", "outside"), [(0.2, 3), ((0.2, 1.0), 2), ((0.6, 0.2), 1), ((1.0, 9.0), 0)])
def test_ratios_on_either_side_of_the_clip_are_counted(clip, outside):
    log_ratios = torch.tensor([0.5, 0.5, 0.9, 1.1, 1.3]).log()
    assert clip_fraction(log_ratios, clip) == pytest.approx(outside / 5)


def test_kl_is_the_divergence_in_expectation():
    old, new = torch.tensor([0.3, 0.7]).log(), torch.tensor([0.6, 0.4]).log()
    exact = (old.exp() * (old - new)).sum()
    estimate = sum(p * approximate_kl(lr[None]) for p, lr in zip(old.exp(), new - old, strict=True))
    torch.testing.assert_close(estimate, exact)


def test_figures_are_of_real_steps_alone():
    values, mask = torch.randn(6, 7), torch.rand(6, 7) < 0.5
    broken = values.masked_fill(~mask, float("nan"))
    for figure in (effective_sample_size, approximate_kl, lambda x, m=None: clip_fraction(x, 0.2, m), mean_and_spread):
        torch.testing.assert_close(figure(broken, mask), figure(values[mask]))


@each(clip=[-0.1, 1.5, (0.2, -1.0), (2.0, 0.1)])
def test_a_clip_out_of_range_is_refused(clip):
    with pytest.raises(ValueError, match="clip must be epsilon in"):
        clipped_ratio(draw(), draw(), draw(), clip)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"advantages must have the shape of log_probs, \[5, 9\], got \[5, 9, 1\]"):
        score_function(draw(), draw(5, 9, 1))
    with pytest.raises(ValueError, match="max_weight must be positive or None, got 0"):
        importance_weighted(draw(), draw(), draw(), max_weight=0)
    with pytest.raises(ValueError, match="rho_clip must be positive, got 0"):
        vtrace(draw(), draw(), draw(), draw(), 0.9, rho_clip=0)

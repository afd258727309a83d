"""Laws of all baselines: what they leave alone, and what they do to the expected gradient, by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.baselines import RunningMean, control_variate, group_mean, running_mean
from rltok_rl.functional.policy_gradient import score_function

from ..each import each
from .registry import BASELINES, SHAPE

FUNCTIONS = [n for n, b in BASELINES.items() if not b.module]


def having(claim):
    return [n for n, b in BASELINES.items() if getattr(b, claim)]


def judge(name, returns, **options):
    return BASELINES[name].function(returns, **options)


def draw(*shape):
    return torch.randn(*(shape or SHAPE), dtype=torch.float64)


@each(name=BASELINES)
def test_shape_and_dtype_stay(name):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = judge(name, draw().to(dtype))
        assert found.shape == SHAPE and found.dtype == dtype


@each(name=having("centred"))
def test_what_rows_share_does_not_matter(name):
    returns = draw()
    torch.testing.assert_close(judge(name, returns + 5 * draw(1, SHAPE[1])), judge(name, returns))


@each(name=having("linear"))
def test_is_linear(name):
    one, two = draw(), draw()
    torch.testing.assert_close(judge(name, 2 * one - 3 * two), 2 * judge(name, one) - 3 * judge(name, two))


@each(name=having("leading"))
def test_any_leading_dimensions(name):
    """[2, 3, T] are six rows."""
    returns, mask = draw(6, 21), torch.rand(6, 21) < 0.8
    found = judge(name, returns.view(2, 3, 21), mask=mask.view(2, 3, 21))
    if BASELINES[name].blind_to_rows:  # else what is known of a row depends on where it stands
        torch.testing.assert_close(found.view(6, 21), judge(name, returns, mask=mask))
    assert found.shape == (2, 3, 21)


@each(name=having("absorbs"))
def test_returns_that_are_equal_everywhere_leave_nothing(name):
    torch.testing.assert_close(judge(name, torch.full(SHAPE, 3.0)), torch.zeros(SHAPE), rtol=0, atol=1e-5)


@each(name=BASELINES)
def test_a_mask_is_a_smaller_batch(name):
    """Rows that are masked as a whole are rows that are not there."""
    returns = draw(8, 10)
    mask = torch.ones(8, 10, dtype=torch.bool)
    mask[4:] = False
    broken = returns.masked_fill(~mask, float("nan")).requires_grad_()
    found = judge(name, broken, mask=mask)
    if BASELINES[name].blind_to_rows:
        torch.testing.assert_close(found[:4], judge(name, returns[:4]))
    assert (found[4:] == 0).all() and found.isfinite().all()
    found.square().sum().backward()
    assert broken.grad.isfinite().all() and (broken.grad[4:] == 0).all()


@each(name=BASELINES)
def test_a_position_with_one_real_row_is_no_division_by_zero(name):
    returns, mask = draw(4, 6), torch.ones(4, 6, dtype=torch.bool)
    mask[1:, 5] = False
    found = judge(name, returns, mask=mask)
    assert found.isfinite().all() and (found[~mask] == 0).all()
    if BASELINES[name].centred:
        assert found[0, 5] == 0  # nothing to compare with


@each(lengths=[(10, 7, 3, 2), (10, 10, 1, 1)])
def test_leave_one_out_is_the_centred_one_scaled_per_position(lengths):
    returns = draw(4, 10)
    mask = torch.arange(10) < torch.tensor(lengths)[:, None]
    count = mask.sum(0)
    factor = torch.where(count > 1, count / (count - 1).clamp(min=1), 0)
    torch.testing.assert_close(
        judge("leave_one_out", returns, mask=mask), judge("batch_mean", returns, mask=mask) * factor
    )


def test_z_normalised_has_mean_0_and_spread_1():
    mask = torch.rand(SHAPE) < 0.7
    found = judge("z_score", 3 + 7 * draw(), mask=mask)[mask]
    assert found.mean().abs() < 1e-7 and abs(found.std(correction=0) - 1) < 1e-6


@each(decay=[1.0, 0.5, 0.0])
def test_a_running_mean_is_the_mean_of_what_came_before(decay):
    """A batch weighs ``decay`` to the number of batches since, in sum and count alike: 0 leaves the last one."""
    batches = [draw(3, 5) for _ in range(4)]
    state = RunningMean.empty(5)
    for number, batch in enumerate(batches):
        found, state = running_mean(batch, state, decay=decay)
        weights = [decay ** (number - 1 - earlier) for earlier in range(number)]
        means = [weight * one.mean(0) for weight, one in zip(weights, batches, strict=False)]
        before = sum(means) / sum(weights) if number else torch.zeros(5, dtype=torch.float64)
        torch.testing.assert_close(found, batch - before, rtol=1e-5, atol=1e-6)


def test_a_control_variate_takes_what_its_regressors_explain():
    """Returns of which 96 % are linear in the regressors lose most of their variance, on rows it was not fitted on."""
    regressors = draw(16, 30, 3)
    returns = regressors @ torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64) + draw(16, 30) + 10
    found = control_variate(returns, regressors)
    assert found.var() < 1.2 < 0.1 * returns.var()
    twice = torch.cat((regressors, regressors, torch.zeros(16, 30, 1)), -1)  # collinear, and one that never varies
    torch.testing.assert_close(control_variate(returns, twice), found, rtol=0.1, atol=0.05)


def test_collinear_regressors_need_a_ridge():
    returns, regressors = draw(6, 5), draw(6, 5, 2)
    for bad in (torch.cat((regressors, regressors[..., :1] * 3), -1), torch.ones(6, 5, 1)):
        with pytest.raises(ValueError, match="regressors must not be constant or combinations .* got ridge=0"):
            control_variate(returns, bad, ridge=0.0)
        assert control_variate(returns, bad).isfinite().all()
    for constant in (1.0, 0.1, 7.7, 1e-3, 123.456):  # not all are numbers of float64: their variance is rounding
        regressor = torch.full((6, 5, 1), constant, dtype=torch.float64)
        with pytest.raises(ValueError, match="regressors must not be constant"):
            control_variate(returns, regressor, ridge=0.0)
        flat = control_variate(returns, regressor)
        # What is left is the mean of the other fold.
        torch.testing.assert_close(flat[0::2], returns[0::2] - returns[1::2].mean(), rtol=1e-12, atol=1e-12)


def test_units_of_regressors_do_not_matter():
    returns, regressors = draw(6, 5), draw(6, 5, 2)
    unit = torch.tensor([1e-4, 1e6], dtype=torch.float64)
    torch.testing.assert_close(
        control_variate(returns, unit * regressors + 7 * unit), control_variate(returns, regressors)
    )


@each(name=BASELINES)
def test_bfloat16_is_rounded_once(name):
    """A mean of 100.3 that is rounded before it is subtracted would shift all rows the same way."""
    returns = (draw(8, 21) + 100).bfloat16()
    found, exact = judge(name, returns), judge(name, returns.double())
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=1e-4)


def test_equal_returns_are_not_blown_up_by_normalising():
    """Some means of equal numbers are off by rounding, which divided by itself would be of size 1."""
    rounded = 0
    for value in torch.linspace(0.1, 0.9, 41).tolist():
        returns = torch.full((7, 11), value, requires_grad=True)
        rounded += bool((returns != returns.sum() / returns.numel()).any())
        advantages = judge("z_score", returns)
        assert (advantages == 0).all()
        advantages.sum().backward()
        assert returns.grad.isfinite().all()
    assert rounded  # otherwise this test could not fail


@each(name=FUNCTIONS)
def test_compiles_in_one_graph(name):
    returns = draw(4, 6)
    torch._dynamo.reset()
    compiled = torch.compile(lambda r: judge(name, r), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(returns), judge(name, returns))


@each(name=BASELINES)
def test_gradients_are_finite_differences(name):
    assert torch.autograd.gradcheck(lambda r: judge(name, r), draw(4, 6).requires_grad_())


def expected_gradient(
    baseline: Callable[..., Tensor], num_rows: int, num_steps: int, mask: Tensor | None = None, seed: int = 0
):
    """Exact and estimated gradient of the expected return, all joint decisions of all rows enumerated.

    Rows share one autoregressive policy: the logit of a decision is base_t + lag_t a_{t-1}. Rewards are any function of
    the decisions up to then.
    """
    torch.manual_seed(seed)
    base = torch.randn(num_steps, dtype=torch.float64, requires_grad=True)
    lag = torch.randn(num_steps, dtype=torch.float64, requires_grad=True)
    strings = torch.tensor(list(product([0.0, 1.0], repeat=num_steps)), dtype=torch.float64)  # [n, T]
    previous = torch.nn.functional.pad(strings, (1, 0))[:, :-1]
    logits = base + lag * previous
    log_probs = torch.nn.functional.logsigmoid(torch.where(strings.bool(), logits, -logits))
    prefixes = (strings * 2.0 ** torch.arange(num_steps)).cumsum(1).long()  # [n, T] a number for each prefix
    table = torch.randn(num_steps, 2**num_steps, dtype=torch.float64) + 3
    rewards = torch.stack([table[t][prefixes[:, t]] for t in range(num_steps)], 1)
    returns = rewards.flip(1).cumsum(1).flip(1)  # [n, T]
    options = {} if mask is None else {"mask": mask}
    exact = torch.autograd.grad((log_probs.sum(1).exp() * returns[:, 0]).sum(), (base, lag), retain_graph=True)

    total = [torch.zeros_like(base), torch.zeros_like(lag)]
    for rows in product(range(len(strings)), repeat=num_rows):
        chosen = torch.tensor(rows)
        weight = log_probs[chosen].sum().exp().detach()
        advantages = baseline(returns[chosen], **options)
        objective = score_function(log_probs[chosen], advantages.detach()).sum(1).mean()
        found = torch.autograd.grad(weight * objective, (base, lag), retain_graph=True)
        total = [t + f for t, f in zip(total, found, strict=True)]
    return torch.cat(exact), torch.cat(total)


def rows_to_compare(name):
    """Two, or two groups."""
    return 2 * (BASELINES[name].group or 1)


@each(name=having("unbiased"))
def test_unbiased_by_enumeration(name):
    exact, estimated = expected_gradient(BASELINES[name].function, rows_to_compare(name), num_steps=2)
    torch.testing.assert_close(estimated, exact)


@each(name=having("shrinks"), times=[1, 2])
def test_a_mean_that_holds_the_row_shrinks_the_gradient_by_exactly_one_row(name, times):
    num_rows = rows_to_compare(name) * times if BASELINES[name].group is None else rows_to_compare(name)
    exact, estimated = expected_gradient(BASELINES[name].function, num_rows, num_steps=2)
    compared = BASELINES[name].group or num_rows
    torch.testing.assert_close(estimated, exact * (compared - 1) / compared)


def test_three_rows_shrink_it_by_a_third():
    exact, estimated = expected_gradient(BASELINES["batch_mean"].function, 3, num_steps=2)
    torch.testing.assert_close(estimated, exact * 2 / 3)


@each(name=["leave_one_out", "group_mean"])
def test_ragged_rows_are_unbiased_where_there_is_company(name):
    """A position that one row of a group alone has gets no gradient; no other expectation changes."""
    num_rows = rows_to_compare(name)
    mask = torch.ones(num_rows, 2, dtype=torch.bool)
    mask[1::2, 1] = False  # every other row ends after one step
    company = mask & mask.view(-1, 2, 2).all(1).repeat_interleave(2, 0)
    _, estimated = expected_gradient(BASELINES[name].function, num_rows, 2, mask)
    _, expected = expected_gradient(BASELINES["none"].function, num_rows, 2, company)
    torch.testing.assert_close(estimated, expected)
    assert expected.abs().max() > 0.01


def test_normalising_is_biased_in_size_and_direction():
    """What a law that every baseline passes could not show: this test finds a bias where there is one."""
    exact, estimated = expected_gradient(BASELINES["z_score"].function, num_rows=2, num_steps=2)
    assert torch.cosine_similarity(exact, estimated, dim=0) < 0.9999
    assert not torch.allclose(exact, estimated, rtol=0.05)


@each(name=["batch_mean", "leave_one_out"], shape=[(1, 5), (5,)])
def test_one_row_alone_is_refused(name, shape):
    with pytest.raises(ValueError, match=rf"{name} compares rows .* needs at least 2 of them, got returns \["):
        judge(name, draw(*shape))


@each(name=FUNCTIONS)
def test_bad_input_is_refused(name):
    """Integers too: advantages in their dtype would be cut to integers, half of them to 0."""
    for returns, mask, error, message in (
        (draw(), torch.ones(6).bool(), ValueError, r"mask must have the shape of returns, \[6, 21\], got \[6\]"),
        (draw(), torch.ones(SHAPE), TypeError, "mask must be bool"),
        (torch.ones(SHAPE).long(), None, TypeError, "returns must be a floating-point tensor, got torch.int64"),
    ):
        with pytest.raises(error, match=message):
            judge(name, returns, mask=mask)


def test_other_bad_input_is_refused():
    x, z = draw(6, 3), draw(6, 3, 1)
    for call, message in (
        (lambda: group_mean(x, group_size=4), "group_size must be at least 2 and divide the rows .* group_size=4"),
        (lambda: control_variate(x, z, folds=7), r"folds must lie in 2\.\.6, the number of rows, got 7"),
        (lambda: control_variate(x[:1], z[:1]), r"fits on other rows .* needs at least 2 .* returns \[1, 3\]"),
        (lambda: control_variate(x, draw(6, 2, 1)), r"regressors must be \[6, 3, 'F'\], got \[6, 2, 1\]"),
        (lambda: control_variate(x, z, ridge=-1), "ridge must be at least 0, got -1"),
        (lambda: running_mean(x, RunningMean.empty(4)), "state must hold the 3 positions of returns, got"),
        (lambda: running_mean(x, RunningMean.empty(3), decay=2), r"decay must lie in \[0, 1\], got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            call()

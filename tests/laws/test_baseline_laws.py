"""Laws of all baselines: what they leave alone, and what they do to the expected gradient, by enumeration."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.distributed import ProcessGroup
from torch.nn.functional import logsigmoid, pad

from rltok_rl.functional.baselines import (
    RunningMean,
    batch_mean,
    group_mean,
    no_baseline,
    per_rows,
    running_mean,
    z_score,
)
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.policy_gradient import score_function
from rltok_rl.objectives.baseline import as_baseline, name_of

from ..each import each
from .registry import BASELINES, SHAPE, draw

FUNCTIONS = [n for n, b in BASELINES.items() if not b.module]


def having(claim):
    return [n for n, b in BASELINES.items() if getattr(b, claim)]


def judge(name, returns, **options):
    return BASELINES[name].function(returns, **options)


@each(name=BASELINES)
def test_shape_and_dtype_stay_and_bfloat16_is_rounded_once(name):
    """A mean of 100.3 that is rounded before it is subtracted would shift all rows the same way."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        returns = (draw() + 100).to(dtype)
        advantages = judge(name, returns)
        assert advantages.shape == SHAPE and advantages.dtype == dtype
    torch.testing.assert_close(advantages.double(), judge(name, returns.double()), rtol=2**-7, atol=1e-4)


@each(name=BASELINES)
def test_claims(name):
    baseline, one, two = BASELINES[name], draw(), draw()
    if baseline.centred:
        torch.testing.assert_close(judge(name, one + 5 * draw(1, SHAPE[1])), judge(name, one))
    if baseline.linear:
        torch.testing.assert_close(judge(name, 2 * one - 3 * two), 2 * judge(name, one) - 3 * judge(name, two))
    if baseline.absorbs:
        torch.testing.assert_close(judge(name, torch.full(SHAPE, 3.0)), torch.zeros(SHAPE), rtol=0, atol=1e-5)
    if baseline.leading:  # [2, 3, T] are six rows
        mask = torch.rand(SHAPE) < 0.8
        advantages = judge(name, one.view(2, 3, 21), mask=mask.view(2, 3, 21))
        assert advantages.shape == (2, 3, 21)
        if baseline.blind_to_rows:  # else what is known of a row depends on where it stands
            torch.testing.assert_close(advantages.view(SHAPE), judge(name, one, mask=mask))


@each(name=BASELINES)
def test_a_mask_is_a_smaller_batch(name):
    """Rows that are masked as a whole are rows that are not there."""
    returns, mask = draw(8, 10), torch.arange(8)[:, None].expand(8, 10) < 4
    broken = returns.masked_fill(~mask, float("nan")).requires_grad_()
    advantages = judge(name, broken, mask=mask)
    if BASELINES[name].blind_to_rows:
        torch.testing.assert_close(advantages[:4], judge(name, returns[:4]))
    assert (advantages[4:] == 0).all() and advantages.isfinite().all()
    advantages.square().sum().backward()
    assert broken.grad.isfinite().all() and (broken.grad[4:] == 0).all()


@each(name=BASELINES)
def test_a_position_with_one_real_row_is_no_division_by_zero(name):
    returns, mask = draw(4, 6), torch.ones(4, 6, dtype=torch.bool)
    mask[1:, 5] = False
    advantages = judge(name, returns, mask=mask)
    assert advantages.isfinite().all() and (advantages[~mask] == 0).all()
    if BASELINES[name].centred:
        assert advantages[0, 5] == 0  # nothing to compare with


@each(baseline=["batch_mean", "leave_one_out", "z_score"])
def test_means_per_rows_are_those_of_a_batch_for_each_group(baseline):
    """Micro-batches that take their own means."""
    returns, mask = draw(6, 9), torch.rand(6, 9) < 0.7
    function = as_baseline(baseline, rows_per_mean=3)
    parts = [judge(baseline, returns[at : at + 3], mask=mask[at : at + 3]) for at in (0, 3)]
    assert torch.equal(function(returns, mask=mask, process_group=None), torch.cat(parts))
    assert as_baseline("none", rows_per_mean=3) is no_baseline and name_of(function) == baseline
    assert name_of(as_baseline("z_score", rows_per_mean=3, eps=0.5)) == "z_score"
    elsewhere = ProcessGroup(0, 1)  # a group of rows lies in one process, which asks no other
    assert torch.equal(function(returns, mask=mask, process_group=elsewhere), torch.cat(parts))
    grouped = [group_mean(returns, group_size=3, process_group=group) for group in (None, elsewhere)]
    assert torch.equal(*grouped)
    alone = [judge("leave_one_out", returns[at : at + 3], mask=mask[at : at + 3]) for at in (0, 3)]
    torch.testing.assert_close(group_mean(returns, group_size=3, mask=mask), torch.cat(alone))


def test_z_score_has_mean_0_and_spread_1_and_does_not_blow_up_equal_returns():
    """Some means of equal numbers are off by rounding, which divided by itself would be of size 1."""
    mask = torch.rand(SHAPE) < 0.7
    advantages = judge("z_score", 3 + 7 * draw(), mask=mask)[mask]
    assert advantages.mean().abs() < 1e-7 and abs(advantages.std(correction=0) - 1) < 1e-6
    nearly_equal = judge("z_score", 1000 + 0.05 * draw(dtype=torch.float32))
    assert abs(nearly_equal.std(correction=0) - 1) < 1e-3
    rounded = 0
    for value in (0.0, *torch.linspace(0.1, 0.9, 41).tolist()):
        returns = torch.full((7, 11), value, requires_grad=True)
        rounded += bool((returns != returns.sum() / returns.numel()).any())
        advantages = judge("z_score", returns)
        assert (advantages == 0).all()
        advantages.sum().backward()
        assert returns.grad.isfinite().all()
    assert rounded  # otherwise this test could not fail
    two = z_score(torch.tensor([[1.0, 5.0]]))  # steps are enough
    torch.testing.assert_close(two, torch.tensor([[-1.0, 1.0]]))


def test_a_control_variate_removes_the_share_that_its_regressors_explain():
    """Returns of which 96 % are linear in the regressors lose most of their variance, on rows it was not fitted on."""
    regressors = draw(16, 30, 3)
    returns = regressors @ torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64) + draw(16, 30) + 10
    advantages = control_variate(returns, regressors)
    assert advantages.var() < 1.2 < 0.1 * returns.var()
    twice = torch.cat((regressors, regressors, torch.zeros(16, 30, 1)), -1)  # collinear, and one that never varies
    torch.testing.assert_close(control_variate(returns, twice), advantages, rtol=0.1, atol=0.05)
    unit = torch.tensor([1e-4, 1e6, 7.0], dtype=torch.float64)  # units and offsets of regressors do not matter
    torch.testing.assert_close(control_variate(returns, unit * (regressors + 1e4)), advantages, rtol=1e-5, atol=1e-5)


def test_a_control_variate_does_not_fit_what_is_masked():
    """Regressors of padding are whatever stands there."""
    returns, regressors, mask = draw(6, 9), draw(6, 9, 2), draw(6, 9) > -0.5
    expected = control_variate(returns, regressors, mask=mask)
    for filler in (1e3, torch.nan):
        padded = regressors.masked_fill(~mask[..., None], filler)
        torch.testing.assert_close(control_variate(returns, padded, mask=mask), expected)


def test_a_control_variate_expects_nothing_where_no_other_row_is_real():
    returns, mask = draw(4, 5), torch.tensor([True, False, True, False])[:, None].expand(4, 5)
    advantages = control_variate(returns, draw(4, 5, 2), mask=mask)  # folds are rows 0, 2 and rows 1, 3
    assert torch.equal(advantages, returns.masked_fill(~mask, 0.0))


def test_collinear_regressors_need_a_ridge():
    returns, regressors = draw(6, 5), draw(6, 5, 2)
    alike = regressors @ torch.tensor([[1.0, 1.0], [0.0, 1e-3]]).double()  # nearly the same, and no less known
    expected = control_variate(returns, regressors, ridge=0.0)
    torch.testing.assert_close(control_variate(returns, alike, ridge=0.0), expected, rtol=1e-6, atol=1e-6)
    # Not all of these constants are numbers of float64: their variance is rounding.
    constants = [torch.full((6, 5, 1), c, dtype=torch.float64) for c in (1.0, 0.1, 7.7, 1e-3, 123.456)]
    for bad in (torch.cat((regressors, regressors[..., :1] * 3), -1), *constants):
        with pytest.raises(ValueError, match="regressors must not be constant or combinations .* got ridge=0"):
            control_variate(returns, bad, ridge=0.0)
        assert control_variate(returns, bad).isfinite().all()
    for constant in constants:  # what is left is the mean of the other fold
        expected = returns[0::2] - returns[1::2].mean()
        torch.testing.assert_close(control_variate(returns, constant)[0::2], expected, rtol=1e-12, atol=1e-12)


@each(name=BASELINES)
def test_compiles_in_one_graph_with_right_gradients(name):
    returns = draw(4, 6)
    assert torch.autograd.gradcheck(lambda r: judge(name, r), returns.clone().requires_grad_())
    if not BASELINES[name].module:
        torch._dynamo.reset()
        compiled = torch.compile(lambda r: judge(name, r), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(returns), judge(name, returns))


def expected_gradient(name, num_rows, mask=None):
    """Exact and estimated gradient of the expected return, all joint decisions of all rows of two steps enumerated.

    Rows share one autoregressive policy: the logit of a decision is base_t + lag_t a_{t-1}. Rewards are any function of
    the decisions up to then.
    """
    torch.manual_seed(0)
    base, lag = (torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    strings = torch.tensor(list(product([0.0, 1.0], repeat=2)), dtype=torch.float64)  # [n, T]
    logits = base + lag * pad(strings, (1, 0))[:, :-1]
    log_probs = logsigmoid(torch.where(strings.bool(), logits, -logits))
    prefixes = (strings * 2.0 ** torch.arange(2)).cumsum(1).long()  # [n, T] a number for each prefix
    table = torch.randn(2, 4, dtype=torch.float64) + 3
    rewards = torch.stack([table[t][prefixes[:, t]] for t in range(2)], 1)
    returns = rewards.flip(1).cumsum(1).flip(1)  # [n, T]
    exact = torch.autograd.grad((log_probs.sum(1).exp() * returns[:, 0]).sum(), (base, lag), retain_graph=True)
    total = torch.zeros(())
    for rows in product(range(len(strings)), repeat=num_rows):
        chosen = torch.tensor(rows)
        weight = log_probs[chosen].sum().exp().detach()
        advantages = judge(name, returns[chosen], **({} if mask is None else {"mask": mask}))
        total = total + weight * score_function(log_probs[chosen], advantages.detach()).sum(1).mean()
    return torch.cat(exact), torch.cat(torch.autograd.grad(total, (base, lag)))


def rows_to_compare(name):
    """Two, or two groups."""
    return 2 * (BASELINES[name].group or 1)


@each(name=having("unbiased"))
def test_unbiased_by_enumeration(name):
    exact, estimated = expected_gradient(name, rows_to_compare(name))
    torch.testing.assert_close(estimated, exact)


@each(name=having("shrinks"))
def test_a_mean_that_includes_the_row_shrinks_the_gradient_by_exactly_one_row(name):
    group = BASELINES[name].group
    for num_rows in (2, 3, 4) if group is None else (rows_to_compare(name),):
        exact, estimated = expected_gradient(name, num_rows)
        torch.testing.assert_close(estimated, exact * (1 - 1 / (group or num_rows)))


@each(name=["leave_one_out", "group_mean"])
def test_ragged_rows_are_unbiased_where_there_is_company(name):
    """A position that one row of a group alone has gets no gradient; no other expectation changes."""
    num_rows = rows_to_compare(name)
    mask = torch.ones(num_rows, 2, dtype=torch.bool)
    mask[1::2, 1] = False  # every other row ends after one step
    company = mask & mask.view(-1, 2, 2).all(1).repeat_interleave(2, 0)
    _, estimated = expected_gradient(name, num_rows, mask)
    _, expected = expected_gradient("none", num_rows, company)
    torch.testing.assert_close(estimated, expected)
    assert expected.abs().max() > 0.01


def test_normalising_is_biased_in_size_and_direction():
    """A law that every baseline passes could not show that this test finds a bias where there is one."""
    exact, estimated = expected_gradient("z_score", num_rows=2)
    assert torch.cosine_similarity(exact, estimated, dim=0) < 0.9999
    assert not torch.allclose(exact, estimated, rtol=0.05)


def test_refusals():
    x, z = draw(6, 3), draw(6, 3, 1)
    for call, words in (
        (lambda: judge("batch_mean", draw(1, 5)), "batch_mean compares rows .* needs at least 2 of them, got returns"),
        (lambda: judge("leave_one_out", draw(5)), "leave_one_out compares rows .* at least 2 of them, got returns"),
        (
            lambda: per_rows(draw(0, 3), baseline=batch_mean, rows_per_mean=2),
            r"at least 2 of them, got returns \[0, 3\]",
        ),
        (lambda: judge("z_score", x[:1, :1]), r"z_score needs at least 2 steps, got returns \[1, 1\]"),
        (lambda: group_mean(x, group_size=4), "group_size must be at least 2 and divide the rows .* group_size=4"),
        (lambda: control_variate(x[:1], z[:1]), r"fits on other rows .* needs at least 2 .* returns \[1, 3\]"),
        (lambda: control_variate(x, draw(6, 2, 1)), r"regressors must be \[6, 3, 'F'\], got \[6, 2, 1\]"),
        (lambda: running_mean(x, RunningMean.empty(4)), "state must hold the 3 positions of returns, got"),
    ):
        with pytest.raises(ValueError, match=words):
            call()

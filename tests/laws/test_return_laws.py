"""Laws of all discounted sums."""

from __future__ import annotations

import pytest
import torch
from torchrl.objectives.value import functional as torchrl_value

from rltok_rl.functional import returns
from rltok_rl.functional.policy_gradient import vtrace

from ..each import each
from .registry import FUNCTIONS, RETURNS, draw

GAMMAS = [0.0, 0.5, 0.9, 1.0]
LENGTHS = [1, 2, 31, 32, 33, 100]  # one step, and either side of a power of two, at which the scan's reach doubles


def loop(rewards, gamma, done=None):
    """The definition, in float64."""
    out = rewards.double().clone()
    for t in range(rewards.shape[-1] - 2, -1, -1):
        out[..., t] += gamma * (1.0 if done is None else (~done[..., t]).double()) * out[..., t + 1]
    return out


def some_ends(rewards, with_done, share=0.15):
    return torch.rand(rewards.shape) < share if with_done else None


def columns(*tensors):
    """TorchRL's [*B, T, 1]."""
    return [x.unsqueeze(-1) for x in tensors]


@each(name=RETURNS, gamma=GAMMAS, length=LENGTHS, with_done=[False, True])
def test_equals_the_loop(name, gamma, length, with_done):
    rewards = draw(3, 2, length)
    done = some_ends(rewards, with_done)
    torch.testing.assert_close(RETURNS[name](rewards, gamma, done=done), loop(rewards, gamma, done))
    if gamma == 0:
        assert torch.equal(RETURNS[name](rewards, gamma), rewards)


@each(name=RETURNS, gamma=GAMMAS)
def test_a_mask_is_a_shorter_sequence(name, gamma):
    """Padding does not matter to values and to gradients, not even NaN."""
    rewards, lengths = draw(3, 50), [50, 33, 1]
    mask = torch.arange(50) < torch.tensor(lengths)[:, None]
    padded = rewards.masked_fill(~mask, float("nan")).requires_grad_()
    sums = RETURNS[name](padded, gamma, mask=mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(sums[row, :length], RETURNS[name](rewards[row : row + 1, :length], gamma)[0])
    assert (sums[~mask] == 0).all()
    sums.sum().backward()
    assert padded.grad.isfinite().all() and (padded.grad[~mask] == 0).all()


@each(name=RETURNS, with_done=[False, True])
def test_gradients_are_finite_differences(name, with_done):
    rewards = draw(2, 37).requires_grad_()
    done = some_ends(rewards, with_done)
    assert torch.autograd.gradcheck(lambda r: RETURNS[name](r, 0.9, done=done), rewards)


@each(name=RETURNS, dtype=[torch.float64, torch.float32, torch.bfloat16])
def test_precision(name, dtype):
    """Errors relative to the largest return, in the dtype of the rewards; mixed precision rounds nothing more."""
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    rewards = draw(4, 1000, dtype=torch.float32).to(dtype)
    sums, expected = RETURNS[name](rewards, 0.99), loop(rewards, 0.99)
    assert sums.dtype == dtype
    assert (sums.double() - expected).abs().max() <= tolerance * expected.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(RETURNS[name](rewards, 0.99), sums)


@each(name=FUNCTIONS, with_done=[False, True])  # estimators are built before a graph, not inside it
def test_compiles_in_one_graph_with_any_gamma(name, with_done):
    """Gamma may be a tensor, with a derivative."""
    rewards, gamma = draw(2, 40), torch.tensor(0.9, dtype=torch.float64)
    done = some_ends(rewards, with_done)
    expected = RETURNS[name](rewards, 0.9, done=done)
    for value in (0.9, gamma):
        torch._dynamo.reset()  # otherwise the graphs of other cases count as recompilations of this one
        compiled = torch.compile(lambda r, g: RETURNS[name](r, g, done=done), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(rewards, value), expected)
    torch.testing.assert_close(RETURNS[name](rewards, gamma, done=done), expected)
    assert torch.autograd.gradcheck(lambda g: RETURNS[name](rewards, g, done=done), gamma.requires_grad_())


@each(name=RETURNS, gamma=GAMMAS, with_done=[False, True])
def test_agrees_with_torchrl(name, gamma, with_done):
    """On shared ground: an episode ends for good where it ends, and the last step is such an end."""
    rewards = draw(3, 40)
    done = some_ends(rewards, with_done, 0.1) if with_done else torch.zeros(3, 40, dtype=torch.bool)
    done[:, -1] = True
    ours, r, d = columns(RETURNS[name](rewards, gamma, done=done), rewards, done)
    zero, options = torch.zeros_like(r), {"done": d, "terminated": d}
    theirs = {
        "td1": torchrl_value.td1_return_estimate(gamma, zero, r, **options),
        "gae": torchrl_value.generalized_advantage_estimate(gamma, 1.0, zero, zero, r, **options)[0],
        "td_lambda": torchrl_value.td_lambda_return_estimate(gamma, 1.0, zero, r, **options),
    }
    if gamma > 0:  # TorchRL's vectorised forms raise an IndexError at gamma = 0
        theirs["reward2go"] = torchrl_value.reward2go(r, d, gamma)
        theirs["vec_td1"] = torchrl_value.vec_td1_return_estimate(gamma, zero, r, **options)
    for which, expected in theirs.items():
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6, msg=lambda m, w=which: f"{w}: {m}")


@each(lmbda=[0.0, 0.7, 1.0], gamma=GAMMAS)
def test_values_agree_with_torchrl(gamma, lmbda):
    """Real values, truncations and terminations, an open end: GAE, TD(lambda) and V-trace off-policy."""
    rewards, values, after = draw(3, 40), draw(3, 40), draw(3, 40)
    done = torch.rand(3, 40) < 0.15
    terminated = done & (torch.rand(3, 40) < 0.5)
    ends = {"done": done, "terminated": terminated}
    flags = dict(zip(ends, columns(*ends.values()), strict=True))

    def close(ours, theirs):  # TorchRL rounds gamma to float32 on the way
        torch.testing.assert_close(ours.unsqueeze(-1), theirs, rtol=1e-5, atol=1e-6)

    wide = columns(values, after, rewards)
    advantage, target = torchrl_value.generalized_advantage_estimate(gamma, lmbda, *wide, **flags)
    ours = returns.generalized_advantage(rewards, values, after, gamma, lmbda, **ends)
    close(ours, advantage)
    close(values + ours, target)
    # TD(lambda) by its equation, and V-trace: the value after a step is the value before the next.
    shifted = torch.cat((values[:, 1:], after[:, -1:]), 1)
    jumps = torch.where(done, after, shifted)
    theirs = torchrl_value.td_lambda_return_estimate(gamma, lmbda, *columns(jumps, rewards), **flags)
    close(values + returns.generalized_advantage(rewards, values, jumps, gamma, lmbda, **ends), theirs)
    if lmbda == 1.0:
        old, new = draw(3, 40), draw(3, 40)
        flags = {"done": flags["terminated"], "terminated": flags["terminated"]}  # no truncation in between
        wide = columns(new, old, values, shifted, rewards)
        theirs = torchrl_value.vtrace_advantage_estimate(gamma, *wide, **flags)
        ours = vtrace(rewards, values, shifted, new - old, gamma, done=terminated, terminated=terminated)
        close(ours[0], theirs[0])
        close(ours[1], theirs[1])


def test_steps_that_terminate_are_done():
    """``terminated`` alone used to cut the next value but not the sum."""
    rewards, zero = draw(2, 9), torch.zeros(2, 9, dtype=torch.float64)
    ends = torch.rand(2, 9) < 0.3
    expected = returns.discounted_return(rewards, 0.9, done=ends)
    torch.testing.assert_close(returns.generalized_advantage(rewards, zero, zero, 0.9, 1.0, terminated=ends), expected)
    torch.testing.assert_close(vtrace(rewards, zero, zero, zero, 0.9, terminated=ends)[1], expected)


@each(name=RETURNS)
def test_a_discount_may_be_a_tensor_of_one_number(name):
    """With a dimension or without: it is the same number for all steps, of one row or of several."""
    rewards, done = draw(3, 5), torch.rand(3, 5) < 0.3
    for ends in (None, done):
        expected = RETURNS[name](rewards, 0.9, done=ends)
        for gamma in (torch.tensor(0.9).double(), torch.tensor([0.9]).double(), torch.tensor([[0.9]]).double()):
            torch.testing.assert_close(RETURNS[name](rewards, gamma, done=ends), expected)


def test_values_in_bfloat16_are_rounded_once():
    """0.99 times a value is rounded at the end, not before it is added."""
    rewards, values, after = (draw(2, 5, dtype=torch.float32).bfloat16() + 100 for _ in range(3))
    ours = returns.generalized_advantage(rewards, values, after, 0.99, 0.95)
    expected = returns.generalized_advantage(rewards.double(), values.double(), after.double(), 0.99, 0.95)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), expected, rtol=2**-8, atol=0)
    inputs = (rewards, values, after, draw(2, 5).bfloat16())
    for narrow, wide in zip(vtrace(*inputs, 0.99), vtrace(*(x.double() for x in inputs), 0.99), strict=True):
        torch.testing.assert_close(narrow.double(), wide, rtol=2**-8, atol=0)


@each(name=FUNCTIONS)
def test_rewards_are_finite_and_their_sums_need_not_be(name):
    for number in (float("nan"), float("-inf")):  # infinity times the 0 of an end would be NaN elsewhere
        rewards = draw(2, 3)
        rewards[1, 2] = number
        with pytest.raises(ValueError, match=rf"rewards must be finite numbers, got {number} at index \[1, 2\]"):
            RETURNS[name](rewards, 0.9)
    large = torch.full((2, 3), 3e38)
    assert torch.equal(RETURNS[name](large, 0.0), large)

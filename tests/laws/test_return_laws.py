"""Laws of all discounted sums."""

from __future__ import annotations

import pytest
import torch
from torchrl.objectives.value import functional as torchrl_value

from rltok_rl.functional import returns
from rltok_rl.functional.policy_gradient import vtrace

from ..each import each
from .registry import FUNCTIONS, RETURNS, SHAPE

GAMMAS = [0.0, 0.5, 0.9, 1.0]
LENGTHS = [1, 2, 31, 32, 33, 100]  # one step, and either side of a power of two, at which the scan's reach doubles


def loop(rewards, gamma, done=None):
    """The definition, in float64."""
    out = rewards.double().clone()
    for t in range(rewards.shape[-1] - 2, -1, -1):
        going = 1.0 if done is None else (~done[..., t]).double()
        out[..., t] += gamma * going * out[..., t + 1]
    return out


def draw(*shape, dtype=torch.float64):
    return torch.randn(*(shape or SHAPE), dtype=dtype)


@each(name=RETURNS, gamma=GAMMAS, length=LENGTHS, with_done=[False, True])
def test_equals_the_loop(name, gamma, length, with_done):
    rewards = draw(3, 2, length)
    done = torch.rand(rewards.shape) < 0.15 if with_done else None
    torch.testing.assert_close(RETURNS[name](rewards, gamma, done=done), loop(rewards, gamma, done))


@each(name=RETURNS)
def test_gamma_0_keeps_each_reward_alone(name):
    rewards = draw()
    assert torch.equal(RETURNS[name](rewards, 0.0), rewards)


@each(name=RETURNS)
def test_gamma_1_sums_to_the_end(name):
    rewards = draw()
    torch.testing.assert_close(RETURNS[name](rewards, 1.0), rewards.flip(-1).cumsum(-1).flip(-1))


@each(name=RETURNS, gamma=GAMMAS)
def test_obeys_its_recursion(name, gamma):
    rewards = draw()
    found = RETURNS[name](rewards, gamma)
    torch.testing.assert_close(found[..., :-1], rewards[..., :-1] + gamma * found[..., 1:])


@each(name=RETURNS, gamma=GAMMAS)
def test_is_linear(name, gamma):
    one, two = draw(), draw()
    found = RETURNS[name](2.0 * one - 3.0 * two, gamma)
    torch.testing.assert_close(found, 2.0 * RETURNS[name](one, gamma) - 3.0 * RETURNS[name](two, gamma))


@each(name=RETURNS, gamma=GAMMAS)
def test_is_blind_to_the_past(name, gamma):
    rewards = draw(3, 70)
    changed = rewards.clone()
    changed[:, :40] += 1.0
    torch.testing.assert_close(
        RETURNS[name](changed, gamma)[:, 40:], RETURNS[name](rewards, gamma)[:, 40:], rtol=1e-12, atol=1e-12
    )


@each(name=RETURNS, gamma=GAMMAS)
def test_rows_are_independent(name, gamma):
    rewards = draw()
    alone = torch.cat([RETURNS[name](row[None], gamma) for row in rewards])
    torch.testing.assert_close(RETURNS[name](rewards, gamma), alone)


@each(name=RETURNS, gamma=GAMMAS)
def test_episodes_in_a_row_are_episodes_apart(name, gamma):
    lengths = [5, 1, 40, 13]
    episodes = [draw(2, n) for n in lengths]
    done = torch.zeros(2, sum(lengths), dtype=torch.bool)
    done[:, torch.tensor(lengths).cumsum(0) - 1] = True
    together = RETURNS[name](torch.cat(episodes, 1), gamma, done=done)
    torch.testing.assert_close(together, torch.cat([RETURNS[name](e, gamma) for e in episodes], 1))


@each(name=RETURNS, gamma=GAMMAS)
def test_a_mask_is_a_shorter_sequence(name, gamma):
    """What stands in the padding does not matter, not even NaN, to values and to gradients."""
    rewards = draw(3, 50)
    lengths = torch.tensor([50, 33, 1])
    mask = torch.arange(50) < lengths[:, None]
    padded = rewards.masked_fill(~mask, float("nan")).requires_grad_()
    found = RETURNS[name](padded, gamma, mask=mask)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(found[row, :length], RETURNS[name](rewards[row : row + 1, :length], gamma)[0])
        assert (found[row, length:] == 0).all()
    found.sum().backward()
    assert padded.grad.isfinite().all() and (padded.grad[~mask] == 0).all()


@each(name=RETURNS, gamma=GAMMAS)
def test_a_constant_reward_in_closed_form(name, gamma):
    """1 + gamma + ... + gamma^(n - 1) with n steps to go."""
    to_go = torch.arange(77, 0, -1, dtype=torch.float64)
    expected = to_go if gamma == 1 else (1 - gamma**to_go) / (1 - gamma)
    torch.testing.assert_close(RETURNS[name](torch.ones(1, 77, dtype=torch.float64), gamma)[0], expected)


@each(name=RETURNS, with_done=[False, True])
def test_gradients_are_finite_differences(name, with_done):
    rewards = draw(2, 37).requires_grad_()
    done = torch.rand(2, 37) < 0.2 if with_done else None
    assert torch.autograd.gradcheck(lambda r: RETURNS[name](r, 0.9, done=done), rewards)


@each(name=RETURNS, dtype=[torch.float64, torch.float32, torch.bfloat16])
def test_precision(name, dtype):
    """Errors relative to the largest return; the dtype that goes in comes out."""
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    rewards = draw(4, 1000, dtype=torch.float32).to(dtype)
    found = RETURNS[name](rewards, 0.99)
    expected = loop(rewards, 0.99)
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max()


@each(name=FUNCTIONS, with_done=[False, True])  # estimators are built before a graph, not inside it
def test_compiles_in_one_graph(name, with_done):
    rewards = draw(2, 50)
    done = torch.rand(2, 50) < 0.2 if with_done else None

    def call(r):
        return RETURNS[name](r, 0.9, done=done)

    torch._dynamo.reset()  # otherwise the graphs of other cases count as recompilations of this one
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(rewards), call(rewards))


@each(name=RETURNS, gamma=GAMMAS, with_done=[False, True])
def test_agrees_with_torchrl(name, gamma, with_done):
    """On shared ground: an episode ends for good where it ends, and the last step is such an end."""
    rewards = draw(3, 40)
    done = torch.rand(3, 40) < 0.1 if with_done else torch.zeros(3, 40, dtype=torch.bool)
    done[:, -1] = True
    ours = RETURNS[name](rewards, gamma, done=done).unsqueeze(-1)
    r, d = rewards.unsqueeze(-1), done.unsqueeze(-1)
    zero = torch.zeros_like(r)
    options = {"done": d, "terminated": d}
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
    rewards, values, following = draw(3, 40), draw(3, 40), draw(3, 40)
    done = torch.rand(3, 40) < 0.15
    terminated = done & (torch.rand(3, 40) < 0.5)
    ends = {"done": done, "terminated": terminated}
    wide = [x.unsqueeze(-1) for x in (values, following, rewards)]
    flags = {name: x.unsqueeze(-1) for name, x in ends.items()}
    advantage, target = torchrl_value.generalized_advantage_estimate(gamma, lmbda, *wide, **flags)
    ours = returns.generalized_advantage(rewards, values, following, gamma, lmbda, **ends)
    close = {"rtol": 1e-5, "atol": 1e-6}  # TorchRL rounds gamma to float32 on the way
    torch.testing.assert_close(ours.unsqueeze(-1), advantage, **close)
    torch.testing.assert_close(
        returns.td_lambda_return(rewards, values, following, gamma, lmbda, **ends).unsqueeze(-1), target, **close
    )
    if lmbda < 1.0:
        return
    # TorchRL's V-trace takes the value after a step from the next step: consistent values, no truncation in between.
    following = torch.cat((values[:, 1:], following[:, -1:]), 1)
    old, new = draw(3, 40), draw(3, 40)
    ends = {"done": terminated, "terminated": terminated}
    flags = {name: x.unsqueeze(-1) for name, x in ends.items()}
    theirs = torchrl_value.vtrace_advantage_estimate(
        gamma, new.unsqueeze(-1), old.unsqueeze(-1), *[x.unsqueeze(-1) for x in (values, following, rewards)], **flags
    )
    ours = vtrace(rewards, values, following, new - old, gamma, **ends)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.unsqueeze(-1), other, **close)


@each(name=RETURNS, gamma=GAMMAS)
def test_under_autocast_nothing_is_rounded(name, gamma):
    """Mixed precision rounds matrix products to bfloat16; a return is none."""
    rewards = draw(4, 300, dtype=torch.float32)
    expected = RETURNS[name](rewards, gamma)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(RETURNS[name](rewards, gamma), expected)


@each(name=FUNCTIONS, with_done=[False, True])
def test_gamma_may_be_a_tensor(name, with_done):
    """As the buffers of TorchRL's estimators are: the same sums, in one graph, with a derivative."""
    rewards = draw(3, 40)
    done = torch.rand(3, 40) < 0.2 if with_done else None
    gamma = torch.tensor(0.9, dtype=torch.float64)
    expected = RETURNS[name](rewards, 0.9, done=done)
    torch.testing.assert_close(RETURNS[name](rewards, gamma, done=done), expected)
    torch._dynamo.reset()
    compiled = torch.compile(lambda r, g: RETURNS[name](r, g, done=done), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(rewards, gamma), expected)
    assert torch.autograd.gradcheck(lambda g: RETURNS[name](rewards, g, done=done), gamma.requires_grad_())
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 1.5"):
        RETURNS[name](rewards, torch.tensor(1.5))
    with pytest.raises(ValueError, match=r"gamma must be one number, got a tensor of shape \[2\]"):
        RETURNS[name](rewards, torch.ones(2))


@each(lmbda=[0.0, 0.7, 1.0])
def test_lambda_returns_agree_with_torchrl(lmbda):
    """Where the value after a step is the value before the next, which is what the equation says."""
    rewards, values = draw(3, 40), draw(3, 40)
    done = torch.rand(3, 40) < 0.15
    terminated = done & (torch.rand(3, 40) < 0.5)
    following = torch.where(done, draw(3, 40), torch.cat((values[:, 1:], draw(3, 1)), 1))
    ends = {"done": done, "terminated": terminated}
    wide = {name: flags.unsqueeze(-1) for name, flags in ends.items()}
    theirs = torchrl_value.td_lambda_return_estimate(0.9, lmbda, following.unsqueeze(-1), rewards.unsqueeze(-1), **wide)
    ours = returns.td_lambda_return(rewards, values, following, 0.9, lmbda, **ends)
    torch.testing.assert_close(ours.unsqueeze(-1), theirs, rtol=1e-5, atol=1e-6)


def test_what_terminates_is_done():
    """Given alone, ``terminated`` used to cut the value of what follows but not the sum."""
    rewards, zero = draw(2, 9), torch.zeros(2, 9, dtype=torch.float64)
    ends = torch.rand(2, 9) < 0.3
    alone = {"terminated": ends}
    expected = returns.discounted_return(rewards, 0.9, done=ends)
    torch.testing.assert_close(returns.generalized_advantage(rewards, zero, zero, 0.9, 1.0, **alone), expected)
    torch.testing.assert_close(vtrace(rewards, zero, zero, zero, 0.9, **alone)[1], expected)


def test_critics_in_bfloat16_do_not_round_what_gamma_makes_of_them():
    """0.99 times a value is rounded once, at the end, not before it is added."""
    rewards, values, following = (draw(2, 5, dtype=torch.float32).bfloat16() + 100 for _ in range(3))
    found = returns.generalized_advantage(rewards, values, following, 0.99, 0.95)
    expected = returns.generalized_advantage(rewards.double(), values.double(), following.double(), 0.99, 0.95)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=0)


@each(name=FUNCTIONS)
def test_bad_input_is_refused(name):
    rewards = draw(2, 3)
    nan, infinite = rewards.clone(), rewards.clone()
    nan[1, 2], infinite[1, 2] = float("nan"), float("-inf")  # infinity times the 0 of an end would be NaN elsewhere
    for options, error, message in (
        ({"rewards": nan}, ValueError, r"rewards must be finite numbers, got nan at index \[1, 2\]"),
        ({"rewards": infinite}, ValueError, r"rewards must be finite numbers, got -inf at index \[1, 2\]"),
        ({"rewards": torch.ones(2, 3).long()}, TypeError, "rewards must be a floating-point tensor"),
        ({"mask": rewards[0] > 0}, ValueError, r"mask must have the shape of rewards, \[2, 3\], got \[3\]"),
        ({"mask": torch.ones(2, 3)}, TypeError, "mask must be bool"),
        ({"done": rewards[..., None] > 0}, ValueError, r"done must have the shape of .*, \[2, 3\], got \[2, 3, 1\]"),
        ({"done": torch.zeros(2, 3)}, TypeError, "done must be bool"),
        *(({"gamma": g}, ValueError, r"gamma must lie in \[0, 1\], got") for g in (-0.1, 1.01, float("nan"))),
    ):
        with pytest.raises(error, match=message):
            RETURNS[name](**{"rewards": rewards, "gamma": 0.9, **options})

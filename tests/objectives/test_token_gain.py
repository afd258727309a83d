"""Token gains: what a text loses without every m-th boundary, against reading it again and against enumeration."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv
from torch import Tensor

from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.diagnostics.exact import exact_head_gradient
from rltok_rl.diagnostics.gradient_quality import policy_gradient
from rltok_rl.models.flops import trial_flops
from rltok_rl.objectives import TokenGain, make_estimator

from ..each import each
from ..states import seeded
from .conftest import TEXT, make_model, make_rollout, reader


def chosen(drawn: Tensor, apart: int, place: int) -> Tensor:
    return drawn & (drawn.cumsum(-1) % apart == place)


@each(case=[(1, 0), (2, 0), (2, 1), (3, 1), (100, 2), (100, 3)], price=[0.0, 0.3])
def test_an_advantage_is_what_its_text_loses_without_the_boundary(case, price):
    """Without lags no other decision changes: rewards are summed up to the next boundary that is left out."""
    (apart, place), model = case, make_model(num_lags=0)
    rollout = make_rollout(model, num_rows=3, num_steps=15).detach()
    gains = TokenGain(model, gamma=0.9, apart=apart, price=price)
    gains._choose = lambda drawn: chosen(drawn, apart, place)
    drawn, earned = rollout["action"].bool() | rollout["forced"], reader(model, rollout, price)
    left_out = chosen(drawn, apart, place) & ~rollout["forced"]
    assert left_out.any()
    lost = earned(drawn) - earned(drawn & ~left_out)
    expected = torch.zeros(3, 15)
    for row, t in left_out.nonzero().tolist():
        total = 0.0
        for s in range(t, 15):
            if s > t and left_out[row, s]:
                break
            total += 0.9 ** (s - t) * float(lost[row, s])
        expected[row, t] = apart * total
    torch.testing.assert_close(gains(rollout)["advantage"].squeeze(-1), expected, rtol=1e-4, atol=1e-5)


def test_the_expected_gradient_is_exact_without_lags():
    """Over all strings and all tokens that may be left out, one at a time, with gamma 1."""
    model, text = make_model(num_lags=0).double(), "to be, o"
    rollouts = enumerate_rollouts(model, text)[0]
    gains, total = TokenGain(model, gamma=1.0, apart=100), torch.zeros(rollouts.shape, dtype=torch.float64)
    for place in range(2, 9):
        gains._choose = lambda drawn, place=place: chosen(drawn, 100, place)
        total += gains(rollouts.detach().clone())["advantage"].squeeze(-1) / 100
    weight = rollouts["log_weight"].exp() * len(rollouts)
    found = policy_gradient(model, rollouts, total * weight)
    torch.testing.assert_close(found, exact_head_gradient(model, text))


def test_the_expected_gradient_is_exact_with_lags_on_average():
    """Later decisions are redrawn by the policy: the mean over draws is within four standard errors."""
    model, text = make_model(num_lags=3).double(), "to be"
    rollouts, generator = enumerate_rollouts(model, text)[0], seeded(5)
    weight = rollouts["log_weight"].exp() * len(rollouts)
    gains, found = TokenGain(model, gamma=1.0, apart=100, generator=generator), []
    for _ in range(200):
        total = torch.zeros(rollouts.shape, dtype=torch.float64)
        for place in range(2, 6):
            gains._choose = lambda drawn, place=place: chosen(drawn, 100, place)
            total += gains(rollouts.detach().clone())["advantage"].squeeze(-1) / 100
        found.append(policy_gradient(model, rollouts, total * weight))
    draws, exact = torch.stack(found), exact_head_gradient(model, text)
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - exact).abs() <= 4 * error + 1e-12).all()
    assert float(error.norm()) < 0.1 * float(exact.norm())


def test_every_token_is_left_out_equally_often():
    gains, drawn = TokenGain(make_model(), gamma=0.9, apart=3, generator=seeded(1)), torch.rand(2, 12) < 0.6
    counts = sum(gains._choose(drawn).double() for _ in range(2000)) / 2000
    assert ((counts - drawn / 3).abs() < 0.045).all()  # four standard errors


def test_some_rows_stand_for_all_and_flops_are_theirs():
    model = make_model(num_lags=0)
    rollout = make_rollout(model, num_rows=6, num_steps=15).detach()
    gains = TokenGain(model, gamma=0.9, apart=2, every=3, generator=seeded(1))
    whole = TokenGain(model, gamma=0.9, apart=2)
    gains._choose = whole._choose = lambda drawn: chosen(drawn, 2, 0)
    some, all_rows = (estimator(rollout.clone())["advantage"].squeeze(-1) for estimator in (gains, whole))
    rows = (some != 0).any(-1).nonzero().flatten()
    assert torch.equal(rows // 3, torch.arange(2))
    torch.testing.assert_close(some[rows], 3 * all_rows[rows], rtol=1e-4, atol=1e-5)
    assert gains.flops(10, 6) == trial_flops(model, 10, 6) / 3
    with pytest.raises(ValueError, match="apart must be an integer of at least 1, got 0"):
        TokenGain(model, gamma=0.9, apart=0)
    with pytest.raises(ValueError, match="baseline must be 'none'"):
        TokenGain(model, gamma=0.9, baseline="batch_mean")
    TokenGain(model, gamma=0.9, baseline="batch_mean", settled=0.1)  # which takes over once the policy is settled


def test_returns_take_over_once_the_policy_is_settled():
    model = make_model()
    rollout = make_rollout(model).detach()
    gains = TokenGain(model, gamma=0.9, baseline="leave_one_out", settled=10.0, generator=seeded(1))
    always = TokenGain(model, gamma=0.9, generator=seeded(1))
    returns = make_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")
    for expected, trials in ((always, True), (returns, False)):  # the entropy is infinite before the first batch
        found = gains(rollout.clone())["advantage"]
        assert torch.equal(found, expected(rollout.clone())["advantage"]) and gains.ran_trials is trials
    other = TokenGain(model, gamma=0.9, baseline="leave_one_out", settled=10.0)
    other.load_state_dict(gains.state_dict())
    assert other.entropy == gains.entropy < 10.0


@each(layout=["padded", "packed"], rows=[1, 2, 4])
def test_passes_of_some_rows_are_one_pass_of_all(layout, rows):
    """With target rates of the texts, in float64, where only the width of padding differs."""
    model = make_model(rate_embedding=True).double()
    env = ByteBoundaryEnv(model, TEXT * 3, num_steps=23, batch_size=(4,), seed=1, target_rates=(0.1, 0.6))
    rollout = env.parallel_rollout(generator=seeded(2)).detach()
    whole, parts = (
        TokenGain(model, gamma=0.9, generator=seeded(5), **options)(rollout.clone())["advantage"]
        for options in ({}, {"layout": layout, "rows_per_pass": rows})
    )
    assert (whole != 0).any()
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-11)


def test_a_subclass_may_use_a_baseline():
    class Mine(TokenGain):
        uses_baseline = True

    assert Mine(make_model(), gamma=0.9, baseline="batch_mean").uses_baseline

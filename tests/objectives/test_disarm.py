"""DisARM: gains over an antithetic row, against enumeration and against reading the row again."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.diagnostics.exact import exact_head_gradient
from rltok_rl.diagnostics.gradient_quality import policy_gradient
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.flops import trial_flops
from rltok_rl.objectives import DisARM, make_estimator

from ..each import each
from ..states import seeded
from .conftest import (
    chance_of_pairs,
    give_second_rows,
    make_model,
    make_rollout,
    pairs_of_strings,
    reader,
    second_rows,
)


@each(lags=[0, 3])
def test_the_expected_gradient_is_exact_without_lags(lags):
    """Summed over all pairs of strings that u and 1 - u draw together, with gamma 1; with lags there is a bias."""
    model, text = make_model(num_lags=lags).double(), "to be"
    rows, others = pairs_of_strings(model, text)
    both = (rows["logits"].sigmoid() + others["logits"].sigmoid() - 1).clamp(min=0)
    weight = chance_of_pairs(rows, others, both)
    estimator = DisARM(model, gamma=1.0)
    give_second_rows(estimator, others)
    advantages = estimator(rows.copy())["advantage"].squeeze(-1)
    found = policy_gradient(model, rows, advantages * weight * len(rows))
    exact = exact_head_gradient(model, text)
    if lags:
        assert not torch.allclose(found, exact, rtol=1e-2)
    else:
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-10)


@each(price=[0.0, 0.3])
def test_an_advantage_is_what_a_row_gains_over_its_second_one(price):
    """The likelier decision counts e^|l| / 2 times, the other half, where the two differ; the rest not at all."""
    model = make_model()
    rollout = make_rollout(model, num_rows=16, num_steps=24).detach()
    estimator = DisARM(model, gamma=0.9, price=price, generator=seeded(3))
    seen = second_rows(estimator)
    advantages = estimator(rollout.clone())["advantage"].squeeze(-1)
    drawn, forced, logits = rollout["action"].bool() | rollout["forced"], rollout["forced"], rollout["logits"]
    others, earned = seen[0], reader(model, rollout, price)
    gained = discounted_return(earned(drawn) - earned(others), 0.9)
    weight = torch.where(drawn == (logits > 0), logits.abs().exp(), 1.0) / 2
    expected = (weight * gained).masked_fill(forced | (drawn == others), 0.0)
    assert 0.2 < ((drawn != others) & ~forced).float().mean() < 0.8
    torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-4)


def test_second_rows_draw_with_one_minus_u():
    """Without lags, rare boundaries are never in both rows, and each row has them as often as the policy."""
    model = make_model(num_lags=0)
    rollout = make_rollout(model, num_rows=256, num_steps=16).detach()
    estimator = DisARM(model, gamma=0.9, generator=seeded(3))
    seen = second_rows(estimator)
    estimator(rollout.clone())
    drawn, free, probs = rollout["action"].bool(), ~rollout["forced"], rollout["logits"].sigmoid()
    assert not (drawn & seen[0] & (probs < 0.5) & free).any() and (drawn | seen[0])[(probs > 0.5) & free].all()
    assert float((seen[0].float() - probs)[free].mean()) == pytest.approx(0, abs=0.03)


def test_advantages_survive_certain_decisions():
    model = make_model(boundary_cap=None)
    rollout = make_rollout(model, num_rows=4).detach()
    certain = rollout.clone().set("logits", torch.where(rollout["action"].bool(), 200.0, -200.0))
    estimator = DisARM(model, gamma=0.9)
    estimator._uniforms = torch.zeros_like  # 1 - u rounds to 1
    assert all(estimator(each)["advantage"].isfinite().all() for each in (rollout.clone(), certain))


def test_settled_policies_get_returns_and_few_rows_cost_less():
    model = make_model()
    rollout = make_rollout(model).detach()
    estimator = make_estimator(
        "disarm", gamma=0.9, model=model, baseline="leave_one_out", settled=10.0, every=4, generator=seeded(1)
    )
    estimator(rollout.clone())  # the batch before decides
    returns = make_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")
    assert torch.equal(estimator(rollout.clone())["advantage"], returns(rollout.clone())["advantage"])
    assert estimator.flops(10, 6) == trial_flops(model, 10, 6) / 4
    with pytest.raises(ValueError, match="baseline must be 'none'"):
        DisARM(model, gamma=0.9, baseline="batch_mean")

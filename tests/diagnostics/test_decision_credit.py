"""Advantages of single decisions against their counterfactual truth, which enumeration confirms."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.data import TextSource
from rltok_rl.diagnostics.decision_credit import credit_rows, measure_credit
from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.diagnostics.estimator_report import Candidate
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.flops import update_flops
from rltok_rl.objectives import ReturnEstimator, make_estimator
from rltok_rl.objectives.flips import LocalFlips

from ..each import each
from .conftest import opinionated

TEXT = "to be or"
OTHERS = TextSource("not to be, that is the question: whether 'tis nobler")


def returns(name: str, baseline: str = "none", *, gamma: float = 0.9, rows: int = 1, **options) -> Candidate:
    estimator = make_estimator("discounted_return", gamma=gamma, baseline=baseline, **options)
    return Candidate(name, estimator, rows_per_text=rows)


@each(begin_of_text=[False, True], price=[0.0, 0.7])
def test_the_truth_is_that_of_enumeration(begin_of_text, price):
    """Q(1) - Q(0), averaged over the policy's decisions before. Seven comparisons within 4.5 standard errors."""
    model = opinionated(begin_of_text=begin_of_text, num_special=1).train()
    table = enumerate_rollouts(model, TEXT, price=price)[0]
    actions, log_probs = table["action"], table["action_log_prob"].double()
    gained = discounted_return(table["next", "reward"].squeeze(-1), 0.9).double()  # [n, T]
    options = {"gamma": 0.9, "price": price, "num_draws": 100, "num_rows": 2}
    credit = measure_credit(model, TEXT, OTHERS, [returns("early")], **options)
    assert torch.allclose(credit.differences("early"), credit.worth, atol=1e-4), "estimates pay the same price"
    assert credit.worth.shape == (100, actions.shape[1] - 1)
    for t in range(1, actions.shape[1]):
        before, after = log_probs[:, :t].sum(1).exp(), log_probs[:, t + 1 :].sum(1).exp()
        sign = 2.0 * actions[:, t] - 1  # each string belongs to one prefix and one side
        expected = (before * sign * after * gained[:, t]).sum()
        error = credit.worth[:, t - 1].std() / 100**0.5
        assert abs(credit.worth[:, t - 1].mean() - expected) <= 4.5 * error + 1e-4
        chance = (before * after * log_probs[:, t].exp() * actions[:, t]).sum()
        assert credit.probs[:, t - 1].mean().item() == pytest.approx(chance.item(), abs=0.15)


class Planted(ReturnEstimator):
    """Likes boundaries: a bias of half a nat."""

    uses_baseline = True

    def _advantages(self, returns, view):
        return super()._advantages(returns, view) + 0.5 * view.read("action")


def test_bias_is_found_where_it_was_planted_and_nowhere_else(model):
    model.train()
    candidates = [
        returns("none"),
        returns("leave_one_out", "leave_one_out"),
        returns("group_mean", "group_mean", rows=4, group_size=4),
        Candidate("running_mean", make_estimator("discounted_return", gamma=0.9, baseline="running_mean", num_steps=7)),
        Candidate("flips", LocalFlips(model, gamma=0.9, num_flips=1, span=7), extra_rows=1),
        returns("batch_mean", "batch_mean"),
        returns("short", gamma=0.3),
        Candidate("planted", Planted(gamma=0.9, baseline="leave_one_out")),
    ]
    options = {"gamma": 0.9, "num_draws": 40, "num_rows": 8}
    credit = measure_credit(model, TEXT, OTHERS, candidates, **options)
    rows = {row.name: row for row in credit_rows(credit, model, candidates, num_rows=8)}
    for name in ("none", "leave_one_out", "group_mean", "running_mean"):  # noise is common to both sides
        assert rows[name].bias < 1e-4, name
    flips = rows["flips"]
    wrong = credit.differences("flips") - credit.worth
    assert (wrong.mean(0).abs() <= 4.5 * wrong.std(0) / 40**0.5).all() and flips.bias < 0.3 * flips.deviation
    truth = credit.worth.mean(0)
    assert rows["batch_mean"].bias == pytest.approx(float(truth.square().mean().sqrt()) / 8, rel=0.2)
    assert rows["short"].bias > 5 * rows["short"].bias_error > 0
    planted = rows["planted"]
    assert planted.bias == pytest.approx(0.5, abs=1e-3) and planted.bias_error < 1e-3
    assert planted.rmse == pytest.approx((planted.bias**2 + planted.deviation**2) ** 0.5)
    for row in (planted, rows["short"]):  # two standard errors of the square
        assert row.bias_limit == pytest.approx((row.bias**2 + 4 * row.bias * row.bias_error) ** 0.5)
    assert rows["group_mean"].correlation > rows["none"].correlation
    rate = (1 + float(credit.probs.mean(0).sum())) / 7
    flops = candidates[4].flops(model, 8, 7, rate) / update_flops(model, 56, 56 * rate)
    assert flips.cost == pytest.approx(flops) and flops > rows["none"].cost == 1.0


def test_critics_learn_from_other_texts_before_and_after_each_draw(model):
    learned = []
    one = Candidate("learns", ReturnEstimator(gamma=0.9), learn=learned.append)
    options = {"gamma": 0.9, "num_draws": 3, "num_rows": 3, "warm_up": 2, "price": 0.5}
    measure_credit(model, TEXT, OTHERS, [one], **options)
    assert [len(rollout) for rollout in learned] == [2] * 5
    for rollout in learned:
        after = rollout["next"]
        gained = after["final_log_prob"] - after["early_log_prob"] - 0.5 * rollout["action"].unsqueeze(-1)
        torch.testing.assert_close(after["reward"], gained)


def test_wrong_requests_are_refused(model):
    for options, message in (
        ({"num_draws": 2}, "num_draws must be an integer of at least 3, got 2"),
        ({"num_rows": 1}, r"num_rows must be a multiple of \[1\], the candidates' rows per text, and larger, got 1"),
        ({"text": "to"}, "text must have a free decision, which takes 3 bytes, got 2"),
    ):
        options = {"text": TEXT, "num_draws": 3, **options}
        with pytest.raises(ValueError, match=message):
            measure_credit(model, options.pop("text"), OTHERS, [returns("none")], gamma=0.9, **options)

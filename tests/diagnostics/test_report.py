"""Reports, against what is known: exact gradients, planted biases, planted noise."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from tensordict import TensorDict

from rltok_rl.data import TextSource
from rltok_rl.diagnostics.estimator_report import Candidate, collect_gradients, estimator_report, train_candidates
from rltok_rl.diagnostics.exact import EnumeratedRollouts, TextRollouts, exact_head_gradient
from rltok_rl.diagnostics.gradient_quality import policy_gradient, signal_to_noise
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models.flops import forward_flops, update_flops
from rltok_rl.objectives import ReturnEstimator
from rltok_rl.objectives.flips import LocalFlips

from ..each import each
from .conftest import opinionated

TEXTS = ["to be, o", "question", "whether "]
PLAY = "to be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows of "


def scaled(factor):
    """Leave-one-out advantages times a factor: a known bias."""
    plain = ReturnEstimator(gamma=1.0, baseline="leave_one_out")

    def estimate(rollout):
        out = plain(rollout)
        return out.set("advantage", factor * out["advantage"])

    return estimate


def turned(rollout):
    """Advantages of -1: a gradient that has nothing to do with the reward."""
    return rollout.set("advantage", -torch.ones_like(rollout["next", "reward"]))


@pytest.fixture(scope="module")
def enumerated():
    torch.manual_seed(0)
    model = opinionated().double()
    return model, exact_head_gradient(model, TEXTS)


def report(model, exact, candidates, num_batches=600, num_rows=8):
    draw = EnumeratedRollouts(model, TEXTS, num_rows=num_rows, seed=3)
    rows = estimator_report(
        model, draw, candidates, num_batches=num_batches, num_rows=num_rows, num_steps=7, rate=0.4, reference=exact
    )
    return {row.name: row for row in rows}


def test_a_report_finds_planted_biases(enumerated):
    """Unbiased: cosine 1, length 1. The batch mean of 8 rows... of 3 texts: measured apart. A factor: its length."""
    model, exact = enumerated
    siblings = partial(ReturnEstimator, gamma=1.0, baseline="group_mean", group_size=4)
    members = [
        Candidate("loo", scaled(1.0)),
        Candidate("double", scaled(2.0)),
        Candidate("siblings", siblings(), rows_per_text=4),
        Candidate("siblings, biased", siblings(exclude_self=False), rows_per_text=4),
        Candidate("turned", turned),
    ]
    found = report(model, exact, members)
    for name in ("loo", "siblings"):
        seen = found[name].comparison
        assert seen.cosine == pytest.approx(1.0, abs=0.05) and seen.scale == pytest.approx(1.0, abs=0.08)
        assert abs(seen.cosine - 1) < 4.5 * seen.cosine_error and abs(seen.scale - 1) < 4.5 * seen.scale_error
        assert seen.bias < 0.25 and seen.bias <= seen.bias_limit < 0.5
    double, plain = found["double"].comparison, found["loo"].comparison
    assert double.scale == pytest.approx(2 * plain.scale) and double.bias > 0.85
    assert found["double"].ratio == pytest.approx(found["loo"].ratio)
    assert found["double"].variance == pytest.approx(4 * found["loo"].variance)
    centred, without = (found[n].comparison for n in ("siblings, biased", "siblings"))
    assert centred.scale == pytest.approx(0.75 * without.scale)
    # Its expected gradient is that of E[log pi] = 0: there is no signal to compare.
    cosine = found["turned"].comparison.cosine
    assert math.isnan(cosine) or abs(cosine) < 0.5
    flat = found["loo"].to_dict()
    assert flat["cosine"] == plain.cosine and "comparison" not in flat


def test_what_an_estimator_runs_is_charged(enumerated):
    """Rows of its own and passes of its critic, by hand; signal at equal cost is divided by them."""
    model, exact = enumerated
    plain = ReturnEstimator(gamma=1.0, baseline="leave_one_out")
    members = [
        Candidate("free", plain),
        Candidate("rows", plain, extra_rows=2),
        Candidate("critic", plain, flops_per_byte=1e5),
    ]
    found = report(model, exact, members, num_batches=20)
    num_bytes, tokens = 8 * 7, 0.4 * 8 * 7
    update = update_flops(model, num_bytes, tokens)
    again = forward_flops(model, num_bytes, tokens, without=("encoder", "early_head"))
    assert found["free"].cost == 1.0 and found["free"].per_cost == found["free"].ratio
    assert found["rows"].cost == pytest.approx(1 + 2 * again / update)
    assert found["critic"].cost == pytest.approx(1 + 1e5 * num_bytes / update)
    for row in found.values():
        assert row.ratio == found["free"].ratio and row.per_cost == pytest.approx(row.ratio / row.cost)
        assert row.per_petaflop == pytest.approx(row.ratio / (row.cost * update) * 1e15)
    draw = EnumeratedRollouts(model, TEXTS, num_rows=8, seed=3)
    measured = signal_to_noise(collect_gradients(model, draw, members[:1], 20)["free"])
    again = report(model, measured, members[:1], num_batches=20)["free"]  # the same batches
    assert again.variance == pytest.approx(measured.noise / measured.signal)
    lost = replace(again, comparison=replace(again.comparison, cosine=math.nan))
    assert lost.to_dict()["cosine"] is None


@pytest.mark.parametrize("every", [1, 2])
def test_flips_are_unbiased_where_they_promise_to_be(enumerated, every):
    """One flip per text, to the end, gamma 1: the exact gradient. 4.5 standard errors in every direction looked at."""
    model, exact = enumerated
    flips = LocalFlips(model, gamma=1.0, num_flips=1, span=7, every=every, generator=torch.Generator().manual_seed(5))
    draw = EnumeratedRollouts(model, TEXTS, num_rows=64, seed=3)
    found = collect_gradients(model, draw, [Candidate("flips", flips)], 400)["flips"]
    directions = torch.cat((exact[:, None], torch.randn(len(exact), 12, dtype=torch.float64)), 1)
    errors = (found.mean(0) - exact) @ directions
    deviation = (found @ directions).std(0) / 400**0.5
    assert (errors.abs() < 4.5 * deviation).all(), errors / deviation
    assert signal_to_noise(found).ratio > 0.5 / every  # the test could see a gradient that is off by half


@each(span=[1, 3, 9])
def test_a_flip_is_judged_by_its_span_alone(span, monkeypatch):
    """Without lags nothing else changes when one decision does: the flipped row can be made by hand."""
    model = opinionated(num_lags=0)
    rollout = TextRollouts(model, TextSource(PLAY), num_rows=2, num_steps=12, seed=0)(1)
    flips = LocalFlips(model, gamma=0.9, num_flips=1, span=span, price=0.3)
    picked = torch.tensor([[[4]], [[7]]])
    monkeypatch.setattr(flips, "_choose", lambda weights: (picked, torch.full_like(picked, 0.5, dtype=torch.float32)))
    out = flips(rollout.copy())["advantage"].squeeze(-1)
    byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
    for row, t in ((0, 4), (1, 7)):
        boundaries = rollout["action"][row].bool()
        boundaries[0] = True
        other = boundaries.clone()
        other[t] = ~other[t]
        strings = torch.stack((boundaries, other))
        with torch.no_grad():
            logits = model(byte_ids[row, :-1].expand(2, -1), strings).final_logits
        gained = byte_log_prob(logits, byte_ids[row, 1:].expand(2, -1)) - 0.3 * strings
        lost = (gained[0] - gained[1])[t : t + span]
        p = rollout["logits"][row, t].sigmoid()
        expected = (p if boundaries[t] else 1 - p) / 0.5 * (lost * 0.9 ** torch.arange(len(lost))).sum()
        torch.testing.assert_close(out[row, t], expected, rtol=1e-3, atol=1e-5)
        assert (out[row].nonzero().flatten() == t).all()


def test_flips_leave_forced_decisions_and_the_rollout_alone(model):
    draw = TextRollouts(model, TextSource(PLAY), num_rows=4, num_steps=20, seed=0)
    rollout = draw(1)
    before = rollout.clone()
    out = LocalFlips(model, gamma=0.9, num_flips=2, span=6)(rollout.copy())
    assert (rollout == before).all()
    assert (out["advantage"][:, 0] == 0).all() and out["advantage"].isfinite().all()
    tried = (out["advantage"] != 0).sum(1).flatten()
    assert (tried >= 4).all() and (tried <= 8).all()  # four blocks, two rows each, the same decision at worst
    with pytest.raises(ValueError, match="every row must be one text from its first byte on; the positions of row 0"):
        LocalFlips(model, gamma=0.9)(rollout[:, 3:])
    for option, value in (("span", 0), ("num_flips", 1.5)):
        with pytest.raises(ValueError, match=f"{option} must be an integer of at least 1, got {value}"):
            LocalFlips(model, gamma=0.9, **{option: value})
    with torch.no_grad():
        model.boundary_head.projection.weight.mul_(1e4)  # decided policies have nothing to flip
    assert LocalFlips(model.eval(), gamma=0.9)(draw(1))["advantage"].isfinite().all()


def rollout_of_zeros() -> TensorDict:
    following = {"final_log_prob": torch.zeros(2, 3, 1), "early_log_prob": -torch.ones(2, 3, 1)}
    return TensorDict({"next": TensorDict(following, [2, 3])}, [2, 3])


def test_what_learns_judges_before_it_learns():
    """A baseline that has seen the batch it judges would be biased."""
    seen = []

    def estimate(rollout):
        seen.append("judged")
        return rollout.set("advantage", torch.zeros_like(rollout["next", "reward"]))

    one = Candidate("learns", estimate, learn=lambda rollout: seen.append("learned"))
    one.advantages(rollout_of_zeros())
    assert seen == ["judged", "learned"]


def test_what_remembers_is_warmed_up(enumerated):
    """It used to begin cold where it had no ``learn``: by hand, and without a word of it."""
    model, _ = enumerated
    made = ReturnEstimator(gamma=1.0, baseline="running_mean", num_steps=7)
    plain = ReturnEstimator(gamma=1.0, baseline="leave_one_out")
    drawn = []

    def draw(rows):
        drawn.append(rows)
        return EnumeratedRollouts(model, TEXTS, num_rows=8, seed=len(drawn))(rows)

    members = [
        Candidate("mean", made),
        Candidate("plain", plain, rows_per_text=2),
        Candidate("function", turned, rows_per_text=4),
    ]
    found = collect_gradients(model, draw, members, 1, warm_up=3)
    assert drawn == [1, 4] * 3 + [1, 2, 4]  # and what has no memory is spared
    again = ReturnEstimator(gamma=1.0, baseline="running_mean", num_steps=7)
    for number, _ in enumerate(rows for rows in drawn if rows == 1):
        rollout = EnumeratedRollouts(model, TEXTS, num_rows=8, seed=[1, 3, 5, 7][number])(1)
        advantages = Candidate("mean", again).advantages(rollout)
    torch.testing.assert_close(found["mean"][0], policy_gradient(model, rollout, advantages))
    torch.testing.assert_close(made.baseline.total, again.baseline.total)


def test_trained_candidates_learn_no_more(enumerated):
    model, _ = enumerated
    made = ReturnEstimator(gamma=1.0, baseline="running_mean", num_steps=7)
    learned: list[int] = []
    members = [
        Candidate("mean", made),
        Candidate("critic", turned, learn=lambda _: learned.append(1)),
        Candidate("plain", ReturnEstimator(gamma=1.0, baseline="leave_one_out"), rows_per_text=2),
    ]
    draw = EnumeratedRollouts(model, TEXTS, num_rows=8, seed=0)
    trained = train_candidates(draw, members, 3)
    total = made.baseline.total.clone()
    assert len(learned) == 3 and total.any() and [one.name for one in trained] == ["mean", "critic", "plain"]
    for one in trained:
        one.advantages(draw(one.rows_per_text))
    assert len(learned) == 3 and torch.equal(made.baseline.total, total)


def test_a_reward_that_needs_the_entropy_is_not_given_something_else():
    """It used to be the early exit's log-likelihood where the rollout had no entropy."""
    rollout = rollout_of_zeros()
    one = Candidate("entropy", ReturnEstimator(gamma=0.0), reward="entropy_relative")
    with pytest.raises(KeyError, match=r"must hold 'early_entropy' \(an environment adds it with observe_entropy=True"):
        one.advantages(rollout)
    assert (one.advantages(rollout.set("early_entropy", torch.full((2, 3, 1), 2.0))) == 2).all()


def test_wrong_candidates_are_refused(model):
    with pytest.raises(ValueError, match=r"candidates must have different names, got \['a', 'a'\]"):
        collect_gradients(model, lambda rows: None, [Candidate("a", turned), Candidate("a", turned)], 3)
    with pytest.raises(ValueError, match="rows_per_text must divide the 8 rows, got 3"):
        EnumeratedRollouts(model.double(), TEXTS, num_rows=8, seed=0)(3)

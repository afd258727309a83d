"""Candidates of the study that run texts again: second rows, and flips whose effects are predicted."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.experiments.studies import doubly_robust, sibling_trials
from rltok_rl.experiments.studies.doubly_robust import DoublyRobustFlips
from rltok_rl.experiments.studies.sibling_trials import SiblingTrials
from torch import Tensor

from rltok_rl.diagnostics.exact import exact_head_gradient
from rltok_rl.diagnostics.gradient_quality import policy_gradient
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.flops import trial_flops
from rltok_rl.objectives import LocalFlips, make_estimator

from ..each import each
from ..objectives.conftest import (
    chance_of_pairs,
    give_second_rows,
    make_model,
    make_rollout,
    pairs_of_strings,
    reader,
    second_rows,
)
from ..states import seeded


@each(coupling=["independent", "blocks", "antithetic"], lags=[0, 3])
def test_second_rows_leave_the_expected_gradient_exact(coupling, lags, monkeypatch):
    """Summed over all pairs of strings and both places of the blocks, with a baseline that is some constant."""
    model, text = make_model(num_lags=lags).double(), "to be"
    monkeypatch.setattr(sibling_trials, "leave_one_out", lambda returns, **_: returns - 0.7)
    rows, others = pairs_of_strings(model, text)
    p, q = rows["logits"].sigmoid(), others["logits"].sigmoid()
    of_coupling = {"independent": p * q, "blocks": torch.minimum(p, q), "antithetic": (p + q - 1).clamp(min=0)}
    blocks = torch.arange(p.shape[1]).expand(p.shape) // 2 % 2 == 0
    trials = SiblingTrials(model, gamma=1.0, coupling=coupling, span=2)
    give_second_rows(trials, others)
    gradients = []
    for separate in (blocks, ~blocks):
        if coupling == "blocks":
            trials._couple = lambda rollout, scale=2.0 * separate: (rollout["logits"], scale)
        both = torch.where(separate, p * q, of_coupling[coupling]) if coupling == "blocks" else of_coupling[coupling]
        weight = chance_of_pairs(rows, others, both)
        advantages = trials(rows.copy())["advantage"].squeeze(-1)
        gradients.append(policy_gradient(model, rows, advantages * weight * len(rows)))
    exact = exact_head_gradient(model, text)
    torch.testing.assert_close(sum(gradients) / 2, exact, rtol=1e-9, atol=1e-10)


def test_antithetic_rows_have_a_baseline_of_the_other_rows():
    """The expected decision is counted over random numbers; the discount is that of both returns."""
    model = make_model(boundary_cap=None)
    rollout = make_rollout(model, num_rows=5, num_steps=12).detach()
    trials = SiblingTrials(model, gamma=0.9, coupling="antithetic", generator=seeded(3))
    seen = second_rows(trials)
    advantages = trials(rollout.clone())["advantage"].squeeze(-1)
    boundaries = seen[0]
    drawn, forced, probs = rollout["action"].bool() | rollout["forced"], rollout["forced"], rollout["logits"].sigmoid()
    base, lags = model.boundary_terms(rollout["encoder_state"])
    uniforms = (torch.arange(20_000) + 0.5) / 20_000
    returns = discounted_return(rollout["next", "reward"].squeeze(-1), 0.9)
    earned = reader(model, rollout, 0.0)
    other = returns - discounted_return(earned(drawn) - earned(boundaries), 0.9)
    for row, t in (~forced).nonzero().tolist():
        recent = boundaries[row, :t].flip(0).float()[: lags.shape[-1]]
        chance = (base[row, t] + (recent * lags[row, t, : len(recent)]).sum()).sigmoid()
        as_drawn = (1 - uniforms < chance) == boundaries[row, t]
        expected = (uniforms[as_drawn] < probs[row, t]).float().mean()
        mean = (returns[:, t].sum() - returns[row, t]) / 4
        decided = float(drawn[row, t])
        factor = (decided - expected) / (decided - probs[row, t])
        value = returns[row, t] - mean - (other[row, t] - mean) * factor
        assert float(advantages[row, t]) == pytest.approx(float(value), rel=2e-3, abs=2e-3)


def test_antithetic_rows_survive_rounding_and_need_two_rows():
    model = make_model(boundary_cap=None)
    rollout = make_rollout(model, num_rows=4).detach()
    trials = SiblingTrials(model, gamma=0.9, coupling="antithetic")
    trials._uniforms = torch.zeros_like  # 1 - u rounds to 1
    assert trials(rollout.clone())["advantage"].isfinite().all()
    certain = rollout.clone().set("logits", torch.where(rollout["action"].bool(), 200.0, -200.0))
    assert trials(certain)["advantage"].isfinite().all()
    alone = SiblingTrials(model, gamma=0.9, coupling="antithetic", every=4)
    with pytest.raises(ValueError, match="every must leave at least two rows with trials .* got 4 for 4 rows"):
        alone(rollout.clone())


def test_second_rows_share_what_their_coupling_says():
    model = make_model()
    rollout = make_rollout(model, num_rows=64, num_steps=24).detach()
    drawn, forced = rollout["action"].bool() | rollout["forced"], rollout["forced"]

    def second(coupling: str) -> tuple[Tensor, Tensor]:
        trials = SiblingTrials(model, gamma=0.9, coupling=coupling, span=4, generator=seeded(3))
        seen = second_rows(trials)
        advantages = trials(rollout.clone())["advantage"].squeeze(-1)
        return seen[0], advantages

    earned, agreement = reader(model, rollout, 0.0), {}
    for coupling in ("independent", "blocks", "antithetic"):
        boundaries, advantages = second(coupling)
        agreement[coupling] = float((boundaries == drawn)[~forced].float().mean())
        gained = discounted_return(earned(drawn) - earned(boundaries), 0.9).masked_fill(forced, 0.0)
        if coupling == "independent":
            torch.testing.assert_close(advantages, gained, rtol=1e-4, atol=1e-4)
        if coupling == "blocks":
            own = (advantages != 0).unflatten(1, (-1, 4)).any(-1)  # [B, blocks]
            assert (own[:, 1:-1] != own[:, 2:]).float().mean() > 0.9  # every other one
            expected = 2 * own.repeat_interleave(4, 1) * gained
            torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-4)
    assert agreement["antithetic"] < agreement["independent"] < agreement["blocks"]


def test_flops_are_those_of_one_pass_and_mistakes_are_refused():
    model = make_model()
    assert SiblingTrials(model, gamma=0.9, every=4).flops(10, 6) == trial_flops(model, 10, 6) / 4
    robust = DoublyRobustFlips(model, gamma=0.9, num_flips=2, span=5, every=4)
    size = 1 + model.config.width + 8 + 9  # predictions of all rows and of those with trials, one effect per ten bytes
    own = 10 * 2 * size * 1.25 + 2 * size**2
    assert robust.flops(10, 6) == pytest.approx(2 * trial_flops(model, 10, 6) / 4 + own)
    with pytest.raises(ValueError, match=r"coupling must be one of \['independent', .*got 'twins'"):
        SiblingTrials(model, gamma=0.9, coupling="twins")
    with pytest.raises(ValueError, match="memory must lie in"):
        DoublyRobustFlips(model, gamma=0.9, memory=1.0)


def test_expected_advantages_are_those_of_flips_whatever_is_predicted():
    """Summed exactly over flipped decisions and drawn rows; without lags a row is known from its flips."""
    model = make_model(num_lags=0).double()
    rollout = make_rollout(model, num_rows=4, num_steps=11).detach()
    free = (~rollout["forced"].view(4, 11).bool()).all(0).nonzero().flatten().tolist()

    def expected(kind: type[LocalFlips], rows: Tensor) -> Tensor:
        made = kind(model, gamma=0.9, num_flips=1, span=11, every=4 // len(rows))
        made._drawn_rows = lambda *_: rows
        total = torch.zeros(4, 11, dtype=torch.float64)
        for t in free:
            where, chance = torch.full((len(rows), 1, 1), t), torch.full((len(rows), 1, 1), 1 / len(free))
            made._choose = lambda _, answer=(where, chance): answer
            if isinstance(made, DoublyRobustFlips):
                made.gram.copy_(torch.eye(len(made.gram)))
                made.moment.copy_(torch.randn(len(made.gram), generator=seeded(3)))
            total += made(rollout.copy())["advantage"].squeeze(-1) / len(free)
        return total

    plain = expected(LocalFlips, torch.arange(4))
    torch.testing.assert_close(expected(DoublyRobustFlips, torch.arange(4)), plain, rtol=1e-4, atol=1e-6)
    halves = [expected(DoublyRobustFlips, torch.arange(2) * 2 + offset) for offset in range(2)]
    assert not torch.allclose(halves[0], plain, rtol=1e-2)
    torch.testing.assert_close(sum(halves) / 2, plain, rtol=1e-4, atol=1e-6)


def test_predictions_learn_effects_from_earlier_batches_alone():
    """The first batch has none; many batches of one rollout explain part of its effects."""
    model = make_model()
    rollout = make_rollout(model, num_rows=8, num_steps=48).detach()
    robust = DoublyRobustFlips(model, gamma=0.9, num_flips=2, span=8, memory=0.9, generator=seeded(1))
    flips = LocalFlips(model, gamma=0.9, num_flips=2, span=8, generator=seeded(1))
    torch.testing.assert_close(robust(rollout.clone())["advantage"], flips(rollout.clone())["advantage"])
    for _ in range(20):
        robust(rollout.clone())
    where, _, effect = robust._measure_flips(rollout)
    unexplained = (effect - robust._effects(rollout, robust._slopes()).gather(1, where)).square().mean()
    assert unexplained < 0.9 * effect.square().mean()
    memory = robust.gram.clone()
    robust.eval()(rollout.clone())
    assert torch.equal(robust.gram, memory)
    forgetful = DoublyRobustFlips(model, gamma=0.9, num_flips=2, span=8, memory=0.0, generator=seeded(1))
    for _ in range(20):
        forgetful(rollout.clone())
    assert forgetful.gram[0, 0] < 0.2 * memory[0, 0], "the first regressor counts the effects that are remembered"


def test_predictions_read_a_few_rows_at_a_time(monkeypatch):
    """With ``rows_per_pass``, as of micro-batches, regressors have few rows, and advantages are those of all."""
    model = make_model()
    rollout = make_rollout(model, num_rows=8, num_steps=24).detach()
    read, sizes = doubly_robust._regressors, []
    monkeypatch.setattr(doubly_robust, "_regressors", lambda rows: sizes.append(len(rows)) or read(rows))
    found = []
    for rows in (None, 3):
        sizes.clear()
        robust = DoublyRobustFlips(model, gamma=0.9, span=8, rows_per_pass=rows, generator=seeded(1))
        found.append([robust(rollout.clone())["advantage"] for _ in range(3)])
        assert max(sizes) == (rows or 8)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_settled_policies_get_returns_without_predictions():
    model = make_model()
    rollout = make_rollout(model).detach()
    robust = DoublyRobustFlips(model, gamma=0.9, baseline="leave_one_out", settled=10.0, generator=seeded(1))
    robust(rollout.clone())
    returns = make_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")
    assert torch.equal(robust(rollout.clone())["advantage"], returns(rollout.clone())["advantage"])

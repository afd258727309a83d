"""Candidates of the study that run texts again: second rows, and flips whose effects are predicted."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.experiments.studies import sibling_trials
from rltok_rl.experiments.studies.doubly_robust import DoublyRobustFlips
from rltok_rl.experiments.studies.sibling_trials import SiblingTrials
from torch import Tensor

from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.diagnostics.exact import exact_gradient
from rltok_rl.diagnostics.gradient_quality import policy_gradient
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.flops import decoding_flops
from rltok_rl.objectives import LocalFlips

from ..each import each
from ..objectives.conftest import make_model, make_rollout, reader
from ..states import seeded

HEAD = "boundary_head.projection.weight"


@each(case=[("independent", 16), ("blocks", 2), ("antithetic", 16)])
def test_second_rows_leave_the_expected_gradient_exact_with_lags(case, monkeypatch):
    """The mean over draws is within four standard errors; the baseline is one constant for each position."""
    (coupling, span), model, text = case, make_model(num_lags=3).double(), "to be"
    monkeypatch.setattr(sibling_trials, "leave_one_out", lambda returns, **_: returns - returns.mean(0))
    rollouts, generator = enumerate_rollouts(model, text)[0], seeded(5)
    weight = rollouts["log_weight"].exp() * len(rollouts)
    trials = SiblingTrials(model, gamma=1.0, coupling=coupling, span=span, generator=generator)
    found = []
    for _ in range(400):
        advantages = trials(rollouts.detach().clone())["advantage"].squeeze(-1)
        found.append(policy_gradient(model, rollouts, advantages * weight))
    draws, exact = torch.stack(found), exact_gradient(model, text).policy[HEAD].flatten()
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - exact).abs() <= 4 * error + 1e-12).all()
    assert float(error.norm()) < 0.15 * float(exact.norm())


def test_second_rows_share_what_their_coupling_says():
    model = make_model()
    rollout = make_rollout(model, num_rows=64, num_steps=24).detach()
    drawn, forced = rollout["action"].bool() | rollout["forced"], rollout["forced"]

    def second(coupling: str) -> tuple[Tensor, Tensor]:
        trials, seen = SiblingTrials(model, gamma=0.9, coupling=coupling, span=4, generator=seeded(3)), []
        trials._run_passes = lambda *options: seen.append(SiblingTrials._run_passes(trials, *options)) or seen[-1]
        advantages = trials(rollout.clone())["advantage"].squeeze(-1)
        return seen[0][0].squeeze(1), advantages

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
    assert SiblingTrials(model, gamma=0.9, every=4).flops(10, 6) == decoding_flops(model, 10, 6) / 4
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
    where, weight, effect = robust._flip(rollout)
    unexplained = (effect - robust._predicted(rollout).gather(1, where)).square().mean()
    assert unexplained < 0.9 * effect.square().mean()
    memory = robust.gram.clone()
    robust.eval()(rollout.clone())
    assert torch.equal(robust.gram, memory)

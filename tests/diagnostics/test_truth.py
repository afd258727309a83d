"""Agreement with a truth that is itself measured."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.data import TextSource
from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.diagnostics.estimator_report import Candidate
from rltok_rl.diagnostics.exact import TextRollouts
from rltok_rl.diagnostics.truth import counterfactual_correlation, resampled_correlation
from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import ReturnEstimator

PLAY = "to be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and arrows of "


def rubbish(rollout):
    return rollout.set("advantage", torch.randn_like(rollout["next", "reward"]))


def test_correlations_are_high_where_advantages_are_the_truth(model):
    """Noise free here: advantages that know both answers agree with the truth; random ones do not."""
    source = TextSource(PLAY)
    texts = source.draw(4, 13, torch.Generator().manual_seed(0)).byte_ids
    members = [
        Candidate("siblings", ReturnEstimator(gamma=0.9, baseline="group_mean", group_size=8), rows_per_text=8),
        Candidate("early", ReturnEstimator(gamma=0.9)),
        Candidate("rubbish", rubbish),
    ]
    options = {"gamma": 0.9, "num_samples": 300, "num_judged": 160, "least": 10}
    found = resampled_correlation(model, texts, members, **options).correlations
    assert found["siblings"][0] > 0.3 and abs(found["rubbish"][0]) < 0.1 and found["siblings"] > found["early"]
    draw = TextRollouts(model, source, num_rows=8, num_steps=12, seed=0)
    options = {"gamma": 0.9, "num_batches": 6, "num_positions": 8, "pairs": 24}
    found = counterfactual_correlation(model, draw, members, **options).correlations
    assert found["siblings"][0] > 0.25 and abs(found["rubbish"][0]) < 0.15


@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_the_exact_truth_falls_short_of_the_measured_one_by_its_noise_alone(model, gamma):
    """By enumeration, what each decision is worth: its correlation with the resampled truth is sqrt(reliability)."""
    ids = TextSource(PLAY).draw(3, 8, torch.Generator().manual_seed(0)).byte_ids
    table = enumerate_rollouts(model, ids)
    weights = table["log_weight"][..., 0].exp().double()  # [M, n]
    returns = discounted_return(table["next", "final_log_prob"].squeeze(-1), gamma).double()  # [M, n, T]
    drawn = table["action"].double()
    worth = []
    for side in (1 - drawn, drawn):
        there = weights.unsqueeze(-1) * side
        worth.append((there * returns).sum(1) / there.sum(1).clamp(min=1e-12))
    worth = torch.stack(worth) - (weights.unsqueeze(-1) * returns).sum(1)  # [2, M, T]

    def perfect(rollout):
        return rollout.set("advantage", torch.where(rollout["action"].bool(), worth[1], worth[0]).unsqueeze(-1))

    found = resampled_correlation(
        model, ids, [Candidate("perfect", perfect)], gamma=gamma, num_samples=150, num_judged=60, least=20
    )
    assert 0.2 < found.reliability < 0.999
    assert found.correlations["perfect"][0] == pytest.approx(found.reliability**0.5, abs=0.06)


def test_more_pairs_are_as_much_more_reliable_as_spearman_and_brown_say(model):
    draw = TextRollouts(model, TextSource(PLAY), num_rows=8, num_steps=12, seed=0)
    members = [Candidate("rubbish", rubbish)]
    options = {"gamma": 0.9, "num_batches": 8, "num_positions": 8}
    few, many = (
        counterfactual_correlation(model, draw, members, pairs=pairs, **options).reliability for pairs in (2, 16)
    )
    assert 0.05 < few < many < 1
    assert many == pytest.approx(8 * few / (1 + 7 * few), abs=0.1)


def test_truths_that_tell_nothing_are_refused(model):
    ids = TextSource(PLAY).draw(2, 8).byte_ids
    with pytest.raises(ValueError, match="no decision went both ways 30 times in 40 samples"):
        resampled_correlation(model, ids, [Candidate("a", rubbish)], gamma=0.9, num_samples=40, num_judged=2)
    with pytest.raises(ValueError, match="pairs must be at least 2, got 1"):
        counterfactual_correlation(model, lambda rows: None, [], gamma=0.9, num_batches=1, num_positions=1, pairs=1)

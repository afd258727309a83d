"""Flipped boundaries through branching caches, against whole forward passes and enumeration."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.diagnostics.counterfactual import counterfactual_returns
from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.sampling import sample_boundaries
from rltok_rl.text import text_to_ids

from ..each import each
from .conftest import opinionated


@torch.no_grad()
def by_hand(model, ids, boundaries, t, value, uniforms, gamma):
    """Force the prefix and the decision, draw the rest in one go, run the whole model again. All [T], one row."""
    states = model.encode(ids[None])[:, :-1]
    forced = torch.full((1, len(boundaries)), -1)
    forced[0, :t] = boundaries[:t].long()
    forced[0, t] = value
    drawn = sample_boundaries(
        *model.boundary_terms(states), uniforms=uniforms[None], cap=model.boundary_cap, forced=forced
    )
    final = byte_log_prob(model.final_logits(model.decode(states, drawn)), ids[None, 1:])[0]
    return (final[t:] * gamma ** torch.arange(len(final) - t)).sum()


@each(options=[{}, {"pooling": "mean"}, {"num_lags": 0}], training=[True, False])
def test_branches_of_the_cache_are_whole_forward_passes(options, training):
    model = opinionated(**options).train(training)
    num_rows, num_steps, pairs, gamma = 3, 24, 2, 0.9
    ids = torch.randint(256, (num_rows, num_steps + 1))
    boundaries = torch.rand(num_rows, num_steps) < 0.4
    boundaries[:, 0] = True
    uniforms = torch.rand(num_rows, pairs, num_steps)
    positions = torch.tensor([1, 2, 9, num_steps - 1])
    found = counterfactual_returns(model, ids, boundaries, positions, gamma=gamma, uniforms=uniforms)
    for row in range(num_rows):
        for k, t in enumerate(positions.tolist()):
            for pair in range(pairs):
                given = (model, ids[row], boundaries[row], t)
                options_ = (uniforms[row, pair], gamma)
                expected = by_hand(*given, 1, *options_) - by_hand(*given, 0, *options_)
                assert found.differences[row, k, pair].item() == pytest.approx(expected.item(), abs=2e-4)
    assert torch.equal(found.boundaries, boundaries[:, positions])


def test_many_pairs_find_the_exact_advantage(model):
    """Q(1) - Q(0) of every prefix, by enumeration. 4.5 standard errors, 30 comparisons: fails 2 in 10,000 times."""
    ids = text_to_ids("to be or")[None]
    rollouts = enumerate_rollouts(model, ids)[0]
    returns = rollouts["next", "final_log_prob"].squeeze(-1).flip(-1).cumsum(-1).flip(-1)  # [n, T]
    log_probs, actions = rollouts["action_log_prob"], rollouts["action"]
    pairs = 600
    for string in (0, 21, 42, 63, 37):
        options = {"gamma": 1.0, "uniforms": torch.rand(1, pairs, 7)}
        found = counterfactual_returns(model, ids, actions[string, None].bool(), torch.arange(1, 7), **options)
        for k, t in enumerate(range(1, 7)):
            same = (actions[:, :t] == actions[string, :t]).all(1)
            weight = log_probs[:, t + 1 :].sum(1).exp()
            values = [(returns[:, t] * weight)[same & (actions[:, t] == side)].sum() for side in (0, 1)]
            error = found.differences[0, k].std() / pairs**0.5
            assert abs(found.difference[0, k] - (values[1] - values[0])) <= 4.5 * error + 1e-4
            own = (actions[string, t] - rollouts["logits"][string, t].sigmoid()) * found.difference[0, k]
            torch.testing.assert_close(found.advantage[0, k], own, check_dtype=False, rtol=1e-4, atol=1e-5)


def test_bad_requests_are_refused(model):
    ids, boundaries = torch.randint(256, (2, 9)), torch.ones(2, 8, dtype=torch.bool)
    good = {"gamma": 0.9, "uniforms": torch.rand(2, 3, 8)}
    wrong = [
        ({"gamma": 1.5}, torch.tensor([1]), r"gamma must lie in \[0, 1\], got 1.5"),
        ({"uniforms": torch.rand(2, 8)}, torch.tensor([1]), r"uniforms must be \[2, n >= 1, 8\], got \[2, 8\]"),
        ({}, torch.tensor([0]), r"and increase within 1\.\.7, got \[0\]"),
        ({}, torch.tensor([3, 3]), "increase within"),
        ({}, torch.tensor([8]), "increase within"),
        ({}, torch.tensor([], dtype=torch.int64), r"positions must be \[K >= 1\]"),
    ]
    for options, positions, message in wrong:
        with pytest.raises(ValueError, match=message):
            counterfactual_returns(model, ids, boundaries, positions, **{**good, **options})

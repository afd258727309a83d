"""A policy under a count: exact, causal, a distribution, and the uniform one where the policy says nothing."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
import torch

from rltok_rl.functional.boundary_rules import exact_count, select_exactly
from rltok_rl.functional.budget import FORCED, budget_offsets, draw_within_budget, string_log_prob


def strings_of(length: int) -> torch.Tensor:
    """[2^(T - 1), T] all strings that begin with a boundary."""
    return torch.tensor([[True, *rest] for rest in product([False, True], repeat=length - 1)])


@pytest.mark.parametrize(("rate", "block"), [(0.25, 8), (0.3, 10), (0.5, 4), (1.0, 5), (0.2, 1)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 40.0])
def test_counts_are_exact_whatever_the_policy(rate, block, scale):
    logits = scale * torch.randn(50, 4 * block)
    for uniforms in (torch.rand(50, 4 * block), torch.zeros(50, 4 * block), torch.full((50, 4 * block), 1 - 2**-24)):
        drawn = draw_within_budget(logits, uniforms, rate, block)
        assert (drawn.view(50, 4, block).sum(-1) == exact_count(rate, block)).all()
        assert drawn[:, 0].all()
    greedy = draw_within_budget(logits, None, rate, block)
    assert (greedy.view(50, 4, block).sum(-1) == exact_count(rate, block)).all()


def test_without_a_policy_it_is_selection_sampling():
    uniforms = torch.rand(20, 60, dtype=torch.float64)
    for rate, block in ((0.25, 20), (0.3, 60), (0.7, 7)):
        ours = draw_within_budget(torch.zeros(20, 60, dtype=torch.float64), uniforms, rate, block)
        assert torch.equal(ours, select_exactly(uniforms, rate, block))


def test_strings_have_probabilities_that_add_up():
    """By hand: of 6 bytes 3 have a boundary, the first among them; C(5, 2) strings, all others impossible."""
    logits = torch.randn(6, dtype=torch.float64)
    strings = strings_of(6)
    offsets = budget_offsets(strings, 0.5, 6)
    log_probs = string_log_prob(logits + offsets, strings)
    probs = log_probs.sum(-1).exp()
    possible = strings.sum(-1) == 3
    assert float(probs[possible].sum()) == pytest.approx(1.0, abs=1e-12) and int(possible.sum()) == 10
    assert float(probs[~possible].abs().max()) == 0
    uniform = string_log_prob(offsets, strings).sum(-1).exp()[possible]
    torch.testing.assert_close(uniform, torch.full((10,), 0.1, dtype=torch.float64))

    for string, prob in zip(strings[possible].tolist(), probs[possible].tolist(), strict=True):
        expected, left = 1.0, 2
        for t in range(1, 6):
            share = left / (6 - t)
            odds = math.exp(logits[t]) * share / (1 - share) if share < 1 else math.inf
            p = odds / (1 + odds) if odds < math.inf else 1.0
            expected *= p if string[t] else 1 - p
            left -= string[t]
        assert prob == pytest.approx(expected, rel=1e-9)


def test_drawn_as_often_as_their_probability_says():
    """Chi-square with 5 degrees of freedom exceeds 27.9 with probability 4e-5."""
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    strings = torch.tensor([[t == 0 or t in chosen for t in range(5)] for chosen in combinations(range(1, 5), 2)])
    probs = string_log_prob(logits + budget_offsets(strings, 0.6, 5), strings).sum(-1).exp()
    uniforms = torch.rand(20_000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = draw_within_budget(logits.expand(20_000, 5), uniforms, 0.6, 5)
    counts = (drawn[:, None] == strings).all(-1).sum(0)
    assert int(counts.sum()) == 20_000
    assert float(((counts - 20_000 * probs) ** 2 / (20_000 * probs)).sum()) < 27.9


def test_offsets_begin_anew_in_every_block():
    strings = draw_within_budget(torch.randn(4, 36), torch.rand(4, 36), 0.3, 12)
    offsets = budget_offsets(strings, 0.3, 12)
    for row in range(4):
        for t in range(36):
            left = 4 - int(strings[row, t - t % 12 : t].sum())
            rest = 12 - t % 12
            if t == 0 or left == rest:
                assert offsets[row, t] == FORCED
            elif left == 0:
                assert offsets[row, t] == -FORCED
            else:
                assert float(offsets[row, t]) == pytest.approx(math.log(left / (rest - left)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_taken_decisions_have_no_gradient(dtype):
    logits = torch.randn(8, dtype=dtype, requires_grad=True)
    string = torch.tensor([1, 1, 0, 1, 0, 0, 0, 1]).bool()  # blocks of 4 with 2 boundaries
    string[1:] = torch.tensor([0, 0, 1, 1, 1, 0, 0]).bool()
    offsets = budget_offsets(string, 0.5, 4).to(dtype)
    (slope,) = torch.autograd.grad(string_log_prob(logits + offsets, string).sum(), logits)
    assert (slope == 0).tolist() == [True, False, False, True, False, False, True, True]

"""Rules for boundaries equal their published definitions; exact numbers of boundaries are exact."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
import torch

from rltok_rl.functional.boundary_rules import (
    entropy_rise,
    entropy_spikes,
    exact_count,
    released_combined_scores,
    select_exactly,
    spacebyte,
    spacelike,
    threshold_for_rate,
)
from rltok_rl.functional.budget import budget_offsets, draw_within_budget, string_log_prob

from ..each import each


def test_spacelike_bytes_are_the_published_ones():
    """SpaceByte's own words: b < '0', '9' < b < 'A', 'Z' < b < 'a', 'z' < b < 0x80, b >= 0xC0."""

    def published(b: int) -> bool:
        return b < ord("0") or ord("9") < b < ord("A") or ord("Z") < b < ord("a") or ord("z") < b < 0x80 or b >= 0xC0

    everything = torch.arange(256)
    assert spacelike(everything).tolist() == [published(b) for b in range(256)]
    assert torch.equal(spacelike(everything.to(torch.uint8)), spacelike(everything))


def test_spacebyte_by_hand():
    """Never inside a character."""
    text = "Hi, (you)  é日x"
    #           H  i  ,     (  y  o  u  )        é  .  日 .  .  x
    expected = [0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0]
    assert spacebyte(torch.tensor(list(text.encode()))).int().tolist() == expected


@each(lags=[1, 2, 3, 5, 8, 39, 40, 99])
def test_spikes_equal_a_loop(lags):
    entropies = torch.randint(6, (3, 40)).double()  # with equal neighbours
    expected = [
        [all(row[t] > row[t - j] for j in range(1, min(t, lags) + 1)) for t in range(40)] for row in entropies.tolist()
    ]
    assert entropy_spikes(entropies, lags).tolist() == expected


def test_rises_and_thresholds():
    rises = entropy_rise(torch.tensor([0.1, 2.0, 0.5, 1.4, 1.2, 3.0]))
    torch.testing.assert_close(rises, torch.tensor([-math.inf, 1.9, -1.5, 0.9, -0.2, 1.8]))
    tenth = torch.tensor([0.0, 0.0, 0.0, 0.1])  # in float32 a little more than a tenth, which nobody rounds
    assert released_combined_scores(tenth, 0.1)[3] == tenth[3]
    scores = torch.randn(1000, dtype=torch.float64)
    for rate in (0.0, 0.123, 0.2508, 0.5, 1.0):
        assert int((scores > threshold_for_rate(scores, rate)).sum()) == round(1000 * rate)
    assert int((torch.ones(10) > threshold_for_rate(torch.ones(10), 0.5)).sum()) == 0
    with pytest.raises(ValueError, match="scores must hold at least one number"):
        threshold_for_rate(torch.zeros(0), 0.5)
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\], got 2"):
        threshold_for_rate(torch.zeros(1), 2)


def test_a_count_is_that_of_the_fraction_and_rounds_up():
    """Whatever the product of rounded numbers is: 0.28 * 25 is more than 7."""
    for length in range(1, 120):
        for count in range(length + 1):
            assert exact_count(count / length, length) == count
    assert exact_count(0.2, 6) == 2 and exact_count(0.3, 0) == 0


@each(case=[(0.25, 8), (0.3, 10), (0.5, 4), (1.0, 5), (0.2, 1), (1 / 3, 24)])
def test_counts_are_exact_with_any_policy_and_random_numbers(case):
    rate, block = case
    drawn, noise = [], torch.randn(50, 3 * block)
    for uniforms in (torch.rand(50, 3 * block).double(), 0 * noise, 0 * noise + 1 - 2**-24):
        drawn += [draw_within_budget(scale * noise, uniforms, rate, block) for scale in (0.0, 1.0, 40.0)]
        drawn.append(select_exactly(uniforms, rate, block))
        assert uniforms.dtype == torch.float32 or torch.equal(drawn[-1], drawn[-4])  # without a policy
    for strings in (*drawn, draw_within_budget(noise, None, rate, block)):
        assert (strings.view(50, 3, block).sum(-1) == exact_count(rate, block)).all() and strings[:, 0].all()


def test_strings_have_probabilities_that_add_up():
    """By hand: of 6 bytes 3 have a boundary, the first among them; C(5, 2) strings, all others impossible."""
    logits = torch.randn(6, dtype=torch.float64)
    strings = torch.tensor([[True, *rest] for rest in product([False, True], repeat=5)])
    offsets = budget_offsets(strings, 0.5, 6)
    probs, uniform = (string_log_prob(x + offsets, strings).sum(-1).exp() for x in (logits, 0 * logits))
    possible = strings.sum(-1) == 3
    assert float(probs[possible].sum()) == pytest.approx(1.0, abs=1e-12) and int(possible.sum()) == 10
    assert float(probs[~possible].abs().max()) == 0
    torch.testing.assert_close(uniform[possible], torch.full((10,), 0.1, dtype=torch.float64))
    for string, prob in zip(strings[possible].tolist(), probs[possible].tolist(), strict=True):
        expected, left = 1.0, 2
        for t in range(1, 6):
            share = left / (6 - t)
            odds = math.exp(logits[t]) * share / (1 - share) if share < 1 else math.inf
            p = odds / (1 + odds) if odds < math.inf else 1.0
            expected *= p if string[t] else 1 - p
            left -= string[t]
        assert prob == pytest.approx(expected, rel=1e-9)


def test_strings_are_drawn_as_often_as_their_probability_says():
    """Chi-square with 5 degrees of freedom exceeds 27.9 with probability 4e-5, with 9 33.7 with probability 1e-4."""
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, 0.3], dtype=torch.float64)
    for length, chosen, bound in ((5, 2, 27.9), (6, 2, 33.7)):
        places = combinations(range(1, length), chosen)
        strings = torch.tensor([[t == 0 or t in place for t in range(length)] for place in places])
        uniforms = torch.rand(20_000, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        rate = (chosen + 1) / length
        if length == 5:
            offsets = budget_offsets(strings, rate, length)
            probs = string_log_prob(logits[:length] + offsets, strings).sum(-1).exp()
            drawn = draw_within_budget(logits[:length].expand(20_000, length), uniforms, rate, length)
        else:
            probs, drawn = torch.tensor(1 / len(strings)), select_exactly(uniforms, rate, length)
        counts = (drawn[:, None] == strings).all(-1).sum(0)
        assert int(counts.sum()) == 20_000
        assert float(((counts - 20_000 * probs) ** 2 / (20_000 * probs)).sum()) < bound


@each(dtype=[torch.float32, torch.float64])
def test_decisions_that_the_count_makes_have_no_gradient(dtype):
    logits = torch.randn(8, dtype=dtype, requires_grad=True)
    string = torch.tensor([1, 0, 0, 1, 1, 1, 0, 0]).bool()  # blocks of 4 with 2 boundaries
    offsets = budget_offsets(string, 0.5, 4).to(dtype)
    (slope,) = torch.autograd.grad(string_log_prob(logits + offsets, string).sum(), logits)
    assert (slope == 0).tolist() == [True, False, False, True, False, False, True, True]

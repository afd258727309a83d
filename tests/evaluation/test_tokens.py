"""Bytes per token and policy entropy, by hand and against slow definitions."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch

from rltok_rl.evaluation import policy_entropy, summarise_lengths, token_lengths


def test_lengths_by_hand():
    boundaries = torch.tensor([[1, 0, 0, 1, 1, 0], [1, 0, 1, 0, 0, 1]])
    assert token_lengths(boundaries).tolist() == [1, 3, 1, 1, 2, 3]
    counted = torch.ones(2, 6, dtype=torch.bool)
    counted[:, 0] = False  # forced: no token of one byte, and the next one is counted from it
    assert token_lengths(boundaries, counted).tolist() == [3, 1, 2, 3]
    assert token_lengths(boundaries[0], counted[0]).tolist() == [3, 1]


def test_every_byte_up_to_the_last_boundary_is_in_one_token():
    torch.manual_seed(0)
    boundaries = torch.rand(5, 40) < 0.3
    for row in boundaries:
        last = int(row.nonzero().max())
        assert int(token_lengths(row).sum()) == last + 1
    assert token_lengths(boundaries).tolist() == [n for row in boundaries for n in token_lengths(row).tolist()]


@pytest.mark.parametrize("boundaries", [torch.zeros(3, 5), torch.zeros(0), torch.zeros(2, 0)])
def test_without_boundaries_there_are_no_tokens(boundaries):
    lengths = token_lengths(boundaries)
    found = summarise_lengths(lengths)
    assert lengths.tolist() == [] and found.count == 0 and sum(found.histogram) == 0
    assert math.isnan(found.mean) and math.isnan(found.spread) and all(math.isnan(x) for x in found.quantiles.values())


def test_all_boundaries_are_tokens_of_one_byte():
    found = summarise_lengths(token_lengths(torch.ones(7)))
    assert (found.count, found.mean, found.spread) == (7, 1.0, 0.0)
    assert set(found.quantiles.values()) == {1.0} and found.histogram[0] == 7


def test_a_summary_by_hand():
    lengths = torch.tensor([1, 2, 2, 5, 20])
    found = summarise_lengths(lengths, quantiles=(0.2, 0.21, 0.6, 0.8, 1.0), longest=4)
    assert found.mean == 6.0 and found.spread == pytest.approx(math.sqrt((25 + 16 + 16 + 1 + 196) / 5))
    assert found.spread == pytest.approx(statistics.pstdev(lengths.tolist()))
    # The shortest length that so many tokens do not exceed.
    assert found.quantiles == {0.2: 1.0, 0.21: 2.0, 0.6: 2.0, 0.8: 5.0, 1.0: 20.0}
    assert found.histogram == (1, 2, 0, 2)


def test_wrong_lengths_and_quantiles_are_refused():
    with pytest.raises(ValueError, match=r"quantiles must lie in \(0, 1\], got 0.0"):
        summarise_lengths(torch.tensor([1]), quantiles=(0.0,))
    with pytest.raises(ValueError, match="lengths must be at least 1, got 0"):
        summarise_lengths(torch.tensor([1, 0]))
    with pytest.raises(ValueError, match=r"counted must have the shape of boundaries, \[4\], got \[3\]"):
        token_lengths(torch.ones(4), torch.ones(3))


def test_entropy_by_hand():
    probabilities = torch.tensor([1.0, 0.25, 0.0, 0.5])
    quarter = 0.25 * 2 + 0.75 * math.log2(4 / 3)
    assert policy_entropy(probabilities) == pytest.approx((quarter + 1.0) / 4)
    assert policy_entropy(probabilities, torch.tensor([0, 1, 0, 0])) == pytest.approx(quarter)
    assert policy_entropy(torch.tensor([0.0, 1.0])) == 0.0


def test_entropy_of_draws_is_that_of_the_strings_on_average():
    """Enumerated: the mean over all strings of a policy with a lag is the entropy of their distribution."""
    length, first, after = 5, 0.3, {0: 0.2, 1: 0.7}
    whole = mean = 0.0
    for string in itertools.product((0, 1), repeat=length):
        probs = [first] + [after[a] for a in string[:-1]]
        likelihood = math.prod(p if a else 1 - p for p, a in zip(probs, string, strict=True))
        whole -= likelihood * math.log2(likelihood)
        mean += likelihood * length * policy_entropy(torch.tensor(probs, dtype=torch.float64))
    assert mean == pytest.approx(whole)


def test_wrong_probabilities_are_refused():
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\], got 1.5"):
        policy_entropy(torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\], got nan"):
        policy_entropy(torch.tensor([math.nan]))
    with pytest.raises(ValueError, match="counted must hold at least one byte, got none"):
        policy_entropy(torch.tensor([0.5]), torch.tensor([False]))
    with pytest.raises(ValueError, match=r"counted must have the shape of probabilities, \[1\], got \[2\]"):
        policy_entropy(torch.tensor([0.5]), torch.tensor([True, True]))

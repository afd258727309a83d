"""Kappa, Jaccard, correlation and their matrices: by hand, and against the standard library."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from rltok_rl.evaluation import agreement_matrix, boundary_correlation, cohen_kappa, jaccard

MINE, THEIRS = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 0]), torch.tensor([1, 1, 0, 1, 0, 0, 0, 0, 0, 0])


def test_by_hand():
    # Agree on 8 of 10; both have 3 of 10: by chance 0.09 + 0.49.
    assert cohen_kappa(MINE, THEIRS) == pytest.approx((0.8 - 0.58) / (1 - 0.58))
    assert jaccard(MINE, THEIRS) == 0.5
    assert cohen_kappa(MINE, MINE) == jaccard(MINE, MINE) == 1.0
    assert cohen_kappa(torch.tensor([1, 0]), torch.tensor([0, 1])) == -1.0
    assert cohen_kappa(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])) == 0.0  # as often as by chance


def test_kappa_of_strings_of_equal_rates_is_their_correlation():
    assert cohen_kappa(MINE, THEIRS) == pytest.approx(boundary_correlation(MINE, THEIRS))


def test_what_is_not_counted_is_left_out():
    counted = torch.arange(10) > 0
    assert jaccard(MINE, THEIRS, counted) == pytest.approx(1 / 3)
    assert cohen_kappa(MINE, THEIRS, counted) == pytest.approx(cohen_kappa(MINE[1:], THEIRS[1:]))
    assert boundary_correlation(MINE, THEIRS, counted) == pytest.approx(boundary_correlation(MINE[1:], THEIRS[1:]))


def test_correlation_is_pearsons():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, 3, 20, generator=generator, dtype=torch.float64).unbind(0)
    expected = statistics.correlation(p.flatten().tolist(), q.flatten().tolist())
    assert boundary_correlation(p, q) == pytest.approx(expected)
    assert boundary_correlation(p, 1 - p) == pytest.approx(-1.0)


@pytest.mark.parametrize("everywhere", [0, 1])
def test_strings_that_cannot_but_agree_have_no_kappa(everywhere):
    same = torch.full((5,), everywhere)
    assert math.isnan(cohen_kappa(same, same)) and math.isnan(boundary_correlation(same, same))
    assert cohen_kappa(same, 1 - same) == 0.0
    if everywhere:
        assert jaccard(same, same) == 1.0
    else:
        assert math.isnan(jaccard(same, same))
    assert math.isnan(boundary_correlation(torch.full((5,), 0.2), torch.rand(5)))


def test_texts_must_be_the_same():
    for measure in (cohen_kappa, jaccard):
        with pytest.raises(ValueError, match=r"boundaries must be of one text, got shapes \[2\] and \[3\]"):
            measure(torch.ones(2), torch.ones(3))
        with pytest.raises(ValueError, match="counted must hold at least one byte, got none"):
            measure(torch.ones(2), torch.ones(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"probabilities must be of one text, got shapes \[2\] and \[3\]"):
        boundary_correlation(torch.ones(2), torch.ones(3))


def test_a_matrix_has_two_draws_of_each_on_its_diagonal():
    first = [torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0])]
    again = [torch.tensor([1, 0, 1, 0]), torch.tensor([1, 0, 0, 0])]
    found = agreement_matrix(first, again, jaccard)
    assert found[0][0] == pytest.approx(1 / 3) and found[1][1] == 1.0
    assert found[0][1] == found[1][0] == pytest.approx((1 / 2 + 1 / 2) / 2)
    other = [torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 0, 1])]
    assert agreement_matrix(first, other, jaccard)[0][1] == pytest.approx((0 + 1 / 3) / 2)  # both ways to pair draws
    with pytest.raises(ValueError, match="strings and again must be as many, got 2 and 1"):
        agreement_matrix(first, again[:1], jaccard)

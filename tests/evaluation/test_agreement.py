"""Precision, recall, F1, kappa, Jaccard and correlation by hand; pairs and chance by enumeration."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import astuple

import pytest
import torch

from rltok_rl.evaluation import (
    agreement_matrix,
    boundary_correlation,
    boundary_match,
    cohen_kappa,
    count_pairs,
    jaccard,
    move_boundaries,
)

MINE, THEIRS = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 0]), torch.tensor([1, 1, 0, 1, 0, 0, 0, 0, 0, 0])


def string(marks: str) -> torch.Tensor:
    return torch.tensor([mark == "|" for mark in marks])


def largest_matching(mine: list[int], theirs: list[int], tolerance: int) -> int:
    """By trying all."""
    if not mine or not theirs:
        return 0
    best = largest_matching(mine[1:], theirs, tolerance)
    for place, other in enumerate(theirs):
        if abs(mine[0] - other) <= tolerance:
            best = max(best, 1 + largest_matching(mine[1:], theirs[:place] + theirs[place + 1 :], tolerance))
    return best


def test_match_by_hand():
    mine, theirs = string("_|_||___|_"), string("_|___|__|_")
    match = boundary_match(mine, theirs)
    assert (match.precision, match.recall) == (0.5, pytest.approx(2 / 3))
    assert match.f1 == pytest.approx(4 / 7) and match.chance_f1 == pytest.approx(2 * (4 * 3 / 10) / 7)
    assert boundary_match(mine, theirs, tolerance=1).recall == 1.0
    assert astuple(boundary_match(torch.ones(4), torch.ones(4))) == (1.0, 1.0, 1.0, 1.0)
    assert all(math.isnan(x) for x in astuple(boundary_match(torch.zeros(4), torch.zeros(4))))
    half = boundary_match(torch.zeros(4), torch.ones(4))
    assert math.isnan(half.precision) and (half.recall, half.f1, half.chance_f1) == (0.0, 0.0, 0.0)


def test_shifts_by_hand():
    pieces, ends = string("_____|_____|"), string("____|_____|_")  # first byte of the next piece, last byte of a piece
    assert boundary_match(ends, pieces).f1 == 0.0
    assert boundary_match(ends, pieces, shift=-1).f1 == 1.0
    assert move_boundaries(pieces, 1).tolist() == string("______|_____").tolist()  # the last one leaves the text
    assert torch.equal(move_boundaries(pieces, 0), pieces)
    assert not move_boundaries(pieces, -12).any() and not move_boundaries(pieces, 13).any()
    rows = torch.stack([string("||_|_|"), string("|____|")])
    for by in range(-7, 8):  # each boundary by itself; those that leave the text do not come back at its other end
        moved = [[0 <= t - by < 6 and bool(row[t - by]) for t in range(6)] for row in rows]
        assert move_boundaries(rows, by).tolist() == moved, by


def test_only_counted_bytes_are_matched():
    reference, counted = string("|__|"), torch.arange(4) > 0
    match = boundary_match(string("|___"), reference, counted, shift=1)
    assert math.isnan(match.precision) and math.isnan(match.recall)  # neither the forced one nor where it would land
    assert boundary_match(string("||_|"), reference, counted).precision == 0.5


def test_pairs_are_a_largest_matching(seeded):
    for tolerance in range(4):
        generator = seeded(tolerance)
        for _ in range(40):
            mine, theirs = (torch.rand(2, 9, generator=generator) < 0.4).unbind(0)
            best = largest_matching(*(x.nonzero().squeeze(1).tolist() for x in (mine, theirs)), tolerance)
            assert count_pairs(mine, theirs, tolerance) == count_pairs(theirs, mine, tolerance) == best, tolerance
    assert count_pairs(string("__||__").view(2, 3), string("_|____").view(2, 3), tolerance=1) == 1  # rows do not touch
    assert count_pairs(string("__|___").view(2, 3), string("___|__").view(2, 3), tolerance=2) == 0


def test_chance_is_the_mean_over_all_ways_to_lay_boundaries():
    """By enumeration; with a tolerance chance is drawn, 400 times here, with fixed random numbers."""
    for shape, number in itertools.product(((10,), (2, 5)), (1, 3, 7)):
        theirs, counted = string("|_|__||__|").view(shape), (torch.arange(10) > 0).view(shape)
        ways = list(itertools.combinations(range(1, 10), number))
        for tolerance, error in ((0, 1e-12), (1, 0.05)):
            total = 0.0
            for way in ways:
                mine = torch.zeros(10)
                mine[list(way)] = 1
                mine = mine.view(shape)
                total += boundary_match(mine, theirs, counted, tolerance=tolerance, draws=1).f1
            match = boundary_match(mine, theirs, counted, tolerance=tolerance, draws=400)
            assert match.chance_f1 == pytest.approx(total / len(ways), abs=error), (number, tolerance)
            torch.rand(number)
            state = torch.get_rng_state()
            assert boundary_match(mine, theirs, counted, tolerance=tolerance) == boundary_match(
                mine, theirs, counted, tolerance=tolerance, draws=20
            )
            assert torch.equal(state, torch.get_rng_state())


def test_kappa_jaccard_and_correlation_by_hand():
    # Agree on 8 of 10; both have 3 of 10: by chance 0.09 + 0.49.
    assert cohen_kappa(MINE, THEIRS) == pytest.approx((0.8 - 0.58) / (1 - 0.58))
    assert cohen_kappa(MINE, THEIRS) == pytest.approx(boundary_correlation(MINE, THEIRS))  # rates are equal
    assert jaccard(MINE, THEIRS) == 0.5
    assert cohen_kappa(torch.tensor([1, 0]), torch.tensor([0, 1])) == -1.0
    assert cohen_kappa(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])) == 0.0  # as often as by chance
    counted = torch.arange(10) > 0
    assert jaccard(MINE, THEIRS, counted) == pytest.approx(1 / 3)
    for measure in (cohen_kappa, boundary_correlation):
        assert measure(MINE, THEIRS, counted) == pytest.approx(measure(MINE[1:], THEIRS[1:]))
        assert measure(MINE, MINE) == 1.0
    for everywhere in (0, 1):
        same = torch.full((5,), everywhere)
        assert math.isnan(cohen_kappa(same, same)) and math.isnan(boundary_correlation(same, same))
        assert cohen_kappa(same, 1 - same) == 0.0
    assert jaccard(same, same) == 1.0 and math.isnan(jaccard(1 - same, 1 - same))
    for constant in (torch.full((5,), 0.2), torch.full((5,), 1)):
        assert math.isnan(boundary_correlation(constant, torch.rand(5)))
        assert math.isnan(boundary_correlation(torch.rand(5), constant))


def test_correlations_are_exact_and_at_most_one(seeded):
    """Also of probabilities that hardly differ; against the standard library."""
    for seed in range(100):
        p, q = 0.5 + 1e-4 * torch.rand(2, 9, generator=seeded(seed))
        expected = statistics.correlation(p.tolist(), q.tolist())
        assert boundary_correlation(p, q) == pytest.approx(expected, abs=1e-9)
        p = p.double()
        for scale in (1 / 3, -1 / 3):  # rounding must not lead beyond the bounds
            assert 1 - 1e-9 < abs(boundary_correlation(p, scale * p)) <= 1.0


def test_a_matrix_has_two_draws_of_each_on_its_diagonal():
    first = [torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0])]
    again = [torch.tensor([1, 0, 1, 0]), torch.tensor([1, 0, 0, 0])]
    matrix = agreement_matrix(first, again, jaccard)
    assert matrix[0][0] == pytest.approx(1 / 3) and matrix[1][1] == 1.0
    assert matrix[0][1] == matrix[1][0] == pytest.approx((1 / 2 + 1 / 2) / 2)
    other = [torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 0, 1])]
    assert agreement_matrix(first, other, jaccard)[0][1] == pytest.approx((0 + 1 / 3) / 2)  # both ways to pair draws

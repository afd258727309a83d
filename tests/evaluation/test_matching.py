"""Precision, recall and F1 by hand; pairs and chance by enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rltok_rl.evaluation import boundary_match, count_pairs, move_boundaries


def string(marks: str) -> torch.Tensor:
    return torch.tensor([mark == "|" for mark in marks])


def most_pairs(mine: list[int], theirs: list[int], tolerance: int) -> int:
    """The largest matching, tried out."""
    if not mine or not theirs:
        return 0
    best = most_pairs(mine[1:], theirs, tolerance)
    for place, other in enumerate(theirs):
        if abs(mine[0] - other) <= tolerance:
            best = max(best, 1 + most_pairs(mine[1:], theirs[:place] + theirs[place + 1 :], tolerance))
    return best


def test_by_hand():
    mine, theirs = string("_|_||___|_"), string("_|___|__|_")
    found = boundary_match(mine, theirs)
    assert (found.precision, found.recall) == (0.5, pytest.approx(2 / 3))
    assert found.f1 == pytest.approx(4 / 7) and found.chance_f1 == pytest.approx(2 * (4 * 3 / 10) / 7)
    assert boundary_match(mine, theirs, tolerance=1).recall == 1.0
    assert boundary_match(mine, mine).f1 == 1.0


def test_shifts_by_hand():
    pieces = string("_____|_____|")  # the first byte of the next piece
    ends = string("____|_____|_")
    assert boundary_match(ends, pieces).f1 == 0.0
    assert boundary_match(ends, pieces, shift=-1).f1 == 1.0
    assert move_boundaries(pieces, 1).tolist() == string("______|_____").tolist()  # the last one leaves the text
    assert not move_boundaries(pieces, -12).any() and torch.equal(move_boundaries(pieces, 0), pieces)
    rows = torch.stack([string("|__"), string("__|")])
    assert move_boundaries(rows, 1).tolist() == [[False, True, False], [False] * 3]


def test_what_is_not_counted_is_left_out_before_it_is_moved():
    reference, counted = string("|__|"), torch.arange(4) > 0
    found = boundary_match(string("|___"), reference, counted, shift=1)
    assert math.isnan(found.precision) and math.isnan(found.recall)  # neither the forced one nor where it would land
    assert boundary_match(string("||_|"), string("|__|"), counted).precision == 0.5


@pytest.mark.parametrize("tolerance", [0, 1, 2, 3])
def test_pairs_are_as_many_as_can_be(tolerance):
    generator = torch.Generator().manual_seed(tolerance)
    for _ in range(40):
        mine, theirs = (torch.rand(2, 9, generator=generator) < 0.4).unbind(0)
        given = [x.nonzero().squeeze(1).tolist() for x in (mine, theirs)]
        assert count_pairs(mine, theirs, tolerance) == most_pairs(*given, tolerance)
        assert count_pairs(mine, theirs, tolerance) == count_pairs(theirs, mine, tolerance)


def test_rows_are_not_paired_with_each_other():
    assert count_pairs(string("__||__").view(2, 3), string("_|____").view(2, 3), tolerance=1) == 1
    assert count_pairs(string("__|___").view(2, 3), string("___|__").view(2, 3), tolerance=2) == 0


def test_a_string_of_nothing_but_boundaries_gains_nothing_by_tolerance():
    reference = string("|__|__|__|__")
    for tolerance in (0, 1, 2):
        found = boundary_match(torch.ones(12), reference, tolerance=tolerance)
        assert (found.precision, found.recall) == (pytest.approx(1 / 3), 1.0)
        assert found.f1 == found.chance_f1


@pytest.mark.parametrize("number", [1, 3, 7])
def test_chance_is_the_mean_over_all_ways_to_lay_boundaries(number):
    """Enumerated; with a tolerance chance is drawn, 400 times here, by the same random numbers every time."""
    theirs, counted = string("|_|__||__|"), torch.arange(10) > 0
    ways = list(itertools.combinations(range(1, 10), number))
    for tolerance, error in ((0, 1e-12), (1, 0.05)):
        total = 0.0
        for way in ways:
            mine = torch.zeros(10)
            mine[list(way)] = 1
            total += boundary_match(mine, theirs, counted, tolerance=tolerance, draws=1).f1
        found = boundary_match(mine, theirs, counted, tolerance=tolerance, draws=400)
        assert found.chance_f1 == pytest.approx(total / len(ways), abs=error)


def test_ratios_without_a_denominator():
    none = boundary_match(torch.zeros(4), torch.zeros(4))
    assert all(math.isnan(x) for x in (none.precision, none.recall, none.f1, none.chance_f1))
    half = boundary_match(torch.zeros(4), torch.ones(4))
    assert math.isnan(half.precision) and (half.recall, half.f1, half.chance_f1) == (0.0, 0.0, 0.0)
    everything = boundary_match(torch.ones(4), torch.ones(4))
    assert (everything.precision, everything.recall, everything.f1, everything.chance_f1) == (1.0, 1.0, 1.0, 1.0)


def test_strings_must_be_of_one_text():
    with pytest.raises(ValueError, match=r"boundaries must be of one text, got shapes \[3\] and \[4\]"):
        boundary_match(torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match=r"counted must have the shape of boundaries, \[3\], got \[4\]"):
        boundary_match(torch.ones(3), torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match="counted must hold at least one byte, got none"):
        boundary_match(torch.ones(0), torch.ones(0))
    with pytest.raises(ValueError, match="tolerance must be an integer of at least 0, got -1"):
        boundary_match(torch.ones(3), torch.ones(3), tolerance=-1)

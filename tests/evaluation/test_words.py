"""Word edges by hand, and chance by enumeration."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from rltok_rl.evaluation import EDGES, word_edge_share, word_edges
from rltok_rl.text import text_to_ids


@pytest.mark.parametrize(
    ("text", "last", "space", "first"),
    [
        ("the cat", ". . # . . . #", ". . . # . . .", "# . . . # . ."),
        ("a, b", "# . . #", ". . . .", "# . . #"),  # the space follows a comma, not a word
        ("x  y", "# . . #", ". # . .", "# . . #"),  # the second space does not follow a word
        ("R2\n_d", ". # . . #", ". . # . .", "# . . . #"),  # digits belong to words, underscores do not
        ("é à", ". # . . #", ". . # . .", "# . . # ."),  # letters of two bytes
        ("@[`{", ". . . .", ". . . .", ". . . ."),  # the neighbours of letters in ASCII
        ("\x10\x19", ". .", ". .", ". ."),  # digits without a bit
    ],
)
def test_edges_by_hand(text, last, space, first):
    edges = word_edges(text_to_ids(text))
    for name, expected in zip(EDGES, (last, space, first), strict=False):
        assert ["#" if at else "." for at in edges[name].tolist()] == expected.split(), name
    assert torch.equal(edges["any"], edges["last_letter"] | edges["space"] | edges["first_letter"])


def test_letters_are_those_of_ascii():
    alone = torch.arange(128)[:, None]
    found = {chr(n) for n in word_edges(alone)["first_letter"].squeeze(1).nonzero().squeeze(1).tolist()}
    assert found == {chr(n) for n in range(128) if chr(n).isalnum()}


def test_rows_do_not_touch():
    rows = torch.stack([text_to_ids("ab c"), text_to_ids("d ef")])
    together = word_edges(rows)
    for row in range(2):
        for name in EDGES:
            assert torch.equal(together[name][row], word_edges(rows[row])[name])


def test_shares_by_hand():
    text = text_to_ids("the cat sat")  # last letters at 2, 6, 10; spaces at 3, 7; first letters at 0, 4, 8
    boundaries = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
    counted = torch.arange(11) > 0  # the first boundary is forced
    shares = word_edge_share(text, boundaries, counted)
    assert shares["last_letter"].share == pytest.approx(1 / 3)  # of boundaries 1, 2, 3
    assert shares["last_letter"].chance == pytest.approx(3 / 10)
    assert shares["last_letter"].covered == pytest.approx(1 / 3)
    assert (shares["first_letter"].share, shares["first_letter"].covered) == (0.0, 0.0)
    assert shares["first_letter"].chance == pytest.approx(2 / 10)
    assert (shares["any"].share, shares["any"].chance) == (pytest.approx(2 / 3), pytest.approx(7 / 10))
    for share in shares.values():
        assert share.lift == pytest.approx(share.covered / 0.3)  # the same comparison, with the rate


@pytest.mark.parametrize("number", [1, 2, 5])
def test_chance_is_the_mean_over_all_ways_to_lay_boundaries(number):
    """Enumerated: every way to lay that many boundaries on the counted bytes."""
    text = text_to_ids("to be, or")
    counted = torch.tensor([0, 1, 1, 1, 1, 1, 1, 0, 1], dtype=torch.bool)
    places = counted.nonzero().squeeze(1).tolist()
    totals = dict.fromkeys(EDGES, 0.0)
    ways = list(combinations(places, number))
    for way in ways:
        boundaries = torch.zeros(len(text), dtype=torch.bool)
        boundaries[list(way)] = True
        shares = word_edge_share(text, boundaries, counted)
        for name in EDGES:
            totals[name] += shares[name].share
    for name in EDGES:
        assert totals[name] / len(ways) == pytest.approx(shares[name].chance)


def test_without_boundaries_or_edges_there_is_no_share():
    none = word_edge_share(text_to_ids("ab"), torch.zeros(2))["any"]
    assert math.isnan(none.share) and none.chance == 1.0 and none.covered == 0.0
    nowhere = word_edge_share(text_to_ids("..."), torch.ones(3))["any"]
    assert (nowhere.share, nowhere.chance) == (0.0, 0.0) and math.isnan(nowhere.covered) and math.isnan(nowhere.lift)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"boundaries must have the shape of byte_ids, \[2\], got \[3\]"):
        word_edge_share(text_to_ids("ab"), torch.zeros(3))
    with pytest.raises(ValueError, match=r"counted must have the shape of byte_ids, \[2\], got \[1\]"):
        word_edge_share(text_to_ids("ab"), torch.zeros(2), torch.ones(1, dtype=torch.bool))
    with pytest.raises(ValueError, match="counted must hold at least one byte, got none"):
        word_edge_share(text_to_ids("ab"), torch.zeros(2), torch.zeros(2, dtype=torch.bool))

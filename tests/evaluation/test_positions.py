"""Positions in words by hand, and white space."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.evaluation import (
    place_share,
    position_from_end,
    position_from_start,
    white_space_share,
    word_edges,
    word_position_share,
)
from rltok_rl.text import text_to_ids


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("be, or", "0 1 x - 0 1", "1 0 - x 1 0"),
        ("a  b", "0 x - 0", "0 - x 0"),
        (" a\n", "- 0 x", "x 0 -"),
        ("é", "0 1", "1 0"),  # positions are in bytes
        ("...", "x x x", "x x x"),
        ("", "", ""),
    ],
)
def test_positions_by_hand(text, start, end):
    named = {"-": -1, "x": -2}
    for found, expected in ((position_from_start, start), (position_from_end, end)):
        assert found(text_to_ids(text)).tolist() == [named[x] if x in named else int(x) for x in expected.split()]


def test_positions_meet_the_edges_of_words():
    text = text_to_ids("To be, or not to be:\n that is the question 42 é€.")
    edges = word_edges(text)
    assert torch.equal(position_from_start(text) == 0, edges["first_letter"])
    assert torch.equal(position_from_end(text) == 0, edges["last_letter"])
    assert bool((position_from_end(text)[edges["space"]] == -1).all())


def test_rows_do_not_touch():
    rows = torch.stack([text_to_ids("ab c"), text_to_ids("d ef")])
    for found in (position_from_start, position_from_end):
        assert torch.equal(found(rows), torch.stack([found(row) for row in rows]))


def test_shares_by_hand():
    text = text_to_ids("the cat sat")  # words of 3 bytes at 0, 4, 8
    boundaries = torch.tensor([1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1])
    counted = torch.arange(11) > 0
    found = word_position_share(text, boundaries, counted, most=2)
    assert list(found["start"]) == list(found["end"]) == ["-1", "0", "1", "2+", "outside"]
    # Boundaries at 2 and 10 (last letters) and 3 and 7 (spaces).
    assert {name: one.share for name, one in found["end"].items()} == {
        "-1": 0.5,
        "0": 0.5,
        "1": 0.0,
        "2+": 0.0,
        "outside": 0.0,
    }
    assert {name: one.share for name, one in found["start"].items()} == {
        "-1": 0.5,
        "0": 0.0,
        "1": 0.0,
        "2+": 0.5,
        "outside": 0.0,
    }
    assert found["end"]["0"].chance == pytest.approx(3 / 10) and found["end"]["0"].covered == pytest.approx(2 / 3)
    assert found["start"]["0"].chance == pytest.approx(2 / 10)  # byte 0 is no decision
    assert found["end"]["-1"].lift == pytest.approx(0.5 / 0.2)


def test_shares_of_a_side_are_of_all_boundaries():
    torch.manual_seed(0)
    text = text_to_ids("It is a truth universally acknowledged, that a single man in possession of ... 1813.")
    for side in word_position_share(text, torch.rand(len(text)) < 0.3).values():
        assert sum(one.share for one in side.values()) == pytest.approx(1)
        assert sum(one.chance for one in side.values()) == pytest.approx(1)


def test_white_space_by_hand():
    text = text_to_ids("to \tbe\n")  # white space at 2, 3 and 6
    found = white_space_share(text, torch.tensor([1, 1, 1, 0, 0, 0, 1]), torch.arange(7) > 0)
    assert (found.share, found.covered) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found.chance == 0.5 and found.lift == pytest.approx(4 / 3)


def test_text_without_white_space_has_no_recall():
    found = white_space_share(text_to_ids("abc"), torch.tensor([1, 0, 1]))
    assert (found.share, found.chance) == (0.0, 0.0) and math.isnan(found.covered) and math.isnan(found.lift)
    none = white_space_share(text_to_ids("a c"), torch.zeros(3))
    assert math.isnan(none.share) and none.covered == 0.0
    everywhere = white_space_share(text_to_ids("a c"), torch.ones(3))
    assert (
        everywhere.share == everywhere.chance == pytest.approx(1 / 3) and everywhere.lift == everywhere.covered == 1.0
    )


def test_an_empty_text_is_refused():
    for share in (white_space_share, word_position_share):
        with pytest.raises(ValueError, match="counted must hold at least one byte, got none"):
            share(text_to_ids(""), torch.zeros(0))
    with pytest.raises(ValueError, match=r"boundaries must have the shape of byte_ids, \[2\], got \[3\]"):
        place_share(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="most must be an integer of at least 1, got 0"):
        word_position_share(text_to_ids("a"), torch.ones(1), most=0)

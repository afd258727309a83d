"""Word edges, positions in words, white space and characters: by hand, by Python's decoder, chance by enumeration."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.evaluation import (
    EDGES,
    inside_characters,
    place_share,
    position_from_end,
    position_from_start,
    split_character_share,
    white_space,
    white_space_share,
    word_edge_share,
    word_edges,
    word_position_share,
)
from rltok_rl.text import text_to_ids

EDGES_BY_HAND = (
    ("the cat", ". . # . . . #", ". . . # . . .", "# . . . # . ."),
    ("a, b", "# . . #", ". . . .", "# . . #"),  # the space follows a comma, not a word
    ("x  y", "# . . #", ". # . .", "# . . #"),  # the second space does not follow a word
    ("R2\n_d", ". # . . #", ". . # . .", "# . . . #"),  # digits belong to words, underscores do not
    ("é à", ". # . . #", ". . # . .", "# . . # ."),  # letters of two bytes
    ("@[`{", ". . . .", ". . . .", ". . . ."),  # the neighbours of letters in ASCII
    ("\x10\x19", ". .", ". .", ". ."),  # digits without a bit
)
POSITIONS_BY_HAND = (
    ("be, or", "0 1 x - 0 1", "1 0 - x 1 0"),
    ("a  b", "0 x - 0", "0 - x 0"),
    (" a\n", "- 0 x", "x 0 -"),
    ("é", "0 1", "1 0"),  # positions are in bytes
    ("...", "x x x", "x x x"),
    ("", "", ""),
)


def test_edges_by_hand():
    for text, *expected in EDGES_BY_HAND:
        edges = word_edges(text_to_ids(text))
        for name, marks in zip(EDGES, expected, strict=False):
            assert ["#" if at else "." for at in edges[name].tolist()] == marks.split(), (text, name)
        assert torch.equal(edges["any"], edges["last_letter"] | edges["space"] | edges["first_letter"])
    letters = word_edges(torch.arange(256)[:, None])["first_letter"].squeeze(1).nonzero().squeeze(1).tolist()
    assert letters == [n for n in range(256) if n >= 128 or chr(n).isalnum()]
    assert white_space(torch.arange(256)).nonzero().squeeze(1).tolist() == [*b"\t\n\v\f\r "]


def test_positions_by_hand():
    special = {"-": -1, "x": -2}
    for text, *expected in POSITIONS_BY_HAND:
        for function, marks in zip((position_from_start, position_from_end), expected, strict=True):
            positions = [special[x] if x in special else int(x) for x in marks.split()]
            assert function(text_to_ids(text)).tolist() == positions, text
    text = text_to_ids("To be, or not to be:\n that is the question 42 é€.")
    edges = word_edges(text)
    assert torch.equal(position_from_start(text) == 0, edges["first_letter"])
    assert torch.equal(position_from_end(text) == 0, edges["last_letter"])
    assert bool((position_from_end(text)[edges["space"]] == -1).all())


def test_rows_do_not_touch():
    rows = torch.stack([text_to_ids("ab c"), text_to_ids("d ef")])
    functions = [position_from_start, position_from_end, *(lambda x, name=name: word_edges(x)[name] for name in EDGES)]
    for function in functions:
        assert torch.equal(function(rows), torch.stack([function(row) for row in rows]))
    assert not inside_characters(torch.tensor([[0x61, 0xC3], [0xA9, 0x61]])).any()


def test_shares_by_hand():
    text = text_to_ids("the cat sat")  # last letters at 2, 6, 10; spaces at 3, 7; first letters at 0, 4, 8
    counted = torch.arange(11) > 0  # the first boundary is forced
    shares = word_edge_share(text, torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]), counted)
    last, first, both = shares["last_letter"], shares["first_letter"], shares["any"]
    assert (last.share, last.chance, last.covered) == pytest.approx((1 / 3, 3 / 10, 1 / 3))  # of boundaries 1, 2, 3
    assert (first.share, first.chance, first.covered) == pytest.approx((0.0, 2 / 10, 0.0))
    assert (both.share, both.chance) == pytest.approx((2 / 3, 7 / 10))
    for share in shares.values():
        assert share.lift == pytest.approx(share.covered / 0.3)  # the same comparison, with the rate
    # Boundaries at 2 and 10 (last letters) and 3 and 7 (spaces).
    sides = word_position_share(text, torch.tensor([1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1]), counted)
    none = dict.fromkeys(("-1", "0", "1", "2", "3", "4", "5", "6+", "outside"), 0.0)
    shares_of = {side: {name: at.share for name, at in shares.items()} for side, shares in sides.items()}
    assert shares_of == {
        "end": none | {"-1": 0.5, "0": 0.5},
        "start": none | {"-1": 0.5, "2": 0.5},
    }
    assert sides["end"]["0"].chance == pytest.approx(3 / 10) and sides["end"]["0"].covered == pytest.approx(2 / 3)
    assert sides["start"]["0"].chance == pytest.approx(2 / 10)  # byte 0 is no decision
    assert sides["end"]["-1"].lift == pytest.approx(0.5 / 0.2)
    # White space at 2, 3 and 6.
    space = white_space_share(text_to_ids("to \tbe\n"), torch.tensor([1, 1, 1, 0, 0, 0, 1]), torch.arange(7) > 0)
    assert (space.share, space.covered, space.chance, space.lift) == pytest.approx((2 / 3, 2 / 3, 0.5, 4 / 3))
    # The character at 1 to 3.
    split = split_character_share(text_to_ids("a€b"), torch.tensor([1, 1, 0, 1, 1]))
    assert (split.share, split.chance, split.covered) == (0.25, 0.4, 0.5)


def test_shares_of_a_side_are_of_all_boundaries(seeded):
    text = text_to_ids("It is a truth universally acknowledged, that a single man in possession of ... 1813.")
    for side in word_position_share(text, torch.rand(len(text), generator=seeded()) < 0.3).values():
        assert sum(at.share for at in side.values()) == pytest.approx(1)
        assert sum(at.chance for at in side.values()) == pytest.approx(1)


def test_ratios_without_a_denominator():
    none = word_edge_share(text_to_ids("ab"), torch.zeros(2))["any"]
    assert math.isnan(none.share) and none.chance == 1.0 and none.covered == 0.0
    for nowhere in (
        word_edge_share(text_to_ids("..."), torch.ones(3))["any"],
        white_space_share(text_to_ids("abc"), torch.tensor([1, 0, 1])),
        split_character_share(text_to_ids("abc"), torch.ones(3)),
    ):
        assert (nowhere.share, nowhere.chance) == (0.0, 0.0)
        assert math.isnan(nowhere.covered) and math.isnan(nowhere.lift)
    everywhere = place_share(torch.tensor([0, 1, 0]).bool(), torch.ones(3))
    assert everywhere.share == everywhere.chance == pytest.approx(1 / 3)
    assert everywhere.lift == everywhere.covered == 1.0


def test_bytes_inside_characters_by_hand():
    for text, marks in (
        ("aé€😀".encode(), ". # . # # . # # # ."),
        (b"\xc3", "."),  # cut off
        (b"\xe2\x82", ". ."),
        (b"\xe2\x82a\x80", ". . . ."),  # an end without its beginning
        (b"\xc0\x80", ". ."),  # too long for what it says
        (b"\xe0\x9f\xbf\xed\xa0\x80\xf4\x90\x80\x80", ". . . . . . . . . ."),  # overlong, surrogate, too large
        (b"\xc3\xc3\xa9", ". # ."),
        (b"", ""),
    ):
        assert ["#" if at else "." for at in inside_characters(text_to_ids(text)).tolist()] == marks.split(), text

"""Boundaries between stems and affixes: places by hand and by regular expressions, shares by counting."""

from __future__ import annotations

import math
import re

import pytest
import torch

from rltok_rl.data import packaged_novel
from rltok_rl.evaluation import AFFIXES, affix_places, affix_shares
from rltok_rl.text import text_to_ids


@pytest.mark.parametrize(
    ("text", "affix", "spelled", "others"),
    [
        ("walking", "-ing", [3], []),
        ("WALKING wIng", "-ing", [3], []),  # a stem of one letter is too short, and no other word either
        ("string bring garden", "-ing", [2], [15]),
        ("ed bed shed planted", "-ed", [16], []),
        ("slowly, lovely2", "-ly", [3], [12]),  # a digit is part of the word
        ("unhappy under sunny un", "un-", [1, 9], [15]),
        ("éting ingéing", "-ing", [2, 11], []),  # bytes beyond ASCII are letters: two here
    ],
)
def test_places_by_hand(text, affix, spelled, others):
    places = affix_places(text_to_ids(text), affix)
    assert [x.nonzero().flatten().tolist() for x in places] == [spelled, others]


@pytest.mark.parametrize("affix", AFFIXES)
def test_places_in_a_novel_are_those_of_a_regular_expression(affix):
    text = packaged_novel(60_000)
    letters = affix.strip("-").encode()
    word = rb"[A-Za-z0-9\x80-\xff]"
    pattern = rb"(?<!W)letters(?=W{3,})" if affix.endswith("-") else rb"W{3,}(?=letters(?!W))"
    pattern = pattern.replace(b"W", word).replace(b"letters", letters)
    expected = [match.end() - 1 for match in re.finditer(pattern, text, flags=re.IGNORECASE)]
    places, others = affix_places(text_to_ids(text), affix)
    assert places.nonzero().flatten().tolist() == expected and len(expected) > 5
    assert int(others.sum()) > len(expected) and not (places & others).any()


def test_shares_are_counted():
    byte_ids = text_to_ids("walking garden talking planet")  # other words with three letters before the last three
    marks = torch.zeros(len(byte_ids), dtype=torch.bool)
    marks[[3, 10, 0]] = True  # after "walk", after "gar" (three before its end), and at the forced first byte
    share = affix_shares(byte_ids, marks, torch.arange(len(byte_ids)) > 0)["-ing"]
    assert (share.places, share.covered, share.elsewhere, share.lift) == (2, 0.5, 0.5, 1.0)
    marks[18] = True  # after "talk"
    assert affix_shares(byte_ids, marks)["-ing"].lift == 2.0
    assert share.plain() == {"places": 2, "covered": 0.5, "elsewhere": 0.5, "lift": 1.0}
    assert math.isnan(affix_shares(byte_ids, marks)["un-"].covered)


def test_a_fixed_distance_from_the_end_of_words_has_no_lift():
    """A policy that knows ends of words, and no affixes."""
    byte_ids = text_to_ids(packaged_novel(60_000))
    places, others = affix_places(byte_ids, "-ing")
    assert affix_shares(byte_ids, places | others)["-ing"].lift == 1.0
    assert affix_shares(byte_ids, places)["-ing"].covered == 1.0


@pytest.mark.parametrize("affix", ["ing", "-Ing", "-", "un-ed", "-1"])
def test_affixes_are_letters_with_a_hyphen(affix):
    with pytest.raises(ValueError, match="affix must be lower-case letters with a hyphen before or after them, got"):
        affix_places(text_to_ids("walking"), affix)

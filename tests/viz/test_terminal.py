"""Coloured text shows every character once, with its marks and its colour."""

from __future__ import annotations

import re

import pytest

from rltok_rl.viz import boundary_text


def test_marks_follow_their_bytes():
    assert boundary_text(b"abc", [1, 0, 1], colour=False) == "a|bc|"
    assert boundary_text(b"abc", [1, 0, 1], colour=False, mark="·") == "a·bc·"


def test_character_of_several_bytes_takes_its_last_probability_and_all_marks():
    text = "aé".encode()
    assert boundary_text(text, [0, 1, 1], colour=False) == "aé||"
    low, high = (boundary_text(text, [0, 0, 0], p) for p in ([0, 1, 0], [0, 0, 1]))
    assert low != high
    assert low == boundary_text(text, [0, 0, 0], [0, 0, 0])


def test_bytes_that_are_no_text_are_spelled_out():
    assert boundary_text(b"\xff\x1ba\n", [0] * 4, colour=False) == "\\xff\\x1ba\n"
    assert boundary_text("é".encode()[:1], [0], colour=False) == "\\xc3"  # cut in the middle of a character


def test_colours_rise_with_probability_and_wrap_each_character():
    shown = boundary_text(b"ab", [0, 0], [0.0, 1.0])
    assert re.findall(r"\x1b\[38;5;(\d+)m(.)\x1b\[0m", shown) == [("24", "a"), ("226", "b")]


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="boundaries must have one entry per byte of text, 3, got 2"):
        boundary_text(b"abc", [1, 0])
    with pytest.raises(ValueError, match="probabilities must have one entry per byte of text, 3, got 1"):
        boundary_text(b"abc", [1, 0, 0], [0.5])

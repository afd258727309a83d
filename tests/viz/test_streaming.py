"""Streamed text is the text that is shown at once."""

from __future__ import annotations

import random

from rltok_rl.viz import boundary_text
from rltok_rl.viz.streaming import BoundaryStream


def test_byte_by_byte_is_all_at_once():
    dice = random.Random(0)
    alphabet = "aé€😀\n\x1b".encode() + b"\xff\xc0\xed\xa0\xf4\x90"  # whole and broken characters, controls, surrogates
    for _ in range(3000):
        text = bytes(dice.choice(alphabet) for _ in range(dice.randrange(9)))
        boundaries = [dice.random() < 0.4 for _ in text]
        shown = BoundaryStream()
        pieces = [shown.feed(byte, boundary) for byte, boundary in zip(text, boundaries, strict=True)]
        assert "".join(pieces) + shown.close() == boundary_text(text, boundaries, colour=False), text


def test_a_character_is_shown_as_soon_as_it_is_complete():
    shown = BoundaryStream(mark="·")
    assert [shown.feed(byte, True) for byte in "a€b".encode()] == ["a·", "", "", "€···", "b·"]
    assert [shown.feed(byte) for byte in b"\xe2a"] == ["", "\\xe2a"]
    assert shown.feed(0xF0) == "" and shown.close() == "\\xf0" and shown.close() == ""

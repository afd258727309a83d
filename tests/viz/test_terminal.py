"""Coloured text shows every character once, with its marks and its colour."""

from __future__ import annotations

import random
import re

import pytest
import torch

from rltok_rl.viz import boundary_pieces, boundary_text
from rltok_rl.viz.terminal import BoundaryStream, characters


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


def split_slowly(text):
    """One character after another, by trying how many bytes make one."""
    start = 0
    while start < len(text):
        for size in range(1, 5):
            try:
                character = text[start : start + size].decode("utf-8")
            except UnicodeDecodeError:
                continue
            break
        else:
            size, character = 1, None
        content = text[start : start + size]
        plain = character is not None and (character.isprintable() or character == "\n")
        yield start, start + size, character if plain else "".join(f"\\x{byte:02x}" for byte in content)
        start += size


def some_bytes(dice, most):
    alphabet = "aé€😀\n\x1b\u200b".encode() + b"\xff\xc0\xed\xa0\xf4\x90"  # whole and broken characters, surrogates
    return bytes(dice.choice(alphabet) for _ in range(dice.randrange(1, most)))


def test_characters_are_those_of_trying_every_length():
    dice = random.Random(0)
    for text in [*(some_bytes(dice, 12) for _ in range(2000)), "né ⏎ 😀€\t\xad".encode(), b""]:
        assert characters(text) == list(split_slowly(text))


def test_pieces_are_the_whole_text_and_never_cut_a_character():
    dice = random.Random(1)
    for _ in range(1000):
        text = some_bytes(dice, 20)
        boundaries = torch.tensor([dice.random() < 0.4 for _ in text])
        probabilities = torch.tensor([dice.random() for _ in text])
        piece = dice.randrange(1, 6)
        shown = list(boundary_pieces(text, boundaries, probabilities, piece=piece, colour=False))
        assert "".join(shown) == boundary_text(text, boundaries.tolist(), colour=False), (text, piece)
        assert len(shown) >= len(text) / (piece + 3)
        coloured = boundary_pieces(text, boundaries, probabilities, piece=piece, mark="·")
        whole = boundary_text(text, boundaries.tolist(), probabilities.tolist(), mark="·")
        each = [one_by_one(form) for form in ("".join(coloured), whole)]
        assert each[0] == each[1], (text, piece)
    with pytest.raises(ValueError, match="one entry per byte of text, 3, got 2 and 3"):
        list(boundary_pieces(b"abc", torch.zeros(2), torch.zeros(3)))


def one_by_one(shown):
    """Every character with its colour."""
    runs = re.findall(r"\x1b\[38;5;(\d+)m(.*?)\x1b\[0m", shown, flags=re.DOTALL)
    return [(colour, character) for colour, run in runs for character in run]


def test_a_stream_is_the_whole_text_and_shows_characters_when_they_are_complete():
    dice = random.Random(0)
    for _ in range(1000):
        text = some_bytes(dice, 10)
        boundaries = [dice.random() < 0.4 for _ in text]
        shown = BoundaryStream()
        pieces = [shown.feed(byte, boundary) for byte, boundary in zip(text, boundaries, strict=True)]
        assert "".join(pieces) + shown.close() == boundary_text(text, boundaries, colour=False), text
    shown = BoundaryStream(mark="·")
    assert [shown.feed(byte, True) for byte in "a€b".encode()] == ["a·", "", "", "€···", "b·"]
    assert [shown.feed(byte) for byte in b"\xe2a"] == ["", "\\xe2a"]
    assert shown.feed(0xF0) == "" and shown.close() == "\\xf0" and shown.close() == ""

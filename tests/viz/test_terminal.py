"""Coloured text shows every character once, with its marks and its colour."""

from __future__ import annotations

import random
import re

import pytest
import torch

from rltok_rl.viz import boundary_pieces, boundary_text
from rltok_rl.viz.terminal import BoundaryStream, characters


def test_marks_and_colours_follow_their_bytes():
    assert boundary_text(b"abc", [1, 0, 1], colour=False) == "a|bc|"
    assert boundary_text(b"abc", [1, 0, 1], colour=False, mark="·") == "a·bc·"
    assert boundary_text(b"\xff\x1ba\n", [0] * 4, colour=False) == "\\xff\\x1ba\n"
    assert boundary_text("é".encode()[:1], [0], colour=False) == "\\xc3"  # cut in the middle of a character
    assert coloured(boundary_text(b"ab", [0, 0], [0.0, 1.0])) == [("24", "a"), ("226", "b")]
    text = "aé".encode()
    assert boundary_text(text, [0, 1, 1], colour=False) == "aé||"
    early, late = (boundary_text(text, [0, 0, 0], p) for p in ([0, 1, 0], [0, 0, 1]))
    assert early == boundary_text(text, [0, 0, 0], [0, 0, 0]) != late  # the probability of the last byte


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="boundaries must have one entry per byte of text, 3, got 2"):
        boundary_text(b"abc", [1, 0])
    with pytest.raises(ValueError, match="probabilities must have one entry per byte of text, 3, got 1"):
        boundary_text(b"abc", [1, 0, 0], [0.5])
    with pytest.raises(ValueError, match="one entry per byte of text, 3, got 2 and 3"):
        list(boundary_pieces(b"abc", torch.zeros(2), torch.zeros(3)))


def coloured(shown):
    """Every character with its colour."""
    runs = re.findall(r"\x1b\[38;5;(\d+)m(.*?)\x1b\[0m", shown, flags=re.DOTALL)
    return [(colour, character) for colour, run in runs for character in run]


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
            size, character = 1, "\x00"
        plain = character.isprintable() or character == "\n"
        escapes = "".join(f"\\x{byte:02x}" for byte in text[start : start + size])
        yield start, start + size, character if plain else escapes
        start += size


def some_texts(number, most):
    """Texts of whole and broken characters, surrogates included, with decisions and probabilities."""
    dice = random.Random(0)
    alphabet = "aé€😀\n\x1b\u200b".encode() + b"\xff\xc0\xed\xa0\xf4\x90"
    for _ in range(number):
        text = bytes(dice.choice(alphabet) for _ in range(dice.randrange(1, most)))
        yield text, [dice.random() < 0.4 for _ in text], [dice.random() for _ in text]


def test_characters_are_those_of_trying_every_length():
    for text in [*(text for text, _, _ in some_texts(2000, 12)), "né ⏎ 😀€\t\xad".encode(), b""]:
        assert characters(text) == list(split_slowly(text))


def test_pieces_are_the_whole_text_and_never_cut_a_character():
    for number, (text, boundaries, probabilities) in enumerate(some_texts(1000, 20)):
        tensors, piece = (torch.tensor(boundaries), torch.tensor(probabilities)), 1 + number % 5
        shown = list(boundary_pieces(text, *tensors, piece=piece, colour=False))
        assert "".join(shown) == boundary_text(text, boundaries, colour=False), (text, piece)
        assert len(shown) >= len(text) / (piece + 3)
        pieces = "".join(boundary_pieces(text, *tensors, piece=piece, mark="·"))
        whole = boundary_text(text, boundaries, tensors[1].tolist(), mark="·")
        assert coloured(pieces) == coloured(whole), (text, piece)


def test_a_stream_is_the_whole_text_and_shows_characters_when_they_are_complete():
    for text, boundaries, _ in some_texts(1000, 10):
        shown = BoundaryStream()
        pieces = [shown.feed(byte, boundary) for byte, boundary in zip(text, boundaries, strict=True)]
        assert "".join(pieces) + shown.close() == boundary_text(text, boundaries, colour=False), text
    shown = BoundaryStream(mark="·")
    assert [shown.feed(byte, True) for byte in "a€b".encode()] == ["a·", "", "", "€···", "b·"]
    assert [shown.feed(byte) for byte in b"\xe2a"] == ["", "\\xe2a"]
    assert shown.feed(0xF0) == "" and shown.close() == "\\xf0" and shown.close() == ""

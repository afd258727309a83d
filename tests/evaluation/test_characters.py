"""Boundaries inside characters, against Python's own decoder."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.evaluation import inside_characters, split_character_share
from rltok_rl.text import text_to_ids


def slow(text: bytes) -> list[bool]:
    """Python's decoder keeps every byte that is part of no character apart, as a surrogate."""
    inside: list[bool] = []
    for letter in text.decode("utf-8", errors="surrogateescape"):
        size = len(letter.encode("utf-8", errors="surrogateescape"))
        inside += [True] * (size - 1) + [False]
    return inside


@pytest.mark.parametrize(
    "text",
    [
        "aé€😀".encode(),
        b"\xc3",  # cut off
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xe2\x82a\x80",  # an end without its beginning
        b"\xc0\x80",  # too long for what it says
        b"\xe0\x9f\xbf\xed\xa0\x80\xf4\x90\x80\x80",  # too long, a surrogate, beyond the last character
        b"\xff\xfe\x00",
        b"\xc3\xc3\xa9",
        b"",
    ],
)
def test_characters_by_python(text):
    assert inside_characters(text_to_ids(text)).tolist() == slow(text)


def test_random_bytes():
    """Bytes of which many are well-formed: drawn from the parts that characters are made of."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.tensor(list(bytes.fromhex("61 80 8f 90 9f a0 bf c0 c2 df e0 e1 ed ee ef f0 f1 f4 f5 ff")))
    text = bytes(parts[torch.randint(len(parts), (20_000,), generator=generator)].tolist())
    expected = slow(text)
    assert inside_characters(text_to_ids(text)).tolist() == expected and sum(expected) > 1000


def test_rows_do_not_touch():
    rows = torch.tensor([[0x61, 0xC3], [0xA9, 0x61]])
    assert not inside_characters(rows).any()


def test_shares_by_hand():
    text = text_to_ids("a€b")  # the character at 1 to 3
    found = split_character_share(text, torch.tensor([1, 1, 0, 1, 1]))
    assert (found.share, found.chance, found.covered) == (0.25, 0.4, 0.5)
    plain = split_character_share(text_to_ids("abc"), torch.ones(3))
    assert (plain.share, plain.chance) == (0.0, 0.0) and math.isnan(plain.covered)

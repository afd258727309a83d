"""Pieces of a tokenizer as boundaries: one byte to the right, and how far they look ahead all the same."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import BPESegmenter, make_segmenter, starts_of_pieces, train_bpe

from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

from .definition import TEXT

HELLO = {b"hello": 0, b"_token": 0, b"ization": 0}


def boundaries_of(segmenter, text) -> list[int]:
    ids = text_to_ids(text)[None]
    return segmenter(torch.zeros(*ids.shape, 1), ids).boundaries[0].int().tolist()


def leaked_share(segmenter, text: bytes) -> float:
    """Share of prefixes whose boundaries are others in the whole text."""
    whole = boundaries_of(segmenter, text)
    return sum(boundaries_of(segmenter, text[:n]) != whole[:n] for n in range(1, len(text))) / (len(text) - 1)


def test_hello_tokenization():
    """Pieces hello, _token, ization: boundaries at h, at _ and at i, the first bytes after each piece's end."""
    segmenter = BPESegmenter(lambda text: [len(piece) for piece in HELLO])
    text = b"hello_tokenization"
    drawn = boundaries_of(segmenter, text)
    assert [text[t : t + 1] for t, a in enumerate(drawn) if a] == [b"h", b"_", b"i"]
    ends = [sum(len(p) for p in list(HELLO)[: k + 1]) - 1 for k in range(2)]  # o and n
    assert [t for t, a in enumerate(drawn) if a][1:] == [end + 1 for end in ends]


def test_places_are_bytes_whatever_the_characters():
    split = train_bpe([TEXT], vocabulary=300)
    for text in (TEXT.encode(), "日本語".encode()[1:], "é".encode()[:1], b"\xff\x80 a\xc3", bytes(range(256))):
        lengths = split(text)
        assert sum(lengths) == len(text) and min(lengths) >= 1
    pieces = split.tokenizer.encode(TEXT).tokens
    assert split(TEXT.encode()) == [len(piece) for piece in pieces]
    assert split.tokenizer.decode(split.tokenizer.encode(TEXT).ids) == TEXT


def test_greedy_merging_looks_ahead_and_spaces_do_not():
    split = train_bpe([TEXT * 3], vocabulary=320)
    assert 0.05 < leaked_share(BPESegmenter(split), TEXT.encode()) < 1
    single = BPESegmenter(lambda text: [1] * len(text))
    assert leaked_share(single, TEXT.encode()) == 0


def test_more_vocabulary_means_fewer_boundaries():
    rates = [sum(boundaries_of(BPESegmenter(train_bpe([TEXT * 3], vocabulary=size)), TEXT)) for size in (256, 280, 340)]
    assert rates[0] == len(TEXT.encode()) and rates == sorted(rates, reverse=True) and rates[2] < rates[1]


def test_misuse_is_said_by_name():
    model = UNet(preset("tiny"))
    with pytest.raises(ValueError, match="tokenizer must be a function from bytes to lengths of pieces"):
        make_segmenter("bpe", model)
    with pytest.raises(ValueError, match="split must give lengths that add up to 3 bytes, got 1"):
        boundaries_of(BPESegmenter(lambda text: [1]), b"abc")
    with pytest.raises(ValueError, match="vocabulary must be an integer of at least 256, got 10"):
        train_bpe(["a"], vocabulary=10)
    with pytest.raises(ValueError, match="lengths must be an integer of at least 1, got 0"):
        starts_of_pieces([2, 0])

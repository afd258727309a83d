"""Epochs: every window once, in an order that goes on where it stopped."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from rltok_rl.data import CachedSource, OrderedSource, RepeatedSource, TextSource, write_cache
from rltok_rl.text import ids_to_bytes

TEXTS = [b"abcdefg", b"hijklmnop", b"qrst", b"uvwxyzABC", b"0123456789"]


def make(seed=0, length=4, **options):
    return OrderedSource(TextSource(TEXTS, short_documents="whole"), length=length, seed=seed, **options)


def rows(source, num_rows, length=4):
    windows = source.draw(num_rows, length)
    return [ids_to_bytes(row[:size]) for row, size in zip(windows.byte_ids, windows.lengths.tolist(), strict=True)]


def cut(text: bytes, length: int, tail: str) -> list[bytes]:
    """The windows of a text by the definition."""
    parts = [text[at : at + length] for at in range(0, len(text) - 1, length - 1)]
    if len(parts[-1]) < length and tail != "short":
        parts[-1:] = [] if tail == "drop" else [text[-length:]]
    return parts


@pytest.mark.parametrize("tail", ["overlap", "short", "drop"])
@pytest.mark.parametrize("length", [2, 4, 5, 9])
def test_an_epoch_has_every_window_once(tail, length):
    """Three epochs, each a permutation of the windows of the definition, in three orders."""
    source = make(length=length, tail=tail)
    want = [window for text in TEXTS for window in cut(text, length, tail)]
    assert source.num_windows == len(want)
    epochs = [rows(source, len(want), length) for _ in range(3)]
    for epoch in epochs:
        assert Counter(epoch) == Counter(want)
    assert source.epoch == 3 and (len(want) < 5 or len({tuple(epoch) for epoch in epochs}) == 3)
    met = sum(len(window) - 1 for window in want)
    steps = sum(len(text) - 1 for text in TEXTS)
    assert source.dropped_bytes == (steps - met if tail == "drop" else 0)
    if tail == "short":
        assert met == steps  # every byte but a document's first is predicted exactly once


def test_ends_of_documents():
    source = make(tail="short")
    windows = source.draw(source.num_windows, 4)
    assert int(windows.ends.sum()) == len(TEXTS)
    for row, size, end in zip(windows.byte_ids, windows.lengths.tolist(), windows.ends.tolist(), strict=True):
        assert end == any(text.endswith(ids_to_bytes(row[:size])) for text in TEXTS)


def test_the_order_is_the_seeds():
    """However it is asked for, whatever generator is handed over, from memory or from disk."""
    whole = rows(make(), 40)
    pieces = make()
    assert [row for n in (1, 7, 0, 30, 2) for row in rows(pieces, n)] == whole
    torch.manual_seed(9)
    other = make()
    assert torch.equal(other.draw(5, 4, torch.Generator().manual_seed(1)).byte_ids, make().draw(5, 4).byte_ids)
    assert rows(make(seed=1), 40) != whole
    # Epoch 1 of seed 0 is not epoch 0 of seed 1.
    assert not torch.equal(make(seed=0).order(1), make(seed=1).order(0))


def test_an_order_of_a_cache(tmp_path):
    write_cache(TEXTS, tmp_path / "cache")
    cached = CachedSource(tmp_path / "cache", short_documents="whole")
    assert rows(OrderedSource(cached, length=4, seed=0), 40) == rows(make(), 40)


@pytest.mark.parametrize("stop", [0, 3, 14, 15, 33])
def test_it_goes_on_where_it_stopped(stop):
    whole = rows(make(), 50)
    first = make()
    before = rows(first, stop)
    state = first.state_dict()
    rows(first, 5)
    second = make()
    rows(second, 8)
    second.load_state_dict(state)
    assert before + rows(second, 50 - stop) == whole
    assert all(type(value) in (int, str) for value in state.values())


def test_states_of_other_orders_are_refused():
    state = make().state_dict()
    for other, message in (
        (make(seed=1), "same order of the same documents \\(seed: 0 there, 1 here\\)"),
        (make(length=5), "length: 4 there, 5 here, windows: 12 there, 10 here"),
        (make(tail="drop"), "tail: 'overlap' there, 'drop' here"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"state must have the keys \['drawn', .*\], got \[\]"):
        make().load_state_dict({})


def test_repeated_windows_of_an_order():
    source = RepeatedSource(make(), 2)
    drawn = rows(source, 8)
    assert drawn[::2] == drawn[1::2] == rows(make(), 4)
    state = source.state_dict()
    assert state["drawn"] == 4
    other = RepeatedSource(make(), 2)
    other.load_state_dict(state)
    assert rows(other, 8) == rows(source, 8)


def test_orders_that_cannot_be():
    with pytest.raises(ValueError, match="length must be 4, which the order was made for, got 5"):
        make().draw(1, 5)
    with pytest.raises(ValueError, match=r"tail must be one of \['overlap', 'short', 'drop'\], got 'keep'"):
        make(tail="keep")
    with pytest.raises(
        ValueError, match="window of 20 bytes with tail='drop', got 10 bytes in the longest, document 4"
    ):
        make(length=20, tail="drop")
    with pytest.raises(ValueError, match="at least the 8 bytes of a window, got 7 in document 0"):
        OrderedSource(TextSource(TEXTS), length=8, seed=0)
    with pytest.raises(TypeError, match="source must hold documents .*, got OrderedSource"):
        OrderedSource(make(), length=4, seed=0)

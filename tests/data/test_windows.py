"""Windows: which are drawn, how often, and in what order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from rltok_rl.data import CachedSource, OrderedSource, RepeatedSource, TextSource, write_cache
from rltok_rl.data.windows import given_windows
from rltok_rl.text import ids_to_bytes

from ..each import each, refused

# Documents that fit one window exactly, first, in the middle and last; others of different lengths.
TEXTS = [b"01234", b"abcdefghij", b"ABCDE", b"klmnopqrstuvw", b"56789"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(windows) -> list[tuple[bytes, bool]]:
    listed = zip(windows.byte_ids, windows.lengths.tolist(), windows.ends.tolist(), strict=True)
    return [(ids_to_bytes(row[:size]), end) for row, size, end in listed]


def equal(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))


# Random places


def definition(num_rows: int, length: int, seed: int) -> list[tuple[bytes, bool]]:
    """Windows and whether they end their document, from a list of all places."""
    every = [(text, start) for text in TEXTS for start in range(max(1, len(text) - length + 1))]
    drawn = [every[n] for n in torch.randint(len(every), (num_rows,), generator=generator(seed)).tolist()]
    return [(text[start:][:length], start + length >= len(text)) for text, start in drawn]


def test_draws_are_those_of_the_definition():
    """All places in the order of the documents, one uniform integer each, for one length after another."""
    source = TextSource(TEXTS)
    for length in (5, 2, 5, 4):
        drawn = rows(source.draw(500, length, generator(3)))
        assert drawn == definition(500, length, seed=3)
        # One of at most 33 places is missed with a probability of at most 33 (32/33)^500 = 7e-6; the seed is fixed.
        assert {w for w, _ in drawn} == {t[s : s + length] for t in TEXTS for s in range(len(t) - length + 1)}
    short = TextSource(TEXTS, short_documents="whole").draw(300, 8, generator(5))
    assert rows(short) == definition(300, 8, seed=5)
    assert short.byte_ids.dtype == torch.int64 and set(short.lengths.tolist()) == {5, 8}
    assert not short.byte_ids[torch.arange(8) >= short.lengths[:, None]].any()


def test_places_are_equally_likely():
    """23 places, 1000 draws for each: one of the counts is 6 deviations off with a probability below 1e-7."""
    drawn = Counter(window for window, _ in rows(TextSource(TEXTS).draw(23_000, 4, generator(1))))
    assert len(drawn) == 23 and all(abs(count - 1000) < 6 * 1000**0.5 for count in drawn.values())


def test_documents_come_back():
    source = TextSource(["aé", b"\xff\x00"])
    assert list(source.documents()) == [b"a\xc3\xa9", b"\xff\x00"]
    assert source.num_documents == 2 and source.num_bytes == 5
    six = r"at least the 6 bytes of a window, got 5 in document 0 \(3 of 5"
    longest = r"14 bytes of a window, got 13 in document 3, the longest \(5 of 5 are too"
    whole = r"short_documents must be one of \['error', 'whole'\], got 'drop'"
    refused(
        (lambda: source.document(2), IndexError, "number must lie in 0..1, got 2"),
        (lambda: TextSource(TEXTS).draw(1, 6), ValueError, six),
        (lambda: TextSource(TEXTS).check_length(14), ValueError, longest),
        (lambda: TextSource(TEXTS).draw(1, 1), ValueError, "length must be at least 2"),
        (lambda: TextSource([]), ValueError, "documents must hold at least one text, got none"),
        (lambda: TextSource(["ab", "c"]), ValueError, "at least 2 bytes each .*, got 1 in document 1"),
        (lambda: TextSource(["ab", 3]), TypeError, "text must be str or bytes, got int"),
        (lambda: TextSource("abc", short_documents="drop"), ValueError, whole),
        (lambda: TextSource(Path("a")), TypeError, r"must be texts, got PosixPath\('a'\); read_documents\(path\)"),
        (lambda: TextSource(5), TypeError, "documents must be a text or several, str or bytes, got int"),
        (lambda: given_windows(Path("a"), 1, 8), TypeError, r"one per row that starts, got PosixPath\('a'\)"),
    )


# Several rows with one text


def test_repeated_rows_are_the_rows_of_the_source():
    text = TextSource(TEXTS)
    once, thrice = text.draw(4, 5, generator(2)), RepeatedSource(text, 3).draw(12, 5, generator(2))
    assert rows(thrice) == [row for row in rows(once) for _ in range(3)] and len(set(rows(once))) > 1
    source = RepeatedSource(text, 2)
    assert source.state_dict() == {}
    refused(
        (lambda: source.draw(3, 4), ValueError, "num_rows must be a multiple of times=2, got 3"),
        (lambda: source.check_length(20), ValueError, "bytes of a window, got 13 in document 3"),
        (lambda: RepeatedSource("abc", 2), TypeError, "source must be a WindowSource, got str"),
        (lambda: RepeatedSource(text, 0), ValueError, "times must be an integer of at least 1, got 0"),
        (lambda: source.load_state_dict({"drawn": 3}), ValueError, r"empty for TextSource, got the keys \['drawn'\]"),
    )


# Epochs


def ordered(seed=0, length=4, **options):
    return OrderedSource(TextSource(TEXTS, short_documents="whole"), length=length, seed=seed, **options)


def deal(source, num_rows, length=4):
    return [window for window, _ in rows(source.draw(num_rows, length))]


def cut(text: bytes, length: int, tail: str) -> list[bytes]:
    """The windows of a text by the definition."""
    parts = [text[at : at + length] for at in range(0, len(text) - 1, length - 1)]
    if len(parts[-1]) < length and tail != "short":
        parts[-1:] = [] if tail == "drop" else [text[-length:]]
    return parts


@each(tail=["overlap", "short", "drop"], length=[2, 4, 5, 9])
def test_an_epoch_has_every_window_once(tail, length):
    """Three epochs, each a permutation of the windows of the definition, in three orders."""
    source = ordered(length=length, tail=tail)
    expected = [window for text in TEXTS for window in cut(text, length, tail)]
    epochs = [source.draw(source.num_windows, length) for _ in range(3)]
    for epoch in epochs:
        assert Counter(window for window, _ in rows(epoch)) == Counter(expected)
        assert all(end == any(text.endswith(window) for text in TEXTS) for window, end in rows(epoch))
    assert source.epoch == 3 and (len(expected) < 5 or len({tuple(rows(epoch)) for epoch in epochs}) == 3)
    predicted = sum(len(window) - 1 for window in expected)
    steps = sum(len(text) - 1 for text in TEXTS)
    assert source.dropped_bytes == (steps - predicted if tail == "drop" else 0)
    assert tail != "short" or predicted == steps  # every byte but a document's first is predicted exactly once


def test_the_order_depends_on_the_seed_alone(tmp_path):
    """However it is asked for, whatever generator is given, from memory or from disk, resumed anywhere."""
    whole = deal(ordered(), 50)
    pieces = ordered()
    assert [row for n in (1, 7, 0, 30, 12) for row in deal(pieces, n)] == whole
    assert equal(ordered().draw(5, 4, generator(1)), ordered().draw(5, 4))
    assert deal(ordered(seed=1), 50) != whole
    assert not torch.equal(ordered(seed=0).order(1), ordered(seed=1).order(0))
    write_cache(TEXTS, tmp_path / "cache")
    cached = CachedSource(tmp_path / "cache", short_documents="whole")
    assert deal(OrderedSource(cached, length=4, seed=0), 50) == whole
    for stop in (0, 3, 11, 12, 33):
        first, second = ordered(), ordered()
        before = deal(first, stop)
        state = first.state_dict()
        assert all(type(value) in (int, str) for value in state.values())
        deal(first, 5), deal(second, 8)
        second.load_state_dict(state)
        assert before + deal(second, 50 - stop) == whole
    source, other = RepeatedSource(ordered(), 2), RepeatedSource(ordered(), 2)
    drawn = deal(source, 8)
    assert drawn[::2] == drawn[1::2] == whole[:4]
    other.load_state_dict(source.state_dict())
    assert deal(other, 8) == deal(source, 8)


def test_refused_orders():
    state, text = ordered().state_dict(), TextSource(TEXTS)
    other_seed = "same order of the same documents \\(seed: 0 there, 1 here\\)"
    other_length = r"length: 4 there, 5 here, windows: \d+ there, \d+ here"
    longest = "window of 20 bytes with tail='drop', got 13 bytes in the longest, document 3"
    refused(
        (lambda: ordered(seed=1).load_state_dict(state), ValueError, other_seed),
        (lambda: ordered(length=5).load_state_dict(state), ValueError, other_length),
        (lambda: ordered(tail="drop").load_state_dict(state), ValueError, "tail: 'overlap' there, 'drop' here"),
        (lambda: ordered().load_state_dict({}), ValueError, r"state must have the keys \['drawn', .*\], got \[\]"),
        (lambda: ordered().draw(1, 5), ValueError, "length must be 4, which the order was made for, got 5"),
        (lambda: ordered(tail="keep"), ValueError, r"one of \['overlap', 'short', 'drop'\], got 'keep'"),
        (lambda: ordered(length=20, tail="drop"), ValueError, longest),
        (lambda: OrderedSource(text, length=8, seed=0), ValueError, "least the 8 bytes of a window, got 5 in document"),
        (lambda: OrderedSource(ordered(), length=4, seed=0), TypeError, "hold documents .*, got OrderedSource"),
    )

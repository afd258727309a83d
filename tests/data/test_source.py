"""Windows of documents in memory: which are drawn, how often, and what is said of them."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.data import RepeatedSource, TextSource
from rltok_rl.text import ids_to_bytes

# A document that fits one window exactly, first, in the middle and last; others of different lengths.
TEXTS = [b"01234", b"abcdefghij", b"ABCDE", b"klmnopqrstuvw", b"56789"]


def definition(texts: list[bytes], num_rows: int, length: int, seed: int) -> list[tuple[bytes, bool]]:
    """Windows and whether they end their document, from a list of all places."""
    every = [(text, start) for text in texts for start in range(max(1, len(text) - length + 1))]
    drawn = torch.randint(len(every), (num_rows,), generator=torch.Generator().manual_seed(seed)).tolist()
    windows = [(every[n][0][every[n][1] :][:length], every[n]) for n in drawn]
    return [(window, text.endswith(window) and start + len(window) == len(text)) for window, (text, start) in windows]


def listed(windows) -> list[tuple[bytes, bool]]:
    rows = zip(windows.byte_ids, windows.lengths.tolist(), windows.ends.tolist(), strict=True)
    return [(ids_to_bytes(row[:size]), end) for row, size, end in rows]


@pytest.mark.parametrize("length", [2, 4, 5])
def test_draws_are_those_of_the_definition(length):
    """All places in the order of the documents, one uniform integer each: 500 draws of at most 33 places meet them all.

    One is missed with a probability of at most 33 (32/33)^500 = 7e-6; the seed is fixed.
    """
    drawn = listed(TextSource(TEXTS).draw(500, length, torch.Generator().manual_seed(3)))
    assert drawn == definition(TEXTS, 500, length, seed=3)
    assert {w for w, _ in drawn} == {t[s : s + length] for t in TEXTS for s in range(len(t) - length + 1)}


def test_short_documents_are_drawn_whole():
    source = TextSource(TEXTS, short_documents="whole")
    windows = source.draw(300, 8, torch.Generator().manual_seed(5))
    assert listed(windows) == definition(TEXTS, 300, 8, seed=5)
    assert windows.byte_ids.dtype == torch.int64 and set(windows.lengths.tolist()) == {5, 8}
    beyond = torch.arange(8) >= windows.lengths[:, None]
    assert (windows.byte_ids[beyond] == 0).all() and (windows.byte_ids[~beyond] != 0).all()


def test_only_the_last_window_ends_its_document():
    windows = TextSource("abcdefgh").draw(400, 5, torch.Generator().manual_seed(0))
    for window, end in listed(windows):
        assert end == (window == b"defgh")
    assert windows.ends.any() and not windows.ends.all()


def test_places_are_equally_likely():
    """23 places, 1000 draws for each: one of the counts is 6 deviations off with a probability below 1e-7."""
    drawn = listed(TextSource(TEXTS).draw(23_000, 4, torch.Generator().manual_seed(1)))
    counts = [sum(w == t[s : s + 4] for w, _ in drawn) for t in TEXTS for s in range(len(t) - 3)]
    assert len(counts) == 23 and sum(counts) == 23_000
    assert all(abs(count - 1000) < 6 * 1000**0.5 for count in counts)


def test_one_length_after_another():
    """What is remembered of one window length is not taken for another."""
    source = TextSource(TEXTS)
    for length in (5, 2, 5, 4):
        drawn = listed(source.draw(50, length, torch.Generator().manual_seed(length)))
        assert drawn == definition(TEXTS, 50, length, seed=length)
    with pytest.raises(ValueError, match="at least the 6 bytes of a window, got 5 in document 0 \\(3 of 5"):
        source.draw(1, 6)


def test_a_window_longer_than_every_document_names_the_longest():
    with pytest.raises(ValueError, match=r"14 bytes of a window, got 13 in document 3, the longest \(5 of 5 are too"):
        TextSource(TEXTS).check_length(14)
    with pytest.raises(ValueError, match="length must be at least 2"):
        TextSource(TEXTS).draw(1, 1)


def test_documents_come_back():
    source = TextSource(["aé", b"\xff\x00"])
    assert list(source.documents()) == [b"a\xc3\xa9", b"\xff\x00"]
    assert source.num_documents == 2 and source.num_bytes == 5
    with pytest.raises(IndexError, match="number must lie in 0..1, got 2"):
        source.document(2)


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        ([], ValueError, "documents must hold at least one text, got none"),
        (["ab", "c"], ValueError, "at least 2 bytes each .*, got 1 in document 1"),
        (["ab", 3], TypeError, "text must be str or bytes, got int"),
    ],
)
def test_bad_documents(documents, error, message):
    with pytest.raises(error, match=message):
        TextSource(documents)
    with pytest.raises(ValueError, match=r"short_documents must be one of \['error', 'whole'\], got 'drop'"):
        TextSource("abc", short_documents="drop")


def test_repeated_rows_are_the_rows_of_the_source():
    text = TextSource(TEXTS)
    once = text.draw(4, 5, torch.Generator().manual_seed(2))
    thrice = RepeatedSource(text, 3).draw(12, 5, torch.Generator().manual_seed(2))
    for name in ("byte_ids", "lengths", "ends"):
        assert torch.equal(getattr(thrice, name), getattr(once, name).repeat_interleave(3, 0))
    assert len({bytes(row.tolist()) for row in once.byte_ids}) > 1


def test_repeated_refuses_what_it_cannot_do():
    source = RepeatedSource(TextSource(TEXTS), 2)
    with pytest.raises(ValueError, match="num_rows must be a multiple of times=2, got 3"):
        source.draw(3, 4)
    with pytest.raises(ValueError, match="bytes of a window, got 13 in document 3"):
        source.check_length(20)
    with pytest.raises(TypeError, match="source must be a WindowSource, got str"):
        RepeatedSource("abc", 2)
    with pytest.raises(ValueError, match=r"state must be empty for TextSource, got the keys \['drawn'\]"):
        source.load_state_dict({"drawn": 3})
    assert source.state_dict() == {}

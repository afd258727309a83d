"""Which documents are kept, and what is said of the others."""

from __future__ import annotations

import pytest

from rltok_rl.data import LengthFilter


def test_the_papers_lengths():
    """At least 4096 bytes, cut to exactly 4096."""
    texts = [b"a" * 4095, b"b" * 4096, b"c" * 4097, b"", b"d" * 9000]
    some = LengthFilter(texts)
    assert list(some) == [b"b" * 4096, b"c" * 4096, b"d" * 4096]
    report = some.report
    assert (report.kept, report.kept_bytes) == (3, 3 * 4096)
    assert (report.dropped, report.dropped_bytes) == (2, 4095)
    assert (report.cut, report.cut_bytes) == (2, 1 + 9000 - 4096)
    assert report.kept_bytes + report.dropped_bytes + report.cut_bytes == sum(map(len, texts))
    assert str(report) == (
        "kept 3 of 5 documents (12,288 of 21,288 bytes); dropped 2 with fewer than 4,096 bytes (4,095 bytes); "
        "cut 2 to their first 4,096 bytes (4,905 bytes cut off)"
    )


def test_lengths_are_in_bytes_and_a_cut_may_split_a_character():
    some = LengthFilter(["éé", "é"], min_bytes=4, max_bytes=3)
    assert list(some) == [b"\xc3\xa9\xc3"]
    assert list(LengthFilter(["ééé"], min_bytes=2, max_bytes=None)) == ["ééé".encode()]
    assert str(LengthFilter([], max_bytes=None).report).endswith("fewer than 4,096 bytes (0 bytes)")


def test_a_second_pass_counts_anew():
    some = LengthFilter(["abc", "d"], min_bytes=2)
    assert list(some) == list(some) == [b"abc"]
    assert (some.report.kept, some.report.dropped) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"min_bytes": 1}, "min_bytes must be at least 2"), ({"max_bytes": 1}, "max_bytes must be at least 2 or None")],
)
def test_bad_bounds(options, message):
    with pytest.raises(ValueError, match=message):
        LengthFilter([], **options)


def test_one_text_is_not_several():
    with pytest.raises(TypeError, match="documents must be several texts, got one"):
        LengthFilter("abc")

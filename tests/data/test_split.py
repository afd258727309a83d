"""Held-out documents: none is on both sides, and none changes sides."""

from __future__ import annotations

import re

import pytest
import torch

from rltok_rl.data import CachedSource, GroupedDocument, TextSource, local_prose, split_documents, write_cache

TEXTS = [f"document {n} of them" for n in range(2000)]


def sides(texts, held_out=0.1):
    split = split_documents(TextSource(texts), held_out)
    return set(split.train.documents()), set(split.held_out.documents()), split


def test_every_document_is_on_one_side():
    """2000 documents, a tenth held out: 200 with deviation 13; 6 deviations leave 2e-9, and the hash is fixed."""
    train, held, split = sides(TEXTS)
    assert not train & held and train | held == {text.encode() for text in TEXTS}
    assert split.by == "document" and abs(len(held) - 200) < 6 * 13.5
    assert str(split) == (
        f"{len(train):,} documents ({split.train.num_bytes:,} bytes) to train on, "
        f"{len(held)} documents ({split.held_out.num_bytes:,} bytes) held out; by a hash of each document"
    )


def test_sides_do_not_depend_on_the_other_documents():
    _, held, _ = sides(TEXTS)
    _, some, _ = sides(TEXTS[1000:][::-1] + ["new " + text for text in TEXTS])
    assert some & {text.encode() for text in TEXTS[1000:]} == held & {text.encode() for text in TEXTS[1000:]}
    _, fewer, _ = sides(TEXTS, 0.05)
    assert fewer < held  # a smaller share is a part of a larger one


def test_equal_documents_stay_together():
    _, _, split = sides(TEXTS + TEXTS[::-1])
    for side in (split.train, split.held_out):
        found = list(side.documents())
        assert len(found) == 2 * len(set(found))


def test_sides_are_those_of_yesterday():
    """The hash is part of what a split means: with another one, held-out documents would be trained on."""
    assert TextSource(["to be", "or not to be"]).keys().tolist() == [-6746568687839946929, 534765396661025759]


def test_a_cache_is_split_like_memory(tmp_path):
    write_cache(TEXTS, tmp_path / "cache")
    cached = CachedSource(tmp_path / "cache")
    assert torch.equal(cached.keys(), TextSource(TEXTS).keys())
    split, memory = split_documents(cached, 0.1), split_documents(TextSource(TEXTS), 0.1)
    assert list(split.held_out.documents()) == list(memory.held_out.documents())
    for one, two in ((split.train, memory.train), (split.held_out, memory.held_out)):
        a, b = (source.draw(40, 12, torch.Generator().manual_seed(0)).byte_ids for source in (one, two))
        assert torch.equal(a, b)
    # A part of a cache looks its hashes up on disk; documents that are cut anew have none there.
    assert torch.equal(split.train.keys(), memory.train.keys())
    cut = memory.train.with_documents(memory.train.starts, memory.train.lengths - 1)
    assert torch.equal(split.train.with_documents(split.train.starts, split.train.lengths - 1).keys(), cut.keys())
    again, fresh = split_documents(split.train, 0.5), split_documents(memory.train, 0.5)
    assert list(again.held_out.documents()) == list(fresh.held_out.documents())


def test_windows_stay_on_their_side():
    split = split_documents(TextSource(TEXTS), 0.1)
    held = set(split.held_out.documents())
    for source, inside in ((split.train, False), (split.held_out, True)):
        windows = source.draw(300, 17, torch.Generator().manual_seed(0))
        whole = [bytes(row.tolist()) for row, end in zip(windows.byte_ids, windows.ends.tolist(), strict=True) if end]
        assert whole and all(any(text.endswith(window) for text in held) for window in whole) == inside


def test_the_end_of_a_single_text_is_held_out():
    text = local_prose(10_000)
    split = split_documents(TextSource(text), 0.05)
    assert split.by == "tail" and str(split).endswith("1 document (500 bytes) held out; one text, its end held out")
    assert split.train.document(0) + split.held_out.document(0) == text
    for source, part in ((split.train, text[:9500]), (split.held_out, text[9500:])):
        a, b = (s.draw(50, 30, torch.Generator().manual_seed(0)) for s in (source, TextSource(part)))
        assert torch.equal(a.byte_ids, b.byte_ids) and torch.equal(a.ends, b.ends)


@pytest.mark.parametrize("held_out", [0.0, 1.0, -0.1, float("nan")])
def test_shares_that_are_none(held_out):
    with pytest.raises(ValueError, match="held_out must lie strictly between 0 and 1"):
        split_documents(TextSource(TEXTS), held_out)


def test_an_empty_side_is_refused():
    with pytest.raises(ValueError, match="held_out=1e-09 leaves none of 2000 documents held out"):
        split_documents(TextSource(TEXTS), 1e-9)
    with pytest.raises(ValueError, match="held_out=0.999999999 leaves none of 2000 documents to train on"):
        split_documents(TextSource(TEXTS), 0.999999999)
    with pytest.raises(ValueError, match="none of 2 documents held out; they are all equal"):
        split_documents(TextSource(["one and the same"] * 2), 0.1)
    with pytest.raises(ValueError, match="held_out=0.1 must leave 2 bytes on each side of a text, got 9 and 1 of 10"):
        split_documents(TextSource("abcdefghij"), 0.1)


@pytest.mark.parametrize("count", [2, 3])
def test_few_documents_are_split_by_the_share_that_the_refusal_names(count):
    """Thirty sets of documents: with the least and the largest share that is named, there are some on each side."""
    refused = 0
    for n in range(30):
        source = TextSource([f"document {number} of set {n}" for number in range(count)])
        for share in (0.05, 0.95):
            try:
                split_documents(source, share)
            except ValueError as error:
                low, high = re.search("a share from (.*) to (.*) leaves some on each side", str(error)).groups()
                refused += 1
                for named in (float(low), float(high)):
                    split = split_documents(source, named)
                    assert split.train.num_documents + split.held_out.num_documents == count
    assert refused > 20


GROUPED = [GroupedDocument(f"chapter {n} of book {n % 17}".encode(), f"book {n % 17}".encode()) for n in range(200)]


def test_no_group_is_on_both_sides(tmp_path):
    write_cache(GROUPED, tmp_path / "cache", settings={"source": {"split_by": "book"}})
    split = split_documents(CachedSource(tmp_path / "cache"), 0.3)
    sides = [{d.decode().partition(" of ")[2] for d in side.documents()} for side in (split.train, split.held_out)]
    assert sides[0] and sides[1] and not sides[0] & sides[1] and len(sides[0] | sides[1]) == 17
    assert split.train.num_documents + split.held_out.num_documents == 200
    # The planted bug: a split by single documents shares most groups.
    single = split_documents(TextSource([document.text for document in GROUPED]), 0.3)
    leaked = [{d.decode().partition(" of ")[2] for d in side.documents()} for side in (single.train, single.held_out)]
    assert leaked[0] & leaked[1]
    assert f"{len(sides[1])} groups" in str(split) and "by a hash of 'book'" in str(split)


def test_one_group_cannot_be_split(tmp_path):
    same = [GroupedDocument(f"chapter {n}".encode(), b"the only book") for n in range(4)]
    write_cache(same, tmp_path / "cache", settings={"source": {"split_by": "book"}})
    with pytest.raises(ValueError, match="'book' is the same in all of them: give several groups, or split_by=null"):
        split_documents(CachedSource(tmp_path / "cache"), 0.3)

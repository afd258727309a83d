"""Held-out documents: none is on both sides, and none changes sides."""

from __future__ import annotations

import torch

from rltok_rl.data import CachedSource, GroupedDocument, TextSource, local_prose, split_documents, write_cache

from ..each import refused

TEXTS = [f"document {n} of them" for n in range(2000)]


def sides(texts, held_out=0.1):
    split = split_documents(TextSource(texts), held_out)
    return set(split.train.documents()), set(split.held_out.documents()), split


def draw(source, num_rows, length):
    return source.draw(num_rows, length, torch.Generator().manual_seed(0))


def test_every_document_is_on_one_side():
    """2000 documents, a tenth held out: 200 with deviation 13; 6 deviations leave 2e-9, and the hash is fixed."""
    train, held, split = sides(TEXTS)
    assert not train & held and train | held == {text.encode() for text in TEXTS}
    assert split.by == "document" and abs(len(held) - 200) < 6 * 13.5
    assert str(split) == (
        f"{len(train):,} documents ({split.train.num_bytes:,} bytes) to train on, "
        f"{len(held)} documents ({split.held_out.num_bytes:,} bytes) held out; by a hash of each document"
    )
    for source, inside in ((split.train, False), (split.held_out, True)):
        windows = draw(source, 300, 17)
        whole = [bytes(row.tolist()) for row, end in zip(windows.byte_ids, windows.ends.tolist(), strict=True) if end]
        assert whole and all(any(text.endswith(window) for text in held) for window in whole) == inside


def test_sides_depend_on_the_document_alone():
    _, held, _ = sides(TEXTS)
    _, some, _ = sides(TEXTS[1000:][::-1] + ["new " + text for text in TEXTS])
    half = {text.encode() for text in TEXTS[1000:]}
    assert some & half == held & half
    assert sides(TEXTS, 0.05)[1] < held  # a smaller share is a part of a larger one
    split = sides(TEXTS + TEXTS[::-1])[2]
    for side in (split.train, split.held_out):  # equal documents stay together
        assert side.num_documents == 2 * len(set(side.documents()))
    # The hash is part of what a split means: with another one, held-out documents would be trained on.
    assert TextSource(["to be", "or not to be"]).keys().tolist() == [-6746568687839946929, 534765396661025759]


def test_a_cache_is_split_like_memory(tmp_path):
    write_cache(TEXTS, tmp_path / "cache")
    cached, memory = CachedSource(tmp_path / "cache"), TextSource(TEXTS)
    assert torch.equal(cached.keys(), memory.keys())
    ours, theirs = split_documents(cached, 0.1), split_documents(memory, 0.1)
    for one, two in ((ours.train, theirs.train), (ours.held_out, theirs.held_out)):
        assert list(one.documents()) == list(two.documents()) and torch.equal(one.keys(), two.keys())
        assert torch.equal(draw(one, 40, 12).byte_ids, draw(two, 40, 12).byte_ids)
    anew = [source.with_documents(source.starts, source.lengths - 1).keys() for source in (ours.train, theirs.train)]
    assert torch.equal(*anew)  # the cache has no hashes of documents that are cut anew
    again, fresh = split_documents(ours.train, 0.5), split_documents(theirs.train, 0.5)
    assert list(again.held_out.documents()) == list(fresh.held_out.documents())


def test_the_end_of_a_single_text_is_held_out():
    text = local_prose(10_000)
    split = split_documents(TextSource(text), 0.05)
    assert split.by == "tail" and str(split).endswith("1 document (500 bytes) held out; one text, its end held out")
    for source, part in ((split.train, text[:9500]), (split.held_out, text[9500:])):
        assert source.document(0) == part
        a, b = draw(source, 50, 30), draw(TextSource(part), 50, 30)
        assert torch.equal(a.byte_ids, b.byte_ids) and torch.equal(a.ends, b.ends)


def test_no_group_is_on_both_sides(tmp_path):
    def books(side):
        return {document.decode().partition(" of ")[2] for document in side.documents()}

    grouped = [GroupedDocument(f"chapter {n} of book {n % 17}".encode(), f"book {n % 17}".encode()) for n in range(200)]
    write_cache(grouped, tmp_path / "cache", settings={"source": {"split_by": "book"}})
    split = split_documents(CachedSource(tmp_path / "cache"), 0.3)
    train, held = books(split.train), books(split.held_out)
    assert train and held and not train & held and len(train | held) == 17
    assert split.train.num_documents + split.held_out.num_documents == 200
    assert f"{len(held)} groups" in str(split) and "by a hash of 'book'" in str(split)
    single = split_documents(TextSource([document.text for document in grouped]), 0.3)
    assert books(single.train) & books(single.held_out)  # without groups, books leak


def test_refused_shares(tmp_path):
    same = [GroupedDocument(f"chapter {n}".encode(), b"the only book") for n in range(4)]
    write_cache(same, tmp_path / "cache", settings={"source": {"split_by": "book"}})
    one_group = "all 4 documents have the same 'book'; give several groups, or split_by=null"
    tail = "held_out=0.1 must leave 2 bytes on each side, got 9 and 1 of 10"
    equal, none = ["one and the same"] * 2, "held_out must lie strictly between 0 and 1"
    refused(
        *((lambda h=h: sides(TEXTS, h), ValueError, none) for h in (0.0, 1.0, -0.1, float("nan"))),
        (lambda: sides(equal), ValueError, "held_out=0.1 leaves a side empty: all 2 documents are equal"),
        (lambda: sides(["0123456789"]), ValueError, tail),
        (lambda: split_documents(CachedSource(tmp_path / "cache"), 0.3), ValueError, one_group),
    )


def test_few_documents_leave_no_side_empty():
    by_hash = 0
    for count in range(2, 12):
        texts = [f"{count} documents, number {number}" for number in range(count)]
        place = {text.encode(): TextSource([text]).keys().double().item() / 2.0**64 + 0.5 for text in texts}
        for share in (1e-9, 0.05, 0.95, 1 - 1e-9):
            train, held, _ = sides(texts, share)
            assert train and held and not train & held
            assert max(place[text] for text in held) < min(place[text] for text in train)
            by_hash += held == {text for text in place if place[text] < share}
            assert held == {text for text in place if place[text] < share} or 1 in (len(train), len(held))
    assert 0 < by_hash < 40


def test_one_of_few_groups_is_held_out(tmp_path):
    grouped = [GroupedDocument(f"chapter {n}".encode(), f"book {n % 2}".encode()) for n in range(8)]
    write_cache(grouped, tmp_path / "cache", settings={"source": {"split_by": "book"}})
    split = split_documents(CachedSource(tmp_path / "cache"), 1e-9)
    assert split.train.num_documents == split.held_out.num_documents == 4

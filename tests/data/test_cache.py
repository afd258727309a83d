"""Caches: they return what was written, detect damage, are never overwritten, and are complete or absent."""

from __future__ import annotations

import copy
import io
import json
import pickle
import shutil

import numpy as np
import pytest
import torch

from rltok_rl.data import CachedSource, CacheError, LengthFilter, TextSource, local_prose, prepare_cache, write_cache

from ..each import each, refused

PROSE = local_prose(20_000)
# Documents of many lengths, one of them twice, one that is no UTF-8.
TEXTS = [PROSE[at : at + 20 + at % 700] for at in range(0, 19_000, 300)] + [PROSE[:20], b"\xff" * 30]


@pytest.fixture
def folder(tmp_path):
    write_cache(TEXTS, tmp_path / "cache", settings={"made": "of prose"})
    return tmp_path / "cache"


def test_what_is_written_comes_back(folder):
    cached = CachedSource(folder)
    assert list(cached.documents()) == TEXTS
    assert sorted(path.name for path in folder.iterdir()) == ["bytes.bin", "index.json", "keys.bin", "offsets.bin"]
    assert (folder / "bytes.bin").read_bytes() == b"".join(TEXTS)
    assert np.fromfile(folder / "offsets.bin", "<i8").tolist() == np.cumsum([0, *map(len, TEXTS)]).tolist()
    assert (cached.index.documents, cached.index.bytes) == (len(TEXTS), sum(map(len, TEXTS)))
    assert cached.index.settings == {"made": "of prose"} and cached.index.report is None
    cached.verify()


@each(short_and_length=[("error", 2), ("error", 20), ("whole", 64), ("whole", 700)])
def test_draws_are_those_of_memory(short_and_length, folder):
    short, length = short_and_length
    memory, disk = TextSource(TEXTS, short_documents=short), CachedSource(folder, short_documents=short)
    one, two = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    for num_rows in (1, 33, 200):
        a, b = memory.draw(num_rows, length, one), disk.draw(num_rows, length, two)
        assert all(torch.equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))
        assert b.byte_ids.dtype == torch.int64 and b.byte_ids.shape == (num_rows, length)
    assert torch.equal(one.get_state(), two.get_state())


def test_copies_open_the_files(folder):
    cached = CachedSource(folder, short_documents="whole")
    sent = pickle.dumps(cached)
    assert len(sent) < 24 * len(TEXTS) + 3000 < cached.num_bytes  # a path and lengths, not the text
    expected = cached.draw(5, 30, torch.Generator().manual_seed(0)).byte_ids
    for other in (pickle.loads(sent), copy.deepcopy(cached), copy.copy(cached)):
        assert torch.equal(other.draw(5, 30, torch.Generator().manual_seed(0)).byte_ids, expected)


@each(name=["bytes.bin", "offsets.bin", "keys.bin"])
def test_damage_is_named(name, tmp_path):
    folder = tmp_path / name
    write_cache(TEXTS, folder)
    path, whole = folder / name, (folder / name).read_bytes()
    path.write_bytes(whole[:-1])
    size = f"{name} must have {len(whole)} bytes, has {len(whole) - 1}"
    refused((lambda: CachedSource(folder), CacheError, size))
    path.unlink()
    refused((lambda: CachedSource(folder), CacheError, f"{name} is missing"))
    at = len(whole) // 2 // 8 * 8
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    refused((lambda: CachedSource(folder).verify(), CacheError, f"{name} is not what was written"))


def test_an_index_or_offsets_without_sense(folder, tmp_path):
    refused((lambda: CachedSource(tmp_path), FileNotFoundError, "must be a cache, got .*without index.json"))
    index = json.loads((folder / "index.json").read_text())
    wrong = (
        ("documents", "x"),
        ("settings", [1]),
        ("sha256", [1]),
        ("report", 3),
        ("report", {}),
        ("report", {"kept": "x"}),
        ("bytes", -1),
        ("more", 1),
    )
    contents = [json.dumps({**index, name: value}) for name, value in wrong]
    for content in ("", "[]", "{}", 100_000 * "[", *contents):
        (folder / "index.json").write_text(content)
        refused((lambda: CachedSource(folder), CacheError, r"index\.json is not the index of a cache"))
    (folder / "index.json").write_bytes(b"\xff")
    refused((lambda: CachedSource(folder), CacheError, r"index\.json is not the index of a cache: .* must be UTF-8"))
    (folder / "index.json").write_text(json.dumps({**index, "sha256": {}}))
    refused((lambda: CachedSource(folder), CacheError, r"index\.json must hold hashes of \['bytes.bin', .*, got \[\]"))
    (folder / "index.json").write_text(json.dumps({**index, "format": 2}))
    refused((lambda: CachedSource(folder), CacheError, "has format 2, this version reads 1"))
    (folder / "index.json").write_text(json.dumps(index))
    offsets = np.fromfile(folder / "offsets.bin", "<i8")
    offsets[3] = offsets[2]
    offsets.tofile(folder / "offsets.bin")
    refused((lambda: CachedSource(folder), CacheError, "offsets.bin does not say where documents begin"))


def never():
    """Documents that nobody may read."""
    raise AssertionError("documents were read")
    yield b""


def left_over(tmp_path):
    return [path.name for path in tmp_path.iterdir() if "partial" in path.name]


def test_an_equal_cache_is_used_and_nothing_else_is_overwritten(folder, tmp_path):
    before = (folder / "index.json").stat().st_mtime_ns
    assert write_cache(never(), folder, settings={"made": "of prose"}).documents == len(TEXTS)
    assert write_cache(TEXTS, folder).documents == len(TEXTS)  # read, and equal
    for name in ("notes", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    verse = "another cache, .* \\(made: 'of prose' there, 'of verse' here\\)"
    other, something = "folder must be new, got a cache of other documents", "got .*', which is something else"
    refused(
        (lambda: write_cache(never(), folder, settings={"made": "of verse"}), FileExistsError, verse),
        (lambda: write_cache(TEXTS[:-1], folder), FileExistsError, other),
        (lambda: write_cache([b"".join(TEXTS)], folder), FileExistsError, other),  # the same bytes, cut elsewhere
        (lambda: write_cache(never(), tmp_path / "notes"), FileExistsError, something),
        (lambda: write_cache(never(), tmp_path / "file"), FileExistsError, something),
    )
    assert list(CachedSource(folder).documents()) == TEXTS and not left_over(tmp_path)
    assert (folder / "index.json").stat().st_mtime_ns == before
    assert write_cache(["ab"], tmp_path / "empty").documents == 1


def test_a_failure_leaves_nothing(tmp_path):
    def failing():
        yield b"a document"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_cache(failing(), tmp_path / "cache")

    def write(documents, folder=tmp_path / "cache", **options):
        return lambda: write_cache(documents, folder, **options)

    one_byte = "at least 2 bytes each .*, got 1 in document 1; LengthFilter drops short ones"
    dropped = "got none: kept 0 of 1 documents .*dropped 1 with fewer than 4,096 bytes"
    refused(
        (write(["ab", "c"]), ValueError, one_byte),
        (write([]), ValueError, "documents must hold at least one text, got none"),
        (write(LengthFilter(["ab"])), ValueError, dropped),
        (write("abc"), TypeError, "documents must be several texts, got one"),
        (write(tmp_path / "cache", ["ab"]), TypeError, "folder must be a path, got list; documents come first"),
        (write(["abc"], settings={"what": object()}), TypeError, "settings must be numbers, texts, lists and dicts"),
    )
    assert not list(tmp_path.iterdir())


@each(same=[True, False])
def test_a_cache_that_another_process_writes_meanwhile_stays(same, tmp_path):
    folder = tmp_path / str(same)

    def overtaken():
        yield TEXTS[0]
        write_cache(TEXTS if same else TEXTS[:-1], folder)
        yield from TEXTS[1:]

    if same:
        assert write_cache(overtaken(), folder).documents == len(TEXTS)
    else:
        other = "folder must be new, got a cache of other documents"
        refused((lambda: write_cache(overtaken(), folder), FileExistsError, other))
    assert CachedSource(folder).num_documents == len(TEXTS) - (not same) and not left_over(tmp_path)


def test_progress(tmp_path):
    stream = io.StringIO()
    write_cache(["ab", "cde"], tmp_path / "cache", progress=True, stream=stream)
    assert stream.getvalue().endswith("B/s, 2 documents]\n")


def test_prepared_files_are_filtered_and_found_again(tmp_path):
    text, cache = tmp_path / "books", tmp_path / "cache"
    text.mkdir()
    (text / "a.txt").write_bytes(PROSE[:5000])
    (text / "b.txt").write_bytes(PROSE[:4000])
    prepared = prepare_cache(text, cache)
    assert list(prepared.documents()) == [PROSE[:4096]]
    report = prepared.index.report
    assert (report["kept"], report["dropped"], report["dropped_bytes"], report["cut_bytes"]) == (1, 1, 4000, 904)
    assert prepare_cache(str(text), cache).index == prepared.index
    corpus = "column must be None for the corpus 'codeparrot'"
    refused(
        (lambda: prepare_cache(text, cache, min_bytes=2), FileExistsError, "min_bytes: 4096 there, 2 here"),
        (lambda: prepare_cache("none", cache), FileNotFoundError, r"one of \['fineweb-10bt', .*folder, got 'none'"),
        (lambda: prepare_cache("codeparrot", cache, column="text"), ValueError, corpus),
        (lambda: prepare_cache(text, cache, revision="x"), ValueError, r"be empty for local files, got \['revision'\]"),
        (lambda: prepare_cache(text, cache, limit=0), ValueError, "limit must be at least 1 or None, got 0"),
    )
    (text / "a.txt").write_bytes(PROSE[1:5001])
    with pytest.raises(FileExistsError, match="another cache.*source: "):
        prepare_cache(text, cache)
    shutil.rmtree(cache)
    assert prepare_cache(text, cache, min_bytes=2, limit=1).num_documents == 1

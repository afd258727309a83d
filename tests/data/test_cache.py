"""Caches: what comes back, what is noticed, what a failure leaves, what is drawn."""

from __future__ import annotations

import copy
import io
import json
import pickle
import shutil

import numpy as np
import pytest
import torch

from rltok_rl.data import (
    CachedSource,
    CacheError,
    LengthFilter,
    TextSource,
    local_prose,
    prepare_cache,
    write_cache,
)

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
    assert cached.lengths.dtype == torch.int64
    assert (cached.index.documents, cached.index.bytes) == (len(TEXTS), sum(map(len, TEXTS)))
    assert cached.index.settings == {"made": "of prose"} and cached.index.report is None
    cached.verify()


@pytest.mark.parametrize(("short", "length"), [("error", 2), ("error", 20), ("whole", 64), ("whole", 700)])
def test_draws_are_those_of_memory(folder, short, length):
    """Same documents, same generator: the same windows, and the generator is left at the same place."""
    memory, disk = TextSource(TEXTS, short_documents=short), CachedSource(folder, short_documents=short)
    one, two = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    for num_rows in (1, 33, 200):
        a, b = memory.draw(num_rows, length, one), disk.draw(num_rows, length, two)
        for name in ("byte_ids", "lengths", "ends"):
            assert torch.equal(getattr(a, name), getattr(b, name))
        assert b.byte_ids.dtype == torch.int64 and b.byte_ids.shape == (num_rows, length)
    assert torch.equal(one.get_state(), two.get_state())


def test_a_window_longer_than_every_document(folder):
    with pytest.raises(ValueError, match=r"900 bytes of a window, got \d+ in document \d+, the longest"):
        CachedSource(folder).check_length(900)


def test_copies_open_the_files(folder):
    """A copy for another process carries a path and lengths, not the text."""
    cached = CachedSource(folder, short_documents="whole")
    sent = pickle.dumps(cached)
    assert len(sent) < 24 * len(TEXTS) + 3000 < cached.num_bytes
    want = cached.draw(5, 30, torch.Generator().manual_seed(0)).byte_ids
    for other in (pickle.loads(sent), copy.deepcopy(cached), copy.copy(cached)):
        assert torch.equal(other.draw(5, 30, torch.Generator().manual_seed(0)).byte_ids, want)


@pytest.mark.parametrize("name", ["bytes.bin", "offsets.bin", "keys.bin"])
def test_damage_is_named(folder, name):
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CacheError, match=f"{name} must have {len(whole)} bytes, has {len(whole) - 1}"):
        CachedSource(folder)
    path.unlink()
    with pytest.raises(CacheError, match=f"{name} is missing"):
        CachedSource(folder)
    at = len(whole) // 2 // 8 * 8
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CacheError, match=f"{name} is not what was written"):
        CachedSource(folder).verify()


def test_offsets_that_make_no_sense(folder):
    offsets = np.fromfile(folder / "offsets.bin", "<i8")
    offsets[3] = offsets[2]
    offsets.tofile(folder / "offsets.bin")
    with pytest.raises(CacheError, match="offsets.bin does not say where documents begin"):
        CachedSource(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "documents": "x", "bytes": 1, "sha256": {}}'])
def test_a_spoilt_index_is_named(folder, content):
    (folder / "index.json").write_text(content)
    with pytest.raises(CacheError, match=r"index\.json is not the index of a cache"):
        CachedSource(folder)


def test_other_folders_and_formats(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="folder must be a cache, got .*without index.json"):
        CachedSource(tmp_path)
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "format": 2}))
    with pytest.raises(CacheError, match="has format 2, this version reads 1"):
        CachedSource(folder)


def never():
    """Documents that nobody may read."""
    raise AssertionError("documents were read")
    yield b""


def left_over(tmp_path):
    return [path.name for path in tmp_path.iterdir() if "partial" in path.name]


def test_an_equal_cache_is_used_again(folder, tmp_path):
    before = (folder / "index.json").stat().st_mtime_ns
    assert write_cache(never(), folder, settings={"made": "of prose"}).documents == len(TEXTS)
    assert write_cache(TEXTS, folder).documents == len(TEXTS)  # read, and found to be the same
    assert (folder / "index.json").stat().st_mtime_ns == before and not left_over(tmp_path)


def test_another_cache_is_not_overwritten(folder, tmp_path):
    with pytest.raises(FileExistsError, match="another cache, .* \\(made: 'of prose' there, 'of verse' here\\)"):
        write_cache(never(), folder, settings={"made": "of verse"})
    with pytest.raises(FileExistsError, match="folder must be new, got a cache of other documents"):
        write_cache(TEXTS[:-1], folder)
    # The same bytes, cut into documents elsewhere.
    with pytest.raises(FileExistsError, match="folder must be new, got a cache of other documents"):
        write_cache([b"".join(TEXTS)], folder)
    assert list(CachedSource(folder).documents()) == TEXTS and not left_over(tmp_path)


def test_other_things_are_not_overwritten(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("notes", "file"):
        with pytest.raises(FileExistsError, match=f"folder must be new or a cache, got .*{name}', which is something"):
            write_cache(never(), tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert write_cache(["ab"], tmp_path / "empty").documents == 1


def test_a_failure_leaves_nothing(tmp_path):
    def failing():
        yield b"a document"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_cache(failing(), tmp_path / "cache")
    for documents, message in (
        (["ab", "c"], "at least 2 bytes each .*, got 1 in document 1; LengthFilter drops short ones"),
        ([], "documents must hold at least one text, got none"),
        (LengthFilter(["ab"]), "got none: kept 0 of 1 documents .*dropped 1 with fewer than 4,096 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            write_cache(documents, tmp_path / "cache")
    with pytest.raises(TypeError, match="documents must be several texts, got one"):
        write_cache("abc", tmp_path / "cache")
    with pytest.raises(TypeError, match="folder must be a path, got list; documents come first"):
        write_cache(tmp_path / "cache", ["ab"])
    with pytest.raises(TypeError, match="settings must be numbers, texts, lists and dicts"):
        write_cache(["abc"], tmp_path / "cache", settings={"what": object()})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("same", [True, False])
def test_another_process_is_faster(tmp_path, same):
    """Its cache is there when this one is finished: it is used if it is the same, and stays in any case."""
    folder = tmp_path / "cache"

    def overtaken():
        yield TEXTS[0]
        write_cache(TEXTS if same else TEXTS[:-1], folder)
        yield from TEXTS[1:]

    if same:
        assert write_cache(overtaken(), folder).documents == len(TEXTS)
    else:
        with pytest.raises(FileExistsError, match="folder must be new, got a cache of other documents"):
            write_cache(overtaken(), folder)
    assert CachedSource(folder).num_documents == len(TEXTS) - (not same) and not left_over(tmp_path)


def test_progress_is_told(tmp_path):
    stream = io.StringIO()
    write_cache(["ab", "cde"], tmp_path / "cache", progress=True, stream=stream)
    assert stream.getvalue().endswith("B/s, 2 documents]\n")


def test_prepared_from_files(tmp_path):
    """Filtered, reported, found again, and not taken for a cache of other files."""
    text = tmp_path / "books"
    text.mkdir()
    (text / "a.txt").write_bytes(PROSE[:5000])
    (text / "b.txt").write_bytes(PROSE[:4000])
    cache = prepare_cache(text, tmp_path / "cache")
    assert list(cache.documents()) == [PROSE[:4096]]
    report = cache.index.report
    assert (report["kept"], report["dropped"], report["dropped_bytes"], report["cut_bytes"]) == (1, 1, 4000, 904)
    assert prepare_cache(str(text), tmp_path / "cache").index == cache.index
    with pytest.raises(FileExistsError, match="min_bytes: 4096 there, 2 here"):
        prepare_cache(text, tmp_path / "cache", min_bytes=2)
    (text / "a.txt").write_bytes(PROSE[1:5001])
    with pytest.raises(FileExistsError, match="another cache.*source: "):
        prepare_cache(text, tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert prepare_cache(text, tmp_path / "cache", min_bytes=2, limit=1).num_documents == 1


def test_prepare_refuses_what_it_cannot_do(tmp_path):
    cases = [
        (("none", {}), FileNotFoundError, r"source must be one of \['fineweb-10bt', .* a file or a folder, got 'none'"),
        (("codeparrot", {"column": "text"}), ValueError, "column must be None for the corpus 'codeparrot'"),
        ((tmp_path, {"revision": "x"}), ValueError, r"options must be empty for local files, got \['revision'\]"),
        ((tmp_path, {"limit": 0}), ValueError, "limit must be at least 1 or None, got 0"),
    ]
    for (source, options), error, message in cases:
        with pytest.raises(error, match=message):
            prepare_cache(source, tmp_path / "cache", **options)

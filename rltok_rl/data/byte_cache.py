"""Documents on disk as one run of bytes, written once and read in place.

A cache is written under another name, flushed to disk and then renamed, so that it is whole or not there. A process
that is killed meanwhile leaves a hidden folder ``.<name>.partial-...`` beside it, which may be deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rltok_rl.data.disk import flush
from rltok_rl.data.files import GroupedDocument
from rltok_rl.data.filters import LengthFilter
from rltok_rl.data.index import BYTES, FORMAT, INDEX, KEYS, OFFSETS, CacheIndex, document_key, read_index
from rltok_rl.text import text_to_bytes


def write_cache(
    documents: Iterable[str | bytes | GroupedDocument],
    folder: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
    stream: TextIO | None = None,
) -> CacheIndex:
    """Write documents to disk, one at a time: memory does not grow with them.

    A cache that is there already is never overwritten. With the same ``settings`` it is used as it is and no document
    is read; with others it is refused; without settings the documents are read and must be the same.

    Args:
        documents: texts or UTF-8 bytes, of at least 2 bytes each. A :class:`~rltok_rl.data.GroupedDocument` is held
            out together with its group. The report of a :class:`~rltok_rl.data.LengthFilter` is kept in the index.
        folder: of the cache.
        settings: all that the documents depend on, numbers and texts by name.
        progress: whether to say now and then how far it has come.
        stream: where to say it; None is stderr.

    Example:
        >>> folder = tempfile.TemporaryDirectory()
        >>> write_cache(["to be", "or not to be"], Path(folder.name, "play")).bytes
        17
        >>> folder.cleanup()
    """
    if isinstance(documents, (str, bytes)):
        raise TypeError("documents must be several texts, got one; put it in a list")
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"folder must be a path, got {type(folder).__name__}; documents come first")
    folder, given = Path(folder), _plain(settings or {})
    present = _find(folder)
    if present is not None and given and present.settings:
        if present.settings == given:
            return present
        raise FileExistsError(f"folder must be new, got another cache, {folder} ({_differences(present, given)})")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        made = _write(documents, partial, given, _Progress(stream or sys.stderr) if progress else None)
        partial.chmod(0o755)  # a temporary folder is for its owner alone
        try:
            partial.rename(folder)
        except OSError:  # it was there before, or another process was faster
            present = _find(folder)
            if present is None:
                raise
            if present.sha256 != made.sha256:
                raise FileExistsError(
                    f"folder must be new, got a cache of other documents, {folder} ({_differences(present, given)})"
                ) from None
            return present
        flush(folder.parent)
        return made
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    documents: Iterable[str | bytes | GroupedDocument],
    folder: Path,
    settings: dict[str, Any],
    progress: _Progress | None,
) -> CacheIndex:
    number = size = 0
    sums = {name: hashlib.sha256() for name in (BYTES, OFFSETS, KEYS)}
    files = {name: (folder / name).open("wb", buffering=1 << 20) for name in sums}

    def put(name: str, data: bytes) -> None:
        files[name].write(data)
        sums[name].update(data)

    try:
        put(OFFSETS, _int64(0))
        for document in documents:
            text = text_to_bytes(document.text if isinstance(document, GroupedDocument) else document)
            if len(text) < 2:
                raise ValueError(
                    f"documents must have at least 2 bytes each (one to read, one to predict), got {len(text)} in "
                    f"document {number}; LengthFilter drops short ones, and counts them"
                )
            number, size = number + 1, size + len(text)
            put(BYTES, text)
            put(OFFSETS, _int64(size))
            put(KEYS, _int64(document_key(document.group if isinstance(document, GroupedDocument) else text)))
            if progress is not None:
                progress.show(number, size)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in files.values():
            file.close()
    report = documents.report if isinstance(documents, LengthFilter) else None
    if not number:
        raise ValueError(f"documents must hold at least one text, got none{f': {report}' if report else ''}")
    if progress is not None:
        progress.show(number, size, last=True)
    sha256 = {name: digest.hexdigest() for name, digest in sums.items()}
    index = CacheIndex(number, size, sha256, settings, report.to_dict() if report else None)
    (folder / INDEX).write_text(json.dumps({"format": FORMAT, **vars(index)}, indent=1) + "\n")
    flush(folder / INDEX)
    return index


def _int64(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _find(folder: Path) -> CacheIndex | None:
    """The cache that lies in a folder; None where there is no folder, or an empty one."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / INDEX).is_file():
        raise FileExistsError(f"folder must be new or a cache, got {str(folder)!r}, which is something else")
    return read_index(folder)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from a file, so that they can be compared."""
    try:
        return dict(json.loads(json.dumps(dict(settings))))
    except TypeError as error:
        raise TypeError(f"settings must be numbers, texts, lists and dicts: {error}") from None


def _differences(present: CacheIndex, given: dict[str, Any]) -> str:
    there = present.settings
    names = [name for name in {**there, **given} if there.get(name) != given.get(name)]
    return ", ".join(f"{n}: {there.get(n)!r} there, {given.get(n)!r} here" for n in names) or "made with equal settings"


class _Progress:
    """How far a cache has come: in place on a terminal, as a line now and then elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.terminal = stream, stream.isatty()
        self.start = self.shown = time.perf_counter()

    def show(self, documents: int, size: int, *, last: bool = False) -> None:
        now = time.perf_counter()
        if not last and now - self.shown < (0.2 if self.terminal else 10.0):
            return
        self.shown = now
        speed = size / max(now - self.start, 1e-9)
        many, much = "s" * (documents != 1), f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
        line = f"{documents:,} document{many}, {much}, {speed / 1e6:.1f} MB/s"
        self.stream.write(f"\r{line}\x1b[K" + ("\n" if last else "") if self.terminal else line + "\n")
        self.stream.flush()

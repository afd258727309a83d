"""Documents on disk as one run of bytes, written once and read in place.

    <folder>/bytes.bin, offsets.bin, keys.bin, index.json

``offsets.bin`` says where each document begins and the last one ends, ``keys.bin`` has a hash of each document or of
its group (both int64, little-endian); ``index.json`` counts, checksums and settings. A cache is written under another
name, ``.<name>.partial-...``, and then renamed, so that it is complete or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rltok_rl.data.disk import checksum, flush
from rltok_rl.data.files import GroupedDocument
from rltok_rl.data.filters import FilterReport, LengthFilter
from rltok_rl.data.source import DocumentSource, Short, document_key
from rltok_rl.foreign import COUNT, NAMED, TEXT, check_values, read_json
from rltok_rl.text import text_to_bytes

FORMAT = 1
BYTES, OFFSETS, KEYS, INDEX = "bytes.bin", "offsets.bin", "keys.bin", "index.json"
_INDEX = {
    **dict.fromkeys(("format", "documents", "bytes"), COUNT),
    "sha256": TEXT.by_name(),
    "settings": NAMED,
    "report": NAMED.or_none(),
}
_REPORT = {**{field.name: COUNT for field in fields(FilterReport)}, "max_bytes": COUNT.or_none()}
"""What the values of an index and of its report must be."""


class CacheError(ValueError):
    """A cache that cannot be read; the message names the file and the damage."""


@dataclass(frozen=True)
class CacheIndex:
    """Content of a cache."""

    documents: int
    bytes: int
    sha256: dict[str, str]
    """Checksum of each file but the index."""
    settings: dict[str, Any] = field(default_factory=dict)
    """As given to :func:`write_cache`."""
    report: dict[str, Any] | None = None
    """A :class:`~rltok_rl.data.FilterReport` by name; None without a filter."""


class CachedSource(DocumentSource):
    """Windows of the documents in a folder of :func:`~rltok_rl.data.write_cache`, read in place.

    Draws the windows of a :class:`~rltok_rl.data.TextSource` of the same documents, with 16 bytes of memory per
    document. Copies in other processes open the files there.
    """

    def __init__(self, folder: str | Path, *, short_documents: Short = "error") -> None:
        self.folder = Path(folder)
        self.index = read_index(self.folder)
        offsets = self._int64(OFFSETS)  # [documents + 1]
        lengths = offsets.diff()
        if not len(lengths) or offsets[0] != 0 or offsets[-1] != self.index.bytes or lengths.min() < 2:
            raise CacheError(f"{self.folder / OFFSETS} does not say where documents begin: it was altered")
        super().__init__(offsets[:-1], lengths, short_documents=short_documents)
        made_from = self.index.settings.get("source")
        self.split_by = made_from.get("split_by") if isinstance(made_from, dict) else None
        self._open()

    def _open(self) -> None:
        self._bytes = np.asarray(np.memmap(self.folder / BYTES, dtype=np.uint8, mode="r"))  # [all bytes]

    def _int64(self, name: str) -> Tensor:
        return torch.from_numpy(np.fromfile(self.folder / name, dtype="<i8").astype(np.int64))

    def cut(self, start: int, stop: int) -> np.ndarray:
        """Return bytes ``start`` to ``stop`` of the whole text as uint8, not to be written to."""
        return self._bytes[start:stop]

    def keys(self) -> Tensor:
        """Return the hashes on disk, [documents] int64; documents that were cut anew are hashed."""
        offsets = self._int64(OFFSETS)
        place = torch.searchsorted(offsets[:-1], self.starts, right=True) - 1  # a split keeps some of the documents
        whole = torch.equal(offsets[place], self.starts) and torch.equal(offsets.diff()[place], self.lengths)
        return self._int64(KEYS)[place] if whole else super().keys()

    def verify(self) -> None:
        """Read all files; raise :class:`~rltok_rl.data.CacheError` if a checksum differs."""
        for name, expected in read_index(self.folder).sha256.items():
            if checksum(self.folder / name) != expected:
                raise CacheError(f"{self.folder / name} is not what was written (its checksum differs)")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_bytes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        read_index(self.folder)
        self._open()


def read_index(folder: Path) -> CacheIndex:
    """Read the index of a cache and check the sizes of its files."""
    path = folder / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"folder must be a cache, got {str(folder)!r} without {INDEX}")
    try:
        content = check_values(read_json(path), _INDEX, path, required=("format", "documents", "bytes", "sha256"))
        version = content.pop("format")
        if version != FORMAT:
            raise CacheError(f"{path} has format {version}, this version reads {FORMAT}; make the cache anew")
        index = CacheIndex(**content)
        if index.report is not None:
            FilterReport(**check_values(index.report, _REPORT, f"report of {path}"))
    except CacheError:
        raise
    except (ValueError, TypeError) as error:
        raise CacheError(f"{path} is not the index of a cache: {error}") from None
    sizes = {BYTES: index.bytes, OFFSETS: 8 * (index.documents + 1), KEYS: 8 * index.documents}
    if set(index.sha256) != set(sizes):
        raise CacheError(f"{path} must hold hashes of {[*sizes]}, got {[*index.sha256]}")
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file():
            raise CacheError(f"{file} is missing")
        if file.stat().st_size != size:
            raise CacheError(f"{file} must have {size} bytes, has {file.stat().st_size}: it was cut or altered")
    return index


def write_cache(
    documents: Iterable[str | bytes | GroupedDocument],
    folder: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
    stream: TextIO | None = None,
) -> CacheIndex:
    """Write documents of at least 2 bytes to disk, one at a time.

    A :class:`~rltok_rl.data.GroupedDocument` is held out with its group. The report of a
    :class:`~rltok_rl.data.LengthFilter` is kept in the index. An existing cache is never overwritten: with equal
    ``settings`` (all that the documents depend on, numbers and texts by name) it is used and no document is read; with
    other settings it is an error; without settings the documents are read and must be equal. ``progress`` is shown on
    ``stream`` (default: stderr).
    """
    if isinstance(documents, (str, bytes)):
        raise TypeError("documents must be several texts, got one; put it in a list")
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"folder must be a path, got {type(folder).__name__}; documents come first")
    try:
        mine = dict(json.loads(json.dumps(dict(settings or {}))))  # as they come back from a file
    except TypeError as error:
        raise TypeError(f"settings must be numbers, texts, lists and dicts: {error}") from None
    folder = Path(folder)
    present = _find(folder)
    if present is not None and mine and present.settings:
        if present.settings == mine:
            return present
        raise FileExistsError(f"folder must be new, got another cache, {folder} ({_differences(present, mine)})")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        index = _write(documents, partial, mine, progress, stream or sys.stderr)
        partial.chmod(0o755)  # a temporary folder is for its owner alone
        try:
            partial.rename(folder)
        except OSError:  # it was there before, or another process was faster
            present = _find(folder)
            if present is None:
                raise
            if present.sha256 != index.sha256:
                raise FileExistsError(
                    f"folder must be new, got a cache of other documents, {folder} ({_differences(present, mine)})"
                ) from None
            return present
        flush(folder.parent)
        return index
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    documents: Iterable[str | bytes | GroupedDocument],
    folder: Path,
    settings: dict[str, Any],
    progress: bool,
    stream: TextIO,
) -> CacheIndex:
    number = size = 0
    sums = {name: hashlib.sha256() for name in (BYTES, OFFSETS, KEYS)}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb", buffering=1 << 20)) for name in sums}

        def put(name: str, value: bytes | int) -> None:
            data = value.to_bytes(8, "little", signed=True) if isinstance(value, int) else value
            files[name].write(data)
            sums[name].update(data)

        put(OFFSETS, 0)
        pause = 0.2 if stream.isatty() else 10.0  # seconds
        bar = stack.enter_context(tqdm(unit="B", unit_scale=True, disable=not progress, file=stream, mininterval=pause))
        for document in documents:
            text, group = document if isinstance(document, GroupedDocument) else (document, None)
            text = text_to_bytes(text)
            if len(text) < 2:
                raise ValueError(
                    f"documents must have at least 2 bytes each (one to read, one to predict), got {len(text)} in "
                    f"document {number}; LengthFilter drops short ones, and counts them"
                )
            number, size = number + 1, size + len(text)
            put(BYTES, text)
            put(OFFSETS, size)
            put(KEYS, document_key(text if group is None else group))
            bar.set_postfix_str(f"{number:,} document{'s' * (number != 1)}", refresh=False)
            bar.update(len(text))
    report = documents.report if isinstance(documents, LengthFilter) else None
    if not number:
        raise ValueError(f"documents must hold at least one text, got none{f': {report}' if report else ''}")
    sha256 = {name: digest.hexdigest() for name, digest in sums.items()}
    index = CacheIndex(number, size, sha256, settings, report.to_dict() if report else None)
    (folder / INDEX).write_text(json.dumps({"format": FORMAT, **vars(index)}, indent=1) + "\n")
    for name in (*sums, INDEX):
        flush(folder / name)
    return index


def _find(folder: Path) -> CacheIndex | None:
    """Return the index of the cache in a folder; None if the folder is empty or does not exist."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / INDEX).is_file():
        raise FileExistsError(f"folder must be new or a cache, got {str(folder)!r}, which is something else")
    return read_index(folder)


def _differences(present: CacheIndex, mine: dict[str, Any]) -> str:
    there = present.settings
    names = [name for name in {**there, **mine} if there.get(name) != mine.get(name)]
    return ", ".join(f"{n}: {there.get(n)!r} there, {mine.get(n)!r} here" for n in names) or "made with equal settings"

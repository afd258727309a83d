"""Documents in local files: Parquet, JSON lines, plain text, and folders of these."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

COLUMNS = ("text", "content")
"""Columns of text that are tried, in this order, if none is named."""
PLAIN = (".txt", ".md", ".py")
LINES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
TABLES = (".parquet",)
READABLE = (*PLAIN, *LINES, *TABLES)


class GroupedDocument(NamedTuple):
    """A document and the group that it is held out with."""

    text: bytes
    group: bytes


def read_documents(path: str | Path, column: str | None = None) -> Iterator[bytes]:
    r"""Read the documents of a file, or of all readable files of a folder and its folders, sorted by path.

    A plain file (``.txt``, ``.md``, ``.py``) is one document. JSON lines (``.jsonl``, ``.json``, also with ``.gz``) and
    Parquet hold one document per line or row, in ``column`` (None: ``text`` or else ``content``).

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = Path(folder.name, "a.jsonl").write_text('{"text": "to be"}\n{"text": "or not"}\n')
        >>> list(read_documents(folder.name))
        [b'to be', b'or not']
        >>> folder.cleanup()
    """
    return (document.text for document in _read(list_files(path), column, None))


def read_grouped_documents(path: str | Path, split_by: str, column: str | None = None) -> Iterator[GroupedDocument]:
    """Read documents as :func:`read_documents`, each with the group that it is held out with.

    ``split_by`` is the column that names the group, such as a chapter's book. A plain file is a separate group.
    """
    return _read(list_files(path), column, split_by)


def list_files(path: str | Path) -> list[Path]:
    """Return the readable files under a path, sorted, without hidden ones."""
    path = Path(path)
    if path.is_file():
        if kind(path) is None:
            raise ValueError(f"path must be a file of the kinds {list(READABLE)}, got {str(path)!r}")
        if kind(path) in PLAIN and not path.stat().st_size:
            raise ValueError(f"path must hold text, got the empty file {str(path)!r}")
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"path must be a file or a folder, got {str(path)!r}, which is neither")
    files = [file for file in _visible(path) if kind(file)]
    if not files:
        raise FileNotFoundError(f"path must be a folder with files of the kinds {list(READABLE)}, got {str(path)!r}")
    return files


def passed_over(path: str | Path) -> list[Path]:
    """Return the files under a folder whose suffixes have no reader, without hidden files."""
    return [file for file in _visible(Path(path)) if not kind(file)] if Path(path).is_dir() else []


def _visible(folder: Path) -> list[Path]:
    inside = (p for p in folder.rglob("*") if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    return sorted(p for p in inside if p.is_file())


def kind(path: Path) -> str | None:
    """Return the file suffix that selects the reader, in lower case; None if the file cannot be read."""
    name = path.name.lower()
    return next((suffix for suffix in sorted(READABLE, key=len, reverse=True) if name.endswith(suffix)), None)


def pick_column(column: str | None, there: list[str], where: str) -> str:
    """Choose the column of the text among those ``there``; ``where`` names the table in errors."""
    columns = [name for name in (COLUMNS if column is None else (column,)) if name in there]
    if not columns:
        asked = f"column {column!r}" if column is not None else f"no column named, and none of {list(COLUMNS)}"
        raise ValueError(f"column must be one of {there} in {where}, got {asked}")
    return columns[0]


def encode_value(value: Any, where: str) -> bytes:
    """Return the UTF-8 bytes of a table's value; ``where`` names its place in errors."""
    if isinstance(value, bytes):
        return _check_utf8(value, where)
    if not isinstance(value, str):
        raise TypeError(f"column must hold texts, got {type(value).__name__} in {where}")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell and UTF-8 cannot
        raise ValueError(f"text must be UTF-8, got {error.reason} at character {error.start} of {where}") from None


def _check_utf8(text: bytes, where: str, begin: int = 0) -> bytes:
    """Return the text if it is UTF-8; ``begin`` is its place in a file."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"text must be UTF-8, got {error.reason} at byte {begin + error.start} of {where}; "
            f"`iconv -f latin1 -t utf8` rewrites Latin-1"
        ) from None
    return text


def _read(files: list[Path], column: str | None, split_by: str | None) -> Iterator[GroupedDocument]:
    """Read documents; without ``split_by``, groups are empty."""
    for path in files:
        if kind(path) in PLAIN:
            text = _check_utf8(path.read_bytes(), str(path))
            yield GroupedDocument(text, text)
            continue
        rows = _read_lines if kind(path) in LINES else _read_table
        for where, value, group in rows(path, column, split_by):
            if not isinstance(group, (str, int)):
                raise TypeError(f"split_by must name texts or integers, got {type(group).__name__} in {where}")
            yield GroupedDocument(encode_value(value, where), encode_value(str(group), where))


def _pick_columns(column: str | None, split_by: str | None, there: list[str], where: str) -> str:
    if split_by is not None and split_by not in there:
        raise ValueError(f"split_by must be one of {there} in {where}, or null for single documents, got {split_by!r}")
    return pick_column(column, there, where)


def _read_lines(path: Path, column: str | None, split_by: str | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place, text and group of each line of JSON."""
    begin = 0
    for number, line in enumerate(_lines(path), 1):
        where = f"line {number} of {path}"
        text = _check_utf8(line, str(path), begin)
        begin += len(line)
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"path must hold one JSON object per line, got {error} in {where}") from None
        if not isinstance(row, dict):
            raise ValueError(f"path must hold one JSON object per line, got a {type(row).__name__} in {where}")
        name = _pick_columns(column, split_by, list(row), where)
        yield where, row[name], "" if split_by is None else row[split_by]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"path must be a whole gzip file, got {str(path)!r}: {error}") from None


def _read_table(path: Path, column: str | None, split_by: str | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place, text and group of each row of Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"path must be a Parquet file, got {str(path)!r}: {error}") from None
    with closing(table):
        name = _pick_columns(column, split_by, table.schema_arrow.names, str(path))
        number = 0
        for batch in table.iter_batches(256, columns=[*{name, split_by or name}]):
            texts = batch.column(name)
            if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
                texts = texts.cast(pa.large_binary())  # Parquet does not check UTF-8
            groups = [""] * len(texts) if split_by is None else batch.column(split_by).to_pylist()
            for value, group in zip(texts.to_pylist(), groups, strict=True):
                yield f"row {number} of {path}", value, group
                number += 1

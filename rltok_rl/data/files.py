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
"""Columns that are tried, in this order, where none is named."""
PLAIN = (".txt", ".md", ".py")
LINES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
TABLES = (".parquet",)
READABLE = (*PLAIN, *LINES, *TABLES)


class GroupedDocument(NamedTuple):
    """A document and the group that it is held out with."""

    text: bytes
    group: bytes


def read_documents(path: str | Path, column: str | None = None) -> Iterator[bytes]:
    r"""The documents of a file, or of all readable files of a folder and those in it, in the order of their paths.

    A plain file (``.txt``, ``.md``, ``.py``) is one document. JSON lines (``.jsonl``, ``.json``, also with ``.gz``) and
    Parquet hold one document per line and row. Memory holds one document of plain text or JSON at a time, or a few
    hundred rows of Parquet. Empty documents of tables and folders are passed on: a
    :class:`~rltok_rl.data.LengthFilter` counts what it drops.

    Args:
        path: a file or a folder.
        column: where tables have their text; None takes ``text``, or else ``content``. Of no concern to plain files.

    Returns:
        UTF-8 bytes of each document.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = Path(folder.name, "a.jsonl").write_text('{"text": "to be"}\n{"text": "or not"}\n')
        >>> list(read_documents(folder.name))
        [b'to be', b'or not']
        >>> folder.cleanup()
    """
    return (document for document, _ in _read(_list_readable(path), column, None))


def read_grouped_documents(path: str | Path, split_by: str, column: str | None = None) -> Iterator[GroupedDocument]:
    r"""Read documents as :func:`read_documents` does, each with its value in a second column.

    Chapters of one book are no independent texts: :func:`~rltok_rl.data.split_documents` holds out whole groups.

    Args:
        path: a file or a folder.
        split_by: column of tables that names the group. A plain file is a group of its own.
        column: where tables have their text; None takes ``text``, or else ``content``.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> rows = '{"book": "Hamlet", "text": "to be"}\n{"book": "Hamlet", "text": "or not"}\n'
        >>> _ = Path(folder.name, "a.jsonl").write_text(rows)
        >>> [(document.text, document.group) for document in read_grouped_documents(folder.name, "book")]
        [(b'to be', b'Hamlet'), (b'or not', b'Hamlet')]
        >>> folder.cleanup()
    """
    return (GroupedDocument(*pair) for pair in _read(_list_readable(path), column, split_by))


def _list_readable(path: str | Path) -> list[Path]:
    files = list_files(path)
    if files == [Path(path)] and kind(files[0]) in PLAIN and not files[0].stat().st_size:
        raise ValueError(f"path must hold text, got the empty file {str(path)!r}")
    return files


def list_files(path: str | Path) -> list[Path]:
    """The readable files under a path, sorted; those of other kinds and hidden ones are passed over.

    Args:
        path: a file or a folder.
    """
    path = Path(path)
    if path.is_file():
        if kind(path) is None:
            raise ValueError(f"path must be a file of the kinds {list(READABLE)}, got {str(path)!r}")
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"path must be a file or a folder, got {str(path)!r}, which is neither")
    files = sorted(p for p in _visible(path) if kind(p))
    if not files:
        raise FileNotFoundError(f"path must be a folder with files of the kinds {list(READABLE)}, got {str(path)!r}")
    return files


def passed_over(path: str | Path) -> list[Path]:
    """The files under a folder, hidden ones aside, that :func:`list_files` does not list because of their endings.

    Args:
        path: a file or a folder.
    """
    return sorted(p for p in _visible(Path(path)) if not kind(p)) if Path(path).is_dir() else []


def _visible(folder: Path) -> Iterator[Path]:
    """All files in a folder and those in it, but for hidden ones."""
    inside = (p for p in folder.rglob("*") if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    return (p for p in inside if p.is_file())


def kind(path: Path) -> str | None:
    """The ending that a file is read by, in small letters; None if it cannot be read."""
    name = path.name.lower()
    return next((ending for ending in sorted(READABLE, key=len, reverse=True) if name.endswith(ending)), None)


def pick_column(column: str | None, there: list[str], where: str) -> str:
    """Choose the column that holds the text.

    Args:
        column: the one that was asked for, or None.
        there: the columns that there are.
        where: of what, for the message.
    """
    wanted = COLUMNS if column is None else (column,)
    found = [name for name in wanted if name in there]
    if not found:
        asked = f"column {column!r}" if column is not None else f"no column named, and none of {list(COLUMNS)}"
        raise ValueError(f"column must be one of {there} in {where}, got {asked}")
    return found[0]


def _check_split_by(split_by: str | None, there: list[str], where: str) -> None:
    if split_by is not None and split_by not in there:
        raise ValueError(
            f"split_by must be one of {there} in {where}, or null to hold out single documents, got {split_by!r}"
        )


def _encode_group(value: Any, where: str) -> bytes:
    if not isinstance(value, (str, int)):
        raise TypeError(f"split_by must name a column of texts or integers, got {type(value).__name__} in {where}")
    return encode_value(str(value), where)


def encode_value(value: Any, where: str) -> bytes:
    """The UTF-8 bytes of a table's value.

    Args:
        value: anything.
        where: it was found, for the message.
    """
    if not isinstance(value, str):
        raise TypeError(f"column must hold texts, got {type(value).__name__} in {where}")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell and UTF-8 cannot
        raise ValueError(f"text must be UTF-8, got {error.reason} at character {error.start} of {where}") from None


def _read(files: list[Path], column: str | None, split_by: str | None) -> Iterator[tuple[bytes, bytes]]:
    """Documents and their groups; without ``split_by`` the groups are empty."""
    for path in files:
        ending = kind(path)
        if ending in PLAIN:
            text = _checked(path.read_bytes(), str(path))
            yield text, text if split_by else b""
        elif ending in LINES:
            yield from _read_lines(path, column, split_by)
        else:
            yield from _read_table(path, column, split_by)


def _checked(text: bytes, where: str, begin: int = 0) -> bytes:
    """The text, if it is UTF-8; ``begin`` is where in the file it begins."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"text must be UTF-8, got {error.reason} at byte {begin + error.start} of {where}; "
            f"`iconv -f latin1 -t utf8` rewrites Latin-1"
        ) from None
    return text


def _read_lines(path: Path, column: str | None, split_by: str | None) -> Iterator[tuple[bytes, bytes]]:
    begin = 0
    for number, line in enumerate(_lines(path), 1):
        where = f"line {number} of {path}"
        text = _checked(line, f"{path}", begin)
        begin += len(line)
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"path must hold one JSON object per line, got {error} in {where}") from None
        if not isinstance(row, dict):
            raise ValueError(f"path must hold one JSON object per line, got a {type(row).__name__} in {where}")
        text = encode_value(row[pick_column(column, list(row), where)], where)
        _check_split_by(split_by, list(row), where)
        yield text, b"" if split_by is None else _encode_group(row[split_by], where)


def _lines(path: Path) -> Iterator[bytes]:
    if not path.name.lower().endswith(".gz"):
        with path.open("rb") as file:
            yield from file
        return
    try:
        with gzip.open(path) as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"path must be a whole gzip file, got {str(path)!r}: {error}") from None


def _read_table(path: Path, column: str | None, split_by: str | None) -> Iterator[tuple[bytes, bytes]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"path must be a Parquet file, got {str(path)!r}: {error}") from None
    with closing(table):
        schema = table.schema_arrow
        name = pick_column(column, schema.names, str(path))
        held = schema.field(name).type
        if not (pa.types.is_string(held) or pa.types.is_large_string(held)):
            raise TypeError(f"column must hold texts, got {held} in column {name!r} of {path}")
        _check_split_by(split_by, schema.names, str(path))
        number = 0
        for batch in table.iter_batches(256, columns=[name] if split_by in (None, name) else [name, split_by]):
            # As bytes: Parquet promises UTF-8 and nobody checks it.
            texts = batch.column(name).cast(pa.large_binary()).to_pylist()
            groups = [None] * len(texts) if split_by is None else batch.column(split_by).to_pylist()
            for value, group in zip(texts, groups, strict=True):
                where = f"row {number} of {path}"
                if value is None:
                    raise TypeError(f"column must hold texts, got None in {where}")
                yield _checked(value, where), b"" if split_by is None else _encode_group(group, where)
                number += 1

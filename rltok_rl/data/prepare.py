"""A cache of a corpus or of local files, in one call."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rltok_rl.data.byte_cache import CachedSource, write_cache
from rltok_rl.data.corpora import CORPORA, stream_corpus
from rltok_rl.data.disk import add_file
from rltok_rl.data.files import GroupedDocument, list_files, read_documents, read_grouped_documents
from rltok_rl.data.filters import LengthFilter
from rltok_rl.data.source import Short


def prepare_cache(
    source: str | Path,
    folder: str | Path,
    *,
    column: str | None = None,
    split_by: str | None = None,
    min_bytes: int = 4096,
    max_bytes: int | None = 4096,
    limit: int | None = None,
    short_documents: Short = "error",
    progress: bool = False,
    sha256: str | None = None,
    **options: Any,
) -> CachedSource:
    """Read, filter and cache documents; use the cache if it exists.

    Local files are identified by their content, a corpus by its name, commit and options.

    Args:
        source: a key of :data:`~rltok_rl.data.CORPORA`, or the path of a file or a folder.
        column: as for :func:`~rltok_rl.data.read_documents`; local files only.
        split_by: as for :func:`~rltok_rl.data.read_grouped_documents`; None holds out single documents.
        limit: number of documents to read; None reads all.
        sha256: :func:`fingerprint` of local files, if known.
        **options: options of :func:`~rltok_rl.data.stream_corpus`, numbers and texts.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 or None, got {limit}")
    documents: Iterable[bytes | GroupedDocument]
    if isinstance(source, str) and source in CORPORA:
        for name, value in (("column", column), ("split_by", split_by)):
            if value is not None:
                raise ValueError(f"{name} must be None for the corpus {source!r}, got {value!r}")
        documents, made_from = stream_corpus(source, **options), {**vars(CORPORA[source]), **options}
    else:
        if options:
            raise ValueError(f"options must be empty for local files, got {sorted(options)}")
        if not Path(source).exists():
            raise FileNotFoundError(f"source must be one of {list(CORPORA)}, a file or a folder, got {str(source)!r}")
        made_from = {"sha256": sha256 or fingerprint(Path(source)), "column": column}
        if split_by is None:
            documents = read_documents(source, column)
        else:
            documents = read_grouped_documents(source, split_by, column)
            made_from |= {"split_by": split_by}
    settings = {"source": made_from, "min_bytes": min_bytes, "max_bytes": max_bytes, "limit": limit}
    kept = LengthFilter(itertools.islice(documents, limit), min_bytes=min_bytes, max_bytes=max_bytes)
    write_cache(kept, folder, settings=settings, progress=progress)
    return CachedSource(folder, short_documents=short_documents)


def fingerprint(path: Path) -> str:
    """Hash the names and bytes of all readable files under a path."""
    digest = hashlib.sha256()
    for file in list_files(path):
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        digest.update(f"{len(name)}/{name}/{file.stat().st_size}/".encode())
        add_file(digest, file)
    return digest.hexdigest()

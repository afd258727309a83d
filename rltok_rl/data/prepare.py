"""From the name of a corpus, or a path, to a cache of it, in one call."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rltok_rl.data.byte_cache import write_cache
from rltok_rl.data.cached import CachedSource
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
    """Read documents, drop short ones, cut long ones, and keep them in a folder; use the folder if it is there already.

    Local files are read once more to tell whether they are those that the folder was made from. Of a corpus on the hub
    the name and the options are compared; give ``revision`` to pin its content.

    Args:
        source: a key of :data:`~rltok_rl.data.CORPORA`, or the path of a file or a folder.
        folder: of the cache.
        column: of local tables; see :func:`~rltok_rl.data.read_documents`. A corpus has its own.
        split_by: column of local tables whose value names the group that a document is held out with, a book's title
            for instance; None holds out single documents.
        min_bytes: shorter documents are dropped.
        max_bytes: longer ones are cut to this; None leaves them whole.
        limit: documents to look at, from the start; None for all.
        short_documents: as for :class:`~rltok_rl.data.TextSource`.
        progress: whether to say on stderr how far it has come.
        sha256: :func:`fingerprint` of local files, where it is known; None reads them for it.
        **options: of :func:`~rltok_rl.data.stream_corpus`, numbers and texts.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = Path(folder.name, "play.txt").write_text("to be or not to be")
        >>> cache = prepare_cache(Path(folder.name, "play.txt"), Path(folder.name, "cache"), min_bytes=5, max_bytes=8)
        >>> cache.document(0), cache.index.report["cut_bytes"]
        (b'to be or', 10)
        >>> folder.cleanup()
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 or None, got {limit}")
    documents: Iterable[bytes | GroupedDocument]
    made_from: dict[str, Any]
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
    """A hash of the names and the bytes of all files that are read.

    Args:
        path: a file or a folder.
    """
    digest = hashlib.sha256()
    for file in list_files(path):
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        digest.update(f"{len(name)}/{name}/{file.stat().st_size}/".encode())
        add_file(digest, file)
    return digest.hexdigest()

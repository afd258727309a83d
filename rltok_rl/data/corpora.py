"""Text by name: from the package, from Python, and the paper's corpora, streamed with ``datasets``."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltok_rl.data.files import encode_value, pick_column

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
"""Folder that :func:`local_code` reads."""
_NOVEL = Path(__file__).parents[1] / "assets" / "novel" / "text.txt"


def local_prose(num_bytes: int | None = None) -> bytes:
    """Return English prose that comes with Python: the language reference behind ``help()``, about 700 kB.

    The text is UTF-8, with single spaces and without the underlines of headings; ``num_bytes`` cuts it.

    Example:
        >>> len(local_prose(100))
        100
    """
    from pydoc_data.topics import topics

    first = [name for name in ("execmodel", "objects", "naming", "exceptions") if name in topics]
    chapters = [topics[name] for name in first] + [topics[name] for name in sorted(set(topics) - set(first))]
    lines = [line for chapter in chapters for line in chapter.splitlines() if line.strip("*=-~^ ")]
    return " ".join(" ".join(lines).split()).encode("utf-8")[:num_bytes]


def packaged_novel(num_bytes: int | None = None) -> bytes:
    """Return the packaged text: fourteen chapters of *Pride and Prejudice*, 115 kB; ``num_bytes`` cuts it.

    It is the same for every version of Python. The packaged model ``pocket`` has read books like it, but not this one.

    Example:
        >>> packaged_novel(56)
        b'It is a truth universally acknowledged, that a single ma'
    """
    return _NOVEL.read_bytes()[:num_bytes]


def local_code(num_bytes: int | None = None) -> bytes:
    """Return the source of Python's standard library without its tests, about 12 MB; ``num_bytes`` cuts it.

    Example:
        >>> len(local_code(100))
        100
    """
    parts, size = [], 0
    for path in sorted(STANDARD_LIBRARY.rglob("*.py")):
        inside = path.relative_to(STANDARD_LIBRARY).parts
        if any(part in ("site-packages", "dist-packages") or part.startswith("test") for part in inside):
            continue
        parts.append(path.read_bytes())
        size += len(parts[-1]) + 1
        if num_bytes is not None and size >= num_bytes:
            break
    return b"\n".join(parts)[:num_bytes]


@dataclass(frozen=True)
class Corpus:
    """A dataset and its column of text."""

    path: str
    """Name on the Hugging Face hub, or another argument of ``datasets.load_dataset``."""
    column: str | None = None
    """Column of the text; None is ``text`` or else ``content``."""
    configuration: str | None = None
    split: str = "train"
    revision: str | None = None
    """Commit on the hub that is read; None is the current one, which a key of :data:`CORPORA` never takes."""


_FINEWEB = "9bb295ddab0e05d785b879661af7260fed5140fc"  # v1.4.0
CORPORA = {
    "fineweb-10bt": Corpus("HuggingFaceFW/fineweb", "text", "sample-10BT", revision=_FINEWEB),
    "fineweb-100bt": Corpus("HuggingFaceFW/fineweb", "text", "sample-100BT", revision=_FINEWEB),
    "codeparrot": Corpus("transformersbook/codeparrot", "content"),  # what the paper cites
    "codeparrot-clean": Corpus(  # the same without duplicates
        "codeparrot/codeparrot-clean", "content", revision="35a59fb025bc0a102f7d96eac09d145b896d487b"
    ),
}
"""Corpora by name."""


def current_commit(corpus: Corpus) -> str:
    """Return the commit that a corpus has on the hub now."""
    from huggingface_hub import HfApi

    try:
        sha = HfApi().dataset_info(corpus.path).sha
    except Exception as error:  # of httpx or requests, which are no OSError in all versions
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ConnectionError(
            f"revision must name a commit of {corpus.path}, because the hub did not answer which one is current "
            f"({type(error).__name__}: {reason})"
        ) from error
    if sha is None:
        raise ValueError(f"revision must name a commit of {corpus.path}, because the hub names none")
    return str(sha)


def stream_corpus(corpus: str | Corpus, **options: Any) -> Iterator[bytes]:
    """Stream the documents of a corpus as UTF-8 bytes, without storing them.

    Args:
        corpus: a key of :data:`CORPORA`, or a :class:`Corpus`.
        **options: options of ``datasets.load_dataset``, such as ``data_files``, or ``revision`` in place of the
            corpus's own.

    Example:
        >>> documents = stream_corpus("fineweb-10bt")  # nothing is fetched yet
        >>> CORPORA["fineweb-10bt"].path
        'HuggingFaceFW/fineweb'
    """
    if isinstance(corpus, str):
        if corpus not in CORPORA:
            raise ValueError(f"corpus must be one of {list(CORPORA)} or a Corpus, got {corpus!r}")
        corpus = CORPORA[corpus]
    if "streaming" in options or "split" in options:
        raise ValueError("options must not hold 'streaming' (always on) or 'split' (a field of Corpus)")
    return _stream(corpus, options)


def _stream(corpus: Corpus, options: dict[str, Any]) -> Iterator[bytes]:
    from datasets import load_dataset  # seconds to import

    options = {"revision": corpus.revision, **options}
    named = next((name for name, known in CORPORA.items() if known is corpus), None)
    if named is not None and not options["revision"]:
        raise ValueError(
            f"revision must name a commit of {corpus.path}, because no commit of {named!r} is known; "
            f"rltok_rl.data.corpora.current_commit(CORPORA[{named!r}]) returns the hub's current one"
        )
    rows = load_dataset(corpus.path, corpus.configuration, split=corpus.split, streaming=True, **options)
    column = corpus.column
    if rows.column_names:  # unknown for some formats, such as JSON
        column = pick_column(corpus.column, rows.column_names, corpus.path)
        rows = rows.select_columns([column])
    for number, row in enumerate(rows):
        where = f"row {number} of {corpus.path}"
        if column not in row:
            column = pick_column(corpus.column, list(row), where)
        yield encode_value(row[column], where)

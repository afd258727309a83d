"""The corpora of the paper, streamed with ``datasets`` under their own names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rltok_rl.data.files import encode_value, pick_column


@dataclass(frozen=True)
class Corpus:
    """Where a corpus lies, and which column is its text."""

    path: str
    """Name on the Hugging Face hub, or what else ``datasets.load_dataset`` takes."""
    column: str | None = None
    """Column of the text; None takes ``text``, or else ``content``."""
    configuration: str | None = None
    split: str = "train"


CORPORA = {
    "fineweb-10bt": Corpus("HuggingFaceFW/fineweb", "text", "sample-10BT"),
    "fineweb-100bt": Corpus("HuggingFaceFW/fineweb", "text", "sample-100BT"),
    "codeparrot": Corpus("transformersbook/codeparrot", "content"),  # what the paper cites
    "codeparrot-clean": Corpus("codeparrot/codeparrot-clean", "content"),  # the same without duplicates
}
"""Corpora by name."""


def stream_corpus(corpus: str | Corpus, **options: Any) -> Iterator[bytes]:
    """The documents of a corpus as they come over the network, none kept on disk.

    Args:
        corpus: a key of :data:`CORPORA`, or a :class:`Corpus`.
        **options: passed on to ``datasets.load_dataset``: ``data_files`` for files of one's own, ``revision`` to pin
            what is read.

    Returns:
        UTF-8 bytes of each document.

    Example:
        >>> documents = stream_corpus("fineweb-10bt")  # nothing is fetched before the first one is asked for
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

    rows = load_dataset(corpus.path, corpus.configuration, split=corpus.split, streaming=True, **options)
    column = corpus.column
    if rows.column_names:  # unknown for formats that do not say, JSON for one
        column = pick_column(corpus.column, rows.column_names, corpus.path)
        rows = rows.select_columns([column])
    for number, row in enumerate(rows):
        where = f"row {number} of {corpus.path}"
        if column not in row:
            column = pick_column(corpus.column, list(row), where)
        yield encode_value(row[column], where)

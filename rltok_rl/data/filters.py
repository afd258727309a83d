"""A filter that drops short documents, cuts long ones, and counts both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rltok_rl.data.files import GroupedDocument
from rltok_rl.text import text_to_bytes


@dataclass
class FilterReport:
    """Counts of documents that a filter kept, dropped and cut; kept documents include cut ones."""

    min_bytes: int
    max_bytes: int | None
    kept: int = 0
    kept_bytes: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    cut: int = 0
    cut_bytes: int = 0

    def __str__(self) -> str:
        documents, size = self.kept + self.dropped, self.kept_bytes + self.dropped_bytes + self.cut_bytes
        text = (
            f"kept {self.kept:,} of {documents:,} documents ({self.kept_bytes:,} of {size:,} bytes); "
            f"dropped {self.dropped:,} with fewer than {self.min_bytes:,} bytes ({self.dropped_bytes:,} bytes)"
        )
        if self.max_bytes is None:
            return text
        return f"{text}; cut {self.cut:,} to their first {self.max_bytes:,} bytes ({self.cut_bytes:,} bytes cut off)"

    def to_dict(self) -> dict[str, int | None]:
        """Return all counts by name."""
        return asdict(self)


class LengthFilter:
    """Documents of at least ``min_bytes``, cut to their first ``max_bytes``; ``report`` counts.

    With the defaults every document has exactly the paper's 4096 bytes. A cut may split a character of UTF-8. A
    :class:`~rltok_rl.data.GroupedDocument` keeps its group.

    Example:
        >>> documents = LengthFilter(["to be", "or", "not to be"], min_bytes=4, max_bytes=6)
        >>> list(documents), documents.report.dropped
        ([b'to be', b'not to'], 1)
    """

    def __init__(
        self, documents: Iterable[str | bytes | GroupedDocument], *, min_bytes: int = 4096, max_bytes: int | None = 4096
    ) -> None:
        if min_bytes < 2:
            raise ValueError(f"min_bytes must be at least 2 (one byte to read, one to predict), got {min_bytes}")
        if max_bytes is not None and max_bytes < 2:
            raise ValueError(f"max_bytes must be at least 2 or None, got {max_bytes}")
        if isinstance(documents, (str, bytes)):
            raise TypeError("documents must be several texts, got one; put it in a list")
        self.documents, self.min_bytes, self.max_bytes = documents, min_bytes, max_bytes
        #: counts of the last iteration so far
        self.report = FilterReport(min_bytes, max_bytes)

    def __iter__(self) -> Iterator[Any]:
        self.report = report = FilterReport(self.min_bytes, self.max_bytes)
        for document in self.documents:
            grouped = isinstance(document, GroupedDocument)
            whole = text_to_bytes(document.text if grouped else document)  # type: ignore[union-attr, arg-type]
            if len(whole) < self.min_bytes:
                report.dropped += 1
                report.dropped_bytes += len(whole)
                continue
            text = whole[: self.max_bytes]
            report.kept += 1
            report.kept_bytes += len(text)
            report.cut += len(text) < len(whole)
            report.cut_bytes += len(whole) - len(text)
            yield document._replace(text=text) if grouped else text  # type: ignore[union-attr]

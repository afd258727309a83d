"""Which documents are long enough, and how much of each is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rltok_rl.data.files import GroupedDocument
from rltok_rl.text import text_to_bytes


@dataclass
class FilterReport:
    """What a filter did to documents."""

    min_bytes: int
    max_bytes: int | None
    kept: int = 0
    """Documents passed on, cut or not."""
    kept_bytes: int = 0
    """Bytes passed on."""
    dropped: int = 0
    """Documents with fewer than ``min_bytes`` bytes."""
    dropped_bytes: int = 0
    """Their bytes."""
    cut: int = 0
    """Documents with more than ``max_bytes`` bytes, which are among those kept."""
    cut_bytes: int = 0
    """Bytes cut off their ends."""

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
        """All counts by name."""
        return asdict(self)


class LengthFilter:
    """Documents that are long enough, cut to their first bytes; what is dropped and cut is counted.

    With the defaults every document has exactly the paper's 4096 bytes. A cut may fall inside a UTF-8 character, which
    is of no matter to bytes.

    Args:
        documents: texts or UTF-8 bytes; a :class:`~rltok_rl.data.GroupedDocument` keeps its group.
        min_bytes: shorter documents are dropped.
        max_bytes: longer ones are cut to this; None leaves them whole.

    Example:
        >>> some = LengthFilter(["to be", "or", "not to be"], min_bytes=4, max_bytes=6)
        >>> list(some)
        [b'to be', b'not to']
        >>> print(some.report)
        kept 2 of 3 documents (11 of 16 bytes); dropped 1 with fewer than 4 bytes (2 bytes); cut 1 to their first
        6 bytes (3 bytes cut off)
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
        #: of the last iteration, and as far as that has come
        self.report = FilterReport(min_bytes, max_bytes)

    def __iter__(self) -> Iterator[Any]:
        self.report = report = FilterReport(self.min_bytes, self.max_bytes)
        for document in self.documents:
            group = document.group if isinstance(document, GroupedDocument) else None
            text = text_to_bytes(document.text if isinstance(document, GroupedDocument) else document)
            size = len(text)
            if size < self.min_bytes:
                report.dropped += 1
                report.dropped_bytes += size
                continue
            if self.max_bytes is not None and size > self.max_bytes:
                text = text[: self.max_bytes]
                report.cut += 1
                report.cut_bytes += size - self.max_bytes
            report.kept += 1
            report.kept_bytes += len(text)
            yield text if group is None else GroupedDocument(text, group)

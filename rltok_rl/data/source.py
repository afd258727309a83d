"""Documents, and windows drawn at random places of them."""

from __future__ import annotations

import copy
import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from rltok_rl.data.windows import Documents, Places, Windows, WindowSource
from rltok_rl.text import text_to_bytes

Short = Literal["error", "whole"]
Self = TypeVar("Self", bound="DocumentSource")


class DocumentSource(WindowSource):
    """Windows of documents that lie one after the other in a text.

    All places where a whole window fits are equally likely, so that long documents are drawn more often.

    Args:
        starts: [documents] int64, where each begins.
        lengths: [documents] int64, bytes of each, at least 2.
        short_documents: ``"error"`` rejects windows that are longer than a document; ``"whole"`` draws such a document
            as a whole, as often as one that fits a window exactly, and the window is shorter.
    """

    split_by: str | None = None
    """The column whose groups are held out as a whole; None if single documents are."""

    def __init__(self, starts: Tensor, lengths: Tensor, *, short_documents: Short = "error") -> None:
        if short_documents not in ("error", "whole"):
            raise ValueError(f"short_documents must be one of ['error', 'whole'], got {short_documents!r}")
        if not len(lengths):
            raise ValueError("documents must hold at least one text, got none")
        if int(lengths.min()) < 2:
            number = int((lengths < 2).nonzero()[0])
            raise ValueError(
                f"documents must have at least 2 bytes each (one to read, one to predict), "
                f"got {int(lengths[number])} in document {number}"
            )
        self.starts, self.lengths, self.short_documents = starts, lengths, short_documents
        self._last_places: tuple[int, Tensor, Tensor] | None = None  # of the last window length, which seldom changes

    @abstractmethod
    def cut(self, start: int, stop: int) -> np.ndarray:
        """Return bytes ``start`` to ``stop`` of the whole text as uint8, not to be written to."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes of all documents."""
        return int(self.lengths.sum())

    def document(self, number: int) -> bytes:
        """Return a whole document."""
        if not 0 <= number < self.num_documents:
            raise IndexError(f"number must lie in 0..{self.num_documents - 1}, got {number}")
        start = int(self.starts[number])
        return self.cut(start, start + int(self.lengths[number])).tobytes()

    def documents(self) -> Iterator[bytes]:
        """Return all documents, one after the other."""
        return (self.document(number) for number in range(self.num_documents))

    def keys(self) -> Tensor:
        """Hash each document, or its group, [documents] int64."""
        return torch.tensor([document_key(document) for document in self.documents()])

    def with_documents(self: Self, starts: Tensor, lengths: Tensor) -> Self:
        """Return a source of other documents of the same text, without copying the text."""
        other = copy.copy(self)
        DocumentSource.__init__(other, starts, lengths, short_documents=self.short_documents)
        return other

    def check_length(self, length: int) -> None:
        """Reject a window length that is too long for a document."""
        super().check_length(length)
        self._places(length)

    def _places(self, length: int) -> tuple[Tensor, Tensor]:
        """Numbers of places where a window may start, in each document and summed up; [documents] both."""
        if self._last_places is None or self._last_places[0] != length:
            short = (self.lengths < length).nonzero()
            if len(short) and self.short_documents == "error":
                everyone = len(short) == self.num_documents
                number = int(self.lengths.argmax()) if everyone else int(short[0])
                raise ValueError(
                    f"documents must have at least the {length} bytes of a window, got {int(self.lengths[number])} in "
                    f"document {number}{', the longest' if everyone else ''} "
                    f"({len(short)} of {self.num_documents} are too short); "
                    f"short_documents='whole' (of the source, or of gymnasium.make) draws them as they are"
                )
            places = (self.lengths - length + 1).clamp(min=1)
            self._last_places = length, places, places.cumsum(0)
        return self._last_places[1:]

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Draw places."""
        places, ends = self._places(length)
        place = torch.randint(int(ends[-1]), (num_rows,), generator=generator)
        document = torch.searchsorted(ends, place, right=True)
        return Places(document, place - (ends - places)[document])

    def read(self, places: Places, length: int) -> Windows:
        """Read windows; a window that reaches beyond its document is shorter."""
        lengths, ends = self.measure(places, length)
        starts = self.starts[places.document] + places.offset
        rows = np.zeros((len(lengths), length), dtype=np.uint8)
        for row, start, size in zip(rows, starts.tolist(), lengths.tolist(), strict=True):
            row[:size] = self.cut(start, start + size)  # faster than an index with an entry for each byte
        return Windows(torch.from_numpy(rows).long(), lengths, ends)

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Return the windows' lengths [n], and whether they end their documents [n], without reading them."""
        size = self.lengths[places.document]
        lengths = (size - places.offset).clamp(max=length)
        return lengths, places.offset + lengths == size


class TextSource(DocumentSource):
    """Windows of documents in memory.

    Args:
        documents: one text or several, of at least 2 bytes each.
        short_documents: as for :class:`DocumentSource`.

    Example:
        >>> source = TextSource(["to be or not to be", "that is the question"])
        >>> source.draw(3, 8, torch.Generator().manual_seed(0)).byte_ids.shape
        torch.Size([3, 8])
    """

    def __init__(self, documents: Documents, *, short_documents: Short = "error") -> None:
        if isinstance(documents, Path):
            raise TypeError(f"documents must be texts, got {documents!r}; read_documents(path) reads files and folders")
        if not isinstance(documents, Iterable):
            raise TypeError(f"documents must be a text or several, str or bytes, got {type(documents).__name__}")
        texts = [text_to_bytes(text) for text in ([documents] if isinstance(documents, (str, bytes)) else documents)]
        lengths = torch.tensor([len(text) for text in texts], dtype=torch.int64)
        super().__init__(lengths.cumsum(0) - lengths, lengths, short_documents=short_documents)
        #: [all bytes] uint8, all documents, one after the other
        self.bytes = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)

    def cut(self, start: int, stop: int) -> np.ndarray:
        """Return bytes ``start`` to ``stop`` of the whole text as uint8, not to be written to."""
        return self.bytes[start:stop].numpy()


def document_key(document: bytes) -> int:
    """Hash a document to an integer in -2^63 .. 2^63 - 1, which is part of what a split or a cache means."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little", signed=True)

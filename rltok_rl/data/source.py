"""Documents, and windows drawn from them."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from rltok_rl.data.windows import Places, Windows, WindowSource
from rltok_rl.text import text_to_bytes

Documents = str | bytes | Sequence[str | bytes]
Short = Literal["error", "whole"]
Self = TypeVar("Self", bound="DocumentSource")


class DocumentSource(WindowSource):
    """Windows of a fixed length at random places of documents that lie one after the other, wherever that is.

    A place is drawn uniformly from all places where a whole window fits, so that long documents are met more often.

    Args:
        starts: [documents] int64, where each begins.
        lengths: [documents] int64, bytes of each, at least 2.
        short_documents: as for :class:`TextSource`.
    """

    def __init__(self, starts: Tensor, lengths: Tensor, *, short_documents: Short = "error") -> None:
        if short_documents not in ("error", "whole"):
            raise ValueError(f"short_documents must be one of ['error', 'whole'], got {short_documents!r}")
        if not len(lengths):
            raise ValueError("documents must hold at least one text, got none")
        short = (lengths < 2).nonzero()
        if len(short):
            number = int(short[0])
            raise ValueError(
                f"documents must have at least 2 bytes each (one to read, one to predict), "
                f"got {int(lengths[number])} in document {number}"
            )
        self.starts, self.lengths, self.short_documents = starts, lengths, short_documents
        # What was found out about the last window length: it seldom changes, and documents may be many.
        self._table: tuple[int, Tensor, Tensor] | None = None
        self._good_length: int | None = None

    @abstractmethod
    def cut(self, start: int, stop: int) -> np.ndarray:
        """Bytes of the whole text from one position up to another, [stop - start] uint8, not to be written to."""

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes of all documents."""
        return int(self.lengths.sum())

    def document(self, number: int) -> bytes:
        """One document as a whole."""
        if not 0 <= number < self.num_documents:
            raise IndexError(f"number must lie in 0..{self.num_documents - 1}, got {number}")
        start = int(self.starts[number])
        return self.cut(start, start + int(self.lengths[number])).tobytes()

    def documents(self) -> Iterator[bytes]:
        """All documents, one after the other."""
        return (self.document(number) for number in range(self.num_documents))

    def with_documents(self: Self, starts: Tensor, lengths: Tensor) -> Self:
        """The same text cut into other documents, a part of them for instance; nothing is copied.

        Args:
            starts: [documents] where each begins in the text.
            lengths: [documents] bytes of each.
        """
        other = copy.copy(self)
        DocumentSource.__init__(other, starts, lengths, short_documents=self.short_documents)
        return other

    def _places(self, length: int) -> tuple[Tensor, Tensor]:
        """How many places a window may start at, in each document and in all up to and with it; [documents] both."""
        if self._table is None or self._table[0] != length:
            places = (self.lengths - length + 1).clamp(min=1)
            self._table = length, places, places.cumsum(0)
        return self._table[1:]

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Draw places."""
        places, ends = self._places(length)
        place = torch.randint(int(ends[-1]), (num_rows,), generator=generator)
        document = torch.searchsorted(ends, place, right=True)
        return Places(document, place - (ends - places)[document])

    def read(self, places: Places, length: int) -> Windows:
        """Read windows; one that its document has fewer bytes for is shorter."""
        lengths, ends = self.measure(places, length)
        starts = self.starts[places.document] + places.offset
        # Row by row: a slice copies a window at once, where an index would be asked for each of its bytes.
        rows = np.zeros((len(lengths), length), dtype=np.uint8)
        for row, start, size in zip(rows, starts.tolist(), lengths.tolist(), strict=True):
            row[:size] = self.cut(start, start + size)
        return Windows(torch.from_numpy(rows).long(), lengths, ends)

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Bytes of windows, and whether each ends with its document, [n] both; no text is read."""
        size = self.lengths[places.document]
        lengths = (size - places.offset).clamp(max=length)
        return lengths, places.offset + lengths == size

    def check_length(self, length: int) -> None:
        """Refuse a window length that documents cannot serve."""
        if length < 2:
            raise ValueError(f"length must be at least 2 (one byte to read, one to predict), got {length}")
        if self.short_documents == "whole" or length == self._good_length:
            return
        short = (self.lengths < length).nonzero()
        if not len(short):
            self._good_length = length
            return
        everyone = len(short) == self.num_documents
        number = int(self.lengths.argmax()) if everyone else int(short[0])
        raise ValueError(
            f"documents must have at least the {length} bytes of a window, got {int(self.lengths[number])} in "
            f"document {number}{', the longest' if everyone else ''} "
            f"({len(short)} of {self.num_documents} are too short); "
            f"short_documents='whole' (of the source, or of gymnasium.make) draws them as they are, and drops nothing"
        )


class TextSource(DocumentSource):
    """Windows of a fixed length at random places of a set of documents in memory.

    A place is drawn uniformly from all places where a whole window fits, so that long documents are met more often.

    Args:
        documents: one text or several, none empty.
        short_documents: what to do with a document that is shorter than a window: ``"error"`` refuses it;
            ``"whole"`` draws it as a whole, as often as a document that fits one window exactly, and the window is
            shorter then.

    Example:
        >>> source = TextSource(["to be or not to be", "that is the question"])
        >>> source.draw(3, 8, torch.Generator().manual_seed(0)).byte_ids.shape
        torch.Size([3, 8])
    """

    def __init__(self, documents: Documents, *, short_documents: Short = "error") -> None:
        if isinstance(documents, (str, bytes)):
            documents = [documents]
        if isinstance(documents, Path):
            raise TypeError(f"documents must be texts, got {documents!r}; read_documents(path) reads files and folders")
        texts = [text_to_bytes(document) for document in documents]
        lengths = torch.tensor([len(text) for text in texts], dtype=torch.int64)
        super().__init__(lengths.cumsum(0) - lengths, lengths, short_documents=short_documents)
        #: [all bytes] uint8, all documents, one after the other
        self.bytes = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)

    def cut(self, start: int, stop: int) -> np.ndarray:
        """Bytes of the whole text from one position up to another, [stop - start] uint8, not to be written to."""
        return self.bytes[start:stop].numpy()

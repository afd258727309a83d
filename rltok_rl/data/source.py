"""Documents in memory, and windows drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rltok_rl.functional.text import text_to_ids

Documents = str | bytes | Sequence[str | bytes]


@dataclass(frozen=True)
class Windows:
    """Windows of text, one per row."""

    byte_ids: Tensor  # [n, length] int64; beyond a row's own length there are zeros
    lengths: Tensor  # [n] bytes of each window
    ends: Tensor  # [n] bool, whether the window's last byte is the last of its document


class TextSource:
    """Windows of a fixed length at random places of a set of documents.

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

    def __init__(self, documents: Documents, *, short_documents: Literal["error", "whole"] = "error") -> None:
        if isinstance(documents, (str, bytes)):
            documents = [documents]
        if not len(documents):
            raise ValueError("documents must hold at least one text, got none")
        if short_documents not in ("error", "whole"):
            raise ValueError(f"short_documents must be one of ['error', 'whole'], got {short_documents!r}")
        ids = [text_to_ids(document) for document in documents]
        for number, one in enumerate(ids):
            if len(one) < 2:
                raise ValueError(
                    f"documents must have at least 2 bytes each (one to read, one to predict), "
                    f"got {len(one)} in document {number}"
                )
        self.short_documents = short_documents
        self.lengths = torch.tensor([len(one) for one in ids])  # [documents]
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.bytes = torch.cat(ids)  # all documents, one after the other

    def draw(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Windows:
        """Draw windows.

        Args:
            num_rows: how many.
            length: bytes of each, at least 2.
            generator: source of the random numbers.
        """
        self.check_length(length)
        places = (self.lengths - length + 1).clamp(min=1)  # [documents] where a window may start in each
        ends = places.cumsum(0)
        place = torch.randint(int(ends[-1]), (num_rows,), generator=generator)
        document = torch.searchsorted(ends, place, right=True)
        offset = place - (ends - places)[document]
        taken = self.lengths[document].clamp(max=length)
        columns = torch.arange(length)
        inside = columns < taken[:, None]
        index = (self.starts[document] + offset)[:, None] + columns
        byte_ids = self.bytes[index.clamp(max=len(self.bytes) - 1)] * inside
        return Windows(byte_ids, taken, offset + taken == self.lengths[document])

    def check_length(self, length: int) -> None:
        """Refuse a window length that documents cannot serve."""
        if length < 2:
            raise ValueError(f"length must be at least 2 (one byte to read, one to predict), got {length}")
        short = (self.lengths < length).nonzero()
        if len(short) and self.short_documents == "error":
            number = int(short[0])
            raise ValueError(
                f"documents must have at least the {length} bytes of a window, got {int(self.lengths[number])} in "
                f"document {number} ({len(short)} of {len(self.lengths)} are too short); "
                f"short_documents='whole' draws them as they are, and drops nothing"
            )


class RepeatedSource(TextSource):
    """Windows of another source, each dealt to several rows in succession.

    Rows that read one text with boundaries of their own differ by what the boundaries did alone, which is what
    ``group_centred`` advantages compare.

    Args:
        source: where windows come from.
        times: rows per window.

    Example:
        >>> source = RepeatedSource(TextSource("to be or not to be"), times=2)
        >>> windows = source.draw(4, 8, torch.Generator().manual_seed(0))
        >>> bool((windows.byte_ids[0::2] == windows.byte_ids[1::2]).all())
        True
    """

    def __init__(self, source: TextSource, times: int) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        self.__dict__.update(source.__dict__)  # the same documents, not a copy of them
        self.source, self.times = source, times

    def draw(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Windows:
        """Draw windows for ``num_rows`` rows, ``times`` of each.

        Args:
            num_rows: a multiple of ``times``.
            length: bytes of each, at least 2.
            generator: source of the random numbers.
        """
        if num_rows % self.times:
            raise ValueError(f"num_rows must be a multiple of times={self.times}, got {num_rows}")
        drawn = self.source.draw(num_rows // self.times, length, generator)
        parts = (x.repeat_interleave(self.times, 0) for x in (drawn.byte_ids, drawn.lengths, drawn.ends))
        return Windows(*parts)

    def check_length(self, length: int) -> None:
        """Refuse a window length that the source cannot serve."""
        self.source.check_length(length)

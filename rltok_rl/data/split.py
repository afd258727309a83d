"""Documents to train on, and held-out documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch

from rltok_rl.data.source import DocumentSource

Source = TypeVar("Source", bound=DocumentSource)


@dataclass(frozen=True)
class Split(Generic[Source]):
    """Two sources without a document in common."""

    train: Source
    held_out: Source
    by: Literal["document", "group", "tail"]
    """By a hash of each document or of its group, or the end of a single text is held out."""

    def __str__(self) -> str:
        how = {
            "document": "by a hash of each document",
            "group": f"by a hash of {self.train.split_by!r}",
            "tail": "one text, its end held out",
        }
        sides = ((self.train, "to train on"), (self.held_out, "held out"))
        parts = (f"{self._count(source)} ({source.num_bytes:,} bytes) {what}" for source, what in sides)
        return f"{', '.join(parts)}; {how[self.by]}"

    def _count(self, source: Source) -> str:
        text = _plural(source.num_documents, "document")
        return f"{text} in {_plural(len(source.keys().unique()), 'group')}" if self.by == "group" else text


def split_documents(source: Source, held_out: float) -> Split[Source]:
    """Hold out a share of the documents, without copying them.

    A hash of each document decides, so that a document keeps its side when others are added, and equal documents stay
    together. A cache with groups (``split_by``) is split by a hash of each group. If a side would be empty, as may
    happen with few documents, the document or group with the nearest hash goes there; it may change sides when others
    are added. Of a single text, the end is held out. ``held_out`` is a share of documents or groups, or of the bytes of
    a single text, strictly between 0 and 1.

    Example:
        >>> from rltok_rl.data import TextSource
        >>> print(split_documents(TextSource("to be or not to be"), held_out=0.5))
        1 document (9 bytes) to train on, 1 document (9 bytes) held out; one text, its end held out
    """
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"held_out must lie strictly between 0 and 1, got {held_out}")
    if source.num_documents == 1:
        return _split_text(source, held_out)
    place = source.keys().double() / 2.0**64 + 0.5  # [documents] hashes as numbers in [0, 1)
    least, most = place.min(), place.max()
    if least == most:
        reason = "are equal; give one (its end is held out) or different ones"
        if source.split_by:
            reason = f"have the same {source.split_by!r}; give several groups, or split_by=null"
        raise ValueError(f"held_out={held_out} leaves a side empty: all {source.num_documents} documents {reason}")
    out = ((place < held_out) | (place == least)) & (place < most)
    train, held = (source.with_documents(source.starts[side], source.lengths[side]) for side in (~out, out))
    return Split(train, held, by="group" if source.split_by else "document")


def _split_text(source: Source, held_out: float) -> Split[Source]:
    length = int(source.lengths[0])
    cut = int(length * (1 - held_out))
    if min(cut, length - cut) < 2:
        raise ValueError(
            f"held_out={held_out} must leave 2 bytes on each side, got {cut} and {length - cut} of {length}"
        )
    train = source.with_documents(source.starts, torch.tensor([cut]))
    held = source.with_documents(source.starts + cut, torch.tensor([length - cut]))
    return Split(train, held, by="tail")


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"

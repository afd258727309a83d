"""The boundaries of a unigram subword model (Nawrot et al.): as an oracle, or guessed by a predictor.

Shapes: B rows, T bytes, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rltok_rl.agents.segmenters.base import Segments
from rltok_rl.agents.segmenters.bpe import BPESegmenter, Split, TokenizerSplit, split_rows
from rltok_rl.agents.segmenters.gumbel import Fidelity, Predicted, check_fidelity, decision_cost
from torch import Tensor

from rltok_rl.utils import check_count

_SPACES = {chr(256 + ord(space)) for space in " \t\n\r\f\v"}  # as the byte-level alphabet writes them


class WordSplit(TokenizerSplit):
    """A tokenizer that splits words, as a :data:`~rltok_rl.agents.segmenters.bpe.Split`.

    White space is no part of any piece of the vocabulary. It goes to the last piece of the word before it; what stands
    before the first word is a piece of its own.
    """

    def __call__(self, text: bytes) -> list[int]:
        """Lengths of the pieces."""
        lengths: list[int] = []
        for piece in self.pieces(text):
            if piece in _SPACES and lengths:
                lengths[-1] += 1
            else:
                lengths.append(len(piece))
        return lengths


class UnigramSegmenter(BPESegmenter):
    """Boundaries where the pieces of a unigram model begin, one byte after the piece before has ended.

    The likeliest split of a word is known at its end, so that boundaries inside it depend on bytes to come: an oracle
    like :class:`~rltok_rl.agents.segmenters.bpe.BPESegmenter`.

    Args:
        split: the tokenizer; :func:`train_unigram` makes one.

    Reference: https://arxiv.org/abs/2211.09761
    """


class TrainedPieces(Predicted):
    """A predictor that learns where the pieces of a tokenizer begin, and draws causally what it has learned.

        a_t = [l_t > 0],        L = mean_{t>0} BCE(l_t, [x_t is the first byte of a piece])

    Args:
        width: D.
        split: the tokenizer.
        hidden: hidden width of the predictor.
        activation: of the predictor.
        fidelity: ``"paper"``, or ``"released"``: the released code passes probabilities to a loss that takes logits.

    Reference: https://arxiv.org/abs/2211.09761
    """

    coefficients = {"pieces": 1.0}

    def __init__(
        self,
        width: int,
        split: Split,
        *,
        hidden: int = 2048,
        activation: Literal["gelu", "relu"] = "gelu",
        fidelity: Fidelity = "paper",
    ) -> None:
        super().__init__(width, hidden, activation)
        self.split, self.fidelity = split, check_fidelity(fidelity)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """``pieces``: binary cross-entropy of the predictor, in nats; nothing where no byte follows the first."""
        assert segments.logits is not None
        if byte_ids.shape[1] < 2:
            return {}
        starts = split_rows(self.split, byte_ids)
        return {"pieces": decision_cost(segments.logits[:, 1:], starts[:, 1:], self.fidelity)}


def train_unigram(texts: Iterable[str], *, vocabulary: int = 5000, longest: int = 16) -> WordSplit:
    """Train a unigram model over bytes with the ``tokenizers`` library (``pip install rltok_rl[bpe]``).

    Args:
        texts: to train on.
        vocabulary: pieces at most, the 256 bytes included; texts that repeat little give fewer.  # 10,000 in the paper
        longest: bytes of a piece at most.
    """
    try:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ImportError("train_unigram needs the tokenizers package: pip install 'rltok_rl[bpe]'") from error
    vocabulary = check_count("vocabulary", vocabulary, minimum=257)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[ \t\n\r\f\x0b]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_piece_length=check_count("longest", longest),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return WordSplit(tokenizer)

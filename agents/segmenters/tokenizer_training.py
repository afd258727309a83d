"""Training of tokenizers with the ``tokenizers`` library: BPE and unigram models of a vocabulary size or a rate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence

from rltok_rl.agents.segmenters.tokenizers import TokenizerSplit, WordSplit, read_tokenizer, tokenizers_library

from rltok_rl.utils import check_count

MOST_PIECES = 32_768
"""Largest vocabulary when a rate is given instead of a vocabulary."""
_SAMPLE_BYTES = 200_000  # that rates are measured on
_TRIALS = 6  # unigram models that are trained to reach a rate


def train_bpe(texts: Iterable[str], *, vocabulary: int) -> TokenizerSplit:
    """Train byte-level BPE with the ``tokenizers`` library (``pip install rltok_rl[bpe]``).

    The vocabulary includes the 256 bytes.
    """
    library = tokenizers_library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=check_count("vocabulary", vocabulary, minimum=256),
        initial_alphabet=tokenizer.pre_tokenizer.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return TokenizerSplit(tokenizer)


def train_unigram(texts: Iterable[str], *, vocabulary: int = 5000, longest: int = 16) -> WordSplit:
    """Train a unigram model over bytes with the ``tokenizers`` library (``pip install rltok_rl[bpe]``).

    The vocabulary, 10,000 in the paper, includes the 256 bytes; texts may yield fewer tokens. A token has at most
    ``longest`` bytes.
    """
    library = tokenizers_library()
    tokenizer = library.Tokenizer(library.models.Unigram())
    spaces = library.pre_tokenizers.Split(library.Regex(r"[ \t\n\r\f\x0b]"), "isolated")
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([spaces, byte_level])
    trainer = library.trainers.UnigramTrainer(
        vocab_size=check_count("vocabulary", vocabulary, minimum=257),
        initial_alphabet=byte_level.alphabet(),
        max_piece_length=check_count("longest", longest),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return WordSplit(tokenizer)


def train_on(
    name: str, windows: Sequence[bytes], *, length: int, vocabulary: int | None = None, rate: float | None = None
) -> TokenizerSplit:
    """Train the tokenizer of segmenter ``bpe`` or ``unigram``, to a vocabulary size or else to tokens per byte.

    Windows have ``length`` bytes; rates are measured on the first 200 kB.
    """
    texts = [window.decode("utf-8", errors="replace") for window in windows]
    measured = windows[: max(1, _SAMPLE_BYTES // length)]
    if vocabulary is not None:
        return (train_unigram if name == "unigram" else train_bpe)(texts, vocabulary=int(vocabulary))
    assert rate is not None
    if name == "unigram":
        return unigram_at_rate(texts, measured, float(rate))
    return bpe_at_rate(train_bpe(texts, vocabulary=MOST_PIECES), measured, float(rate))


def bpe_at_rate(split: TokenizerSplit, windows: Sequence[bytes], rate: float) -> TokenizerSplit:
    """Cut a large BPE vocabulary to the size that has the nearest rate to a target on windows.

    BPE adds one merge after another, so the first merges are the tokenizer of a smaller vocabulary, with a higher rate.
    """
    content = json.loads(split.tokenizer.to_str())
    merges = content["model"]["merges"]
    least = len(content["model"]["vocab"]) - len(merges)

    def cut_to(number: int) -> TokenizerSplit:
        kept = {piece: place for piece, place in content["model"]["vocab"].items() if place < least + number}
        model = {**content["model"], "vocab": kept, "merges": merges[:number]}
        return read_tokenizer(json.dumps({**content, "model": model}))

    return _nearest(cut_to, 0, len(merges), windows, rate)


def unigram_at_rate(
    texts: Sequence[str], windows: Sequence[bytes], rate: float, *, trials: int = _TRIALS
) -> TokenizerSplit:
    """Train unigram models on texts, halving the interval of vocabulary sizes, and return the nearest to a rate."""
    least, steps = math.log(257), 2**trials
    width = (math.log(MOST_PIECES) - least) / steps

    def sized(number: int) -> TokenizerSplit:
        return train_unigram(texts, vocabulary=round(math.exp(least + number * width)))

    return _nearest(sized, 0, steps, windows, rate)


def _nearest(
    make: Callable[[int], TokenizerSplit], low: int, high: int, windows: Sequence[bytes], rate: float
) -> TokenizerSplit:
    """Bisect for the tokenizer whose rate is nearest to a target; rates fall with the number."""
    tried: list[tuple[float, TokenizerSplit]] = []

    def measure(number: int) -> float:
        split = make(number)
        tried.append((sum(len(split(w)) for w in windows) / sum(map(len, windows)), split))
        return tried[-1][0]

    measure(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(middle) > rate else (low, middle)
    return min(tried, key=lambda trial: abs(trial[0] - rate))[1]

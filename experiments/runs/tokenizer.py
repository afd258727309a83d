"""Train a run's tokenizer: BPE or unigram, for a vocabulary size or a rate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import torch
from rltok_rl.agents.segmenters import TokenizerSplit, train_bpe, train_unigram
from rltok_rl.agents.segmenters.saved import read_tokenizer
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.texts import Texts

from rltok_rl.data.windows import WindowSource, WindowWrapper
from rltok_rl.models import UNet
from rltok_rl.text import ids_to_bytes

TRAINED_WITH = ("vocabulary", "num_bytes", "rate")
"""Options of a segmenter that say how its tokenizer is trained."""
MAX_VOCABULARY = 32_768
"""Largest vocabulary of a tokenizer that is trained for a rate."""
_SAMPLE_BYTES = 200_000
_TRIALS = 6


def train_tokenizer(config: TrainConfig, model: UNet, texts: Texts) -> TokenizerSplit:
    """Train the run's tokenizer on windows of its training text.

    `bpe` uses the given vocabulary size, else the size that reaches the given rate (default: the model's). `unigram`
    has 5,000 pieces by default.
    """
    name, length = config.segmenter.name, config.data.num_steps + 1
    options = {key: value for key, value in config.segmenter.options.items() if value is not None}
    count = max(1, int(options.get("num_bytes", 2_000_000)) // length)
    windows = _training_windows(texts.train, count, length, seed=config.seed)
    vocabulary, rate = options.get("vocabulary"), options.get("rate")
    if name == "unigram" and rate is not None:
        vocabulary = None
    elif vocabulary is None and rate is None:
        vocabulary, rate = (5000, None) if name == "unigram" else (None, model.config.target_rate)
    return train_on(name, windows, length=length, vocabulary=vocabulary, rate=rate)


def train_on(
    name: str, windows: Sequence[bytes], *, length: int, vocabulary: int | None = None, rate: float | None = None
) -> TokenizerSplit:
    """Train a tokenizer with a vocabulary size, or else for a rate.

    Args:
        name: ``bpe`` or ``unigram``.
        windows: training text; rates are measured on its first 200 kB.
        length: bytes of a window.
        vocabulary: number of pieces.
        rate: pieces per byte.
    """
    texts = [window.decode("utf-8", errors="replace") for window in windows]
    sample = windows[: max(1, _SAMPLE_BYTES // length)]
    if vocabulary is not None:
        return (train_unigram if name == "unigram" else train_bpe)(texts, vocabulary=int(vocabulary))
    assert rate is not None
    if name == "unigram":
        return unigram_at_rate(texts, sample, float(rate))
    return bpe_at_rate(train_bpe(texts, vocabulary=MAX_VOCABULARY), sample, float(rate))


def _training_windows(source: WindowSource, count: int, length: int, *, seed: int) -> list[bytes]:
    """Draw windows with a separate generator, so that the windows of training stay the same."""
    while isinstance(source, WindowWrapper):  # an order has a state, which belongs to training
        source = source.source
    drawn = source.draw(count, length, torch.Generator().manual_seed(seed))
    return [ids_to_bytes(row[:size]) for row, size in zip(drawn.byte_ids, drawn.lengths.tolist(), strict=True)]


def bpe_at_rate(split: TokenizerSplit, windows: Sequence[bytes], rate: float) -> TokenizerSplit:
    """Cut a BPE tokenizer to the vocabulary whose rate is nearest to a target.

    Byte-level BPE adds merges one by one: the first of them are the tokenizer of a smaller vocabulary, and every merge
    lowers the rate.

    Args:
        split: a tokenizer with at least as many pieces as needed.
        windows: texts to measure the rate on.
        rate: pieces per byte.
    """
    state = json.loads(split.tokenizer.to_str())
    merges, vocabulary = state["model"]["merges"], state["model"]["vocab"]
    base = len(vocabulary) - len(merges)

    def with_merges(number: int) -> TokenizerSplit:
        kept = {piece: place for piece, place in vocabulary.items() if place < base + number}
        return read_tokenizer(
            json.dumps({**state, "model": state["model"] | {"vocab": kept, "merges": merges[:number]}})
        )

    return _nearest_rate(with_merges, 0, len(merges), windows, rate)


def unigram_at_rate(
    texts: Sequence[str], windows: Sequence[bytes], rate: float, *, trials: int = _TRIALS
) -> TokenizerSplit:
    """Train unigram tokenizers and return the one whose rate is nearest to a target.

    A smaller vocabulary is no part of a larger one here: each is trained anew, by bisection of the logarithm of the
    vocabulary size.

    Args:
        texts: training texts.
        windows: texts to measure the rate on.
        rate: pieces per byte.
        trials: number of bisections.
    """
    low, steps = math.log(257), 2**trials
    width = (math.log(MAX_VOCABULARY) - low) / steps

    def sized(number: int) -> TokenizerSplit:
        return train_unigram(texts, vocabulary=round(math.exp(low + number * width)))

    return _nearest_rate(sized, 0, steps, windows, rate)


def _nearest_rate(
    make: Callable[[int], TokenizerSplit], low: int, high: int, windows: Sequence[bytes], rate: float
) -> TokenizerSplit:
    """Bisect the size of a tokenizer; of all tried, return the one with the nearest rate. Rates fall with size."""
    tried: list[tuple[float, TokenizerSplit]] = []

    def measure(size: int) -> float:
        split = make(size)
        tried.append((sum(len(split(window)) for window in windows) / sum(map(len, windows)), split))
        return tried[-1][0]

    measure(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(middle) > rate else (low, middle)
    return min(tried, key=lambda trial: abs(trial[0] - rate))[1]

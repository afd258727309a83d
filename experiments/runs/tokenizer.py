"""Tokenizers that are trained when a run begins: BPE and unigram pieces, of a vocabulary or at a rate."""

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
MOST_PIECES = 32_768
"""Vocabulary beyond which no rate is looked for."""
_SAMPLE_BYTES = 200_000
_TRIALS = 6


def train_tokenizer(config: TrainConfig, model: UNet, texts: Texts) -> TokenizerSplit:
    """The tokenizer of a training, from windows of its training text.

    ``bpe`` has the vocabulary that it is told, or one at the rate that it is told, or at the model's. ``unigram`` has
    5,000 pieces unless it is told either.

    Args:
        config: of the training; its segmenter is ``bpe`` or ``unigram``.
        model: the U-Net.
        texts: whose training side is trained on.
    """
    options = {k: v for k, v in config.segmenter.options.items() if k in TRAINED_WITH and v is not None}
    length = config.data.num_steps + 1
    count = max(1, int(options.get("num_bytes", 2_000_000)) // length)
    windows = training_windows(texts.train, count, length, seed=config.seed)
    name = config.segmenter.name
    vocabulary, rate = options.get("vocabulary"), options.get("rate")
    if name == "unigram" and rate is not None:
        vocabulary = None
    elif vocabulary is None and rate is None:
        vocabulary, rate = (5000, None) if name == "unigram" else (None, model.config.target_rate)
    return train_on(name, windows, length=length, vocabulary=vocabulary, rate=rate)


def train_on(
    name: str, windows: Sequence[bytes], *, length: int, vocabulary: int | None = None, rate: float | None = None
) -> TokenizerSplit:
    """The tokenizer of a text, of a vocabulary or (without one) at a rate.

    Args:
        name: ``bpe`` or ``unigram``.
        windows: of the text, to train on.
        length: bytes of a window; rates are measured on the first 200 kB.
        vocabulary: number of pieces.
        rate: pieces per byte.
    """
    known = [window.decode("utf-8", errors="replace") for window in windows]
    measured = windows[: max(1, _SAMPLE_BYTES // length)]
    if vocabulary is not None:
        return (train_unigram if name == "unigram" else train_bpe)(known, vocabulary=int(vocabulary))
    assert rate is not None
    if name == "unigram":
        return unigram_at_rate(known, measured, float(rate))
    return at_rate(train_bpe(known, vocabulary=MOST_PIECES), measured, float(rate))


def training_windows(source: WindowSource, count: int, length: int, *, seed: int) -> list[bytes]:
    """Windows of training text, drawn with random numbers of their own: what is trained on does not change.

    Args:
        source: of the training.
        count: how many.
        length: bytes of each.
        seed: of the random numbers.
    """
    while isinstance(source, WindowWrapper):  # an order has a state, which is the training's
        source = source.source
    drawn = source.draw(count, length, torch.Generator().manual_seed(seed))
    return [ids_to_bytes(row[:size]) for row, size in zip(drawn.byte_ids, drawn.lengths.tolist(), strict=True)]


def at_rate(split: TokenizerSplit, windows: Sequence[bytes], rate: float) -> TokenizerSplit:
    """The tokenizer of fewer pieces whose rate is nearest to a target.

    Byte-level BPE adds one merge after the other: the first of them are the tokenizer of a smaller vocabulary, and the
    rate falls with every one.

    Args:
        split: trained with more pieces than it takes.
        windows: texts to measure the rate on.
        rate: pieces per byte.
    """
    whole = json.loads(split.tokenizer.to_str())
    merges = whole["model"]["merges"]
    least = len(whole["model"]["vocab"]) - len(merges)

    def cut_to(number: int) -> TokenizerSplit:
        kept = {piece: place for piece, place in whole["model"]["vocab"].items() if place < least + number}
        cut = {**whole, "model": {**whole["model"], "vocab": kept, "merges": merges[:number]}}
        return read_tokenizer(json.dumps(cut))

    return _nearest(cut_to, 0, len(merges), windows, rate)


def unigram_at_rate(
    known: Sequence[str], windows: Sequence[bytes], rate: float, *, trials: int = _TRIALS
) -> TokenizerSplit:
    """A unigram model whose rate is near a target, by a vocabulary that is halved on a scale of ratios.

    One vocabulary is no part of another here: each is trained anew, on a sample.

    Args:
        known: texts to train on.
        windows: texts to measure the rate on.
        rate: pieces per byte.
        trials: vocabularies to train.
    """
    least, steps = math.log(257), 2**trials
    width = (math.log(MOST_PIECES) - least) / steps

    def sized(number: int) -> TokenizerSplit:
        return train_unigram(known, vocabulary=round(math.exp(least + number * width)))

    return _nearest(sized, 0, steps, windows, rate)


def _nearest(
    make: Callable[[int], TokenizerSplit], low: int, high: int, windows: Sequence[bytes], rate: float
) -> TokenizerSplit:
    """The tokenizer whose rate is nearest to a target, of those that halving looks at; rates fall with numbers."""
    tried: dict[int, tuple[float, TokenizerSplit]] = {}

    def look(number: int) -> float:
        made = make(number)
        tried[number] = sum(len(made(w)) for w in windows) / sum(map(len, windows)), made
        return tried[number][0]

    look(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if look(middle) > rate else (low, middle)
    return min(tried.values(), key=lambda one: abs(one[0] - rate))[1]

"""Tokenizers of a target rate: BPE by cutting its list of merges, unigram models by trial."""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.agents.segmenters.tokenizers import (
    PreTokenizer,
    TokenizerSplit,
    pre_tokenize,
    train_bpe,
    train_unigram,
)
from torch import Tensor

from rltok_rl.utils import check_count

MOST_PIECES = 200_000
"""Largest BPE vocabulary when a rate is given instead of a vocabulary."""
RATE_TOLERANCE = 0.01
"""A rate is met if it differs from its target by at most this share of it."""
_MOST_UNIGRAM_PIECES = 32_768
_GROWTH = 4  # times as much text in every further training
_SAMPLE_BYTES = 200_000  # that rates of unigram models are measured on
_TRIALS = 6  # unigram models that are trained to reach a rate


@dataclass(frozen=True)
class RatedBPE:
    """A BPE tokenizer whose vocabulary was chosen for a rate."""

    split: TokenizerSplit
    target: float
    rate: float
    """Tokens per byte of text that it was not trained on."""
    num_bytes: int
    """Bytes that it was trained on."""
    least: float
    """Pre-tokens per byte of the same text: no vocabulary has a lower rate."""

    @property
    def pieces(self) -> int:
        """Vocabulary size, including the 256 bytes."""
        return int(self.split.tokenizer.get_vocab_size())

    @property
    def met(self) -> bool:
        """Whether the rate is within :data:`RATE_TOLERANCE` of its target."""
        return abs(self.rate - self.target) <= RATE_TOLERANCE * self.target

    def __str__(self) -> str:
        how = f"{self.rate:.4f} tokens per byte, {self.pieces:,} pieces trained on {self.num_bytes:,} bytes"
        if self.met:
            return f"bpe: {how}"
        return f"bpe: {how}; the target is {self.target:g}, and words that are never split have {self.least:.4f}"


def grow_bpe(
    train: Callable[[int], TokenizerSplit], windows: Sequence[bytes], rate: float, *, num_bytes: int, most_bytes: int
) -> RatedBPE:
    """Train on more and more text until some vocabulary meets a rate on ``windows``, and cut to the nearest one.

    Args:
        train: trains a BPE of at most :data:`MOST_PIECES` on the first bytes of a text.
        windows: text that ``train`` does not see.
        num_bytes: text of the first training; each further one has four times as much.
        most_bytes: text of the last training.
    """
    if not windows:
        raise ValueError("windows must hold at least one text, got none")
    num_bytes = check_count("num_bytes", num_bytes)
    if num_bytes > most_bytes:
        raise ValueError(f"num_bytes must be at most most_bytes, {most_bytes}, got {num_bytes}")
    while True:
        split = train(num_bytes)
        rates = rates_by_merges(split, windows)
        if float(rates[-1]) <= rate * (1 + RATE_TOLERANCE) or num_bytes >= most_bytes:
            break
        num_bytes = min(_GROWTH * num_bytes, most_bytes)
    number = int((rates - rate).abs().argmin())  # of several the smallest vocabulary
    return RatedBPE(keep_merges(split, number), rate, float(rates[number]), num_bytes, least_rate(split, windows))


def rates_by_merges(split: TokenizerSplit, windows: Sequence[bytes]) -> Tensor:
    """Compute tokens per byte of windows with the first n merges alone, for all n at once, [merges + 1] float64.

    A word's merges are applied in their order. With n of them the tokens are therefore those before the first merge of
    a rank n or more:

        tokens_n = bytes - #{merges that are applied before any of rank n or more}
    """
    model = json.loads(split.tokenizer.to_str())["model"]
    ranks = {_pair(merge): rank for rank, merge in enumerate(model["merges"])}
    words = Counter(word for window in windows for word in split.words(window))
    removed = [0] * (len(ranks) + 1)
    for word, times in words.items():
        for rank in _merged_at(word, ranks):
            removed[rank + 1] += times
    num_bytes = sum(map(len, windows))
    return (num_bytes - torch.tensor(removed).cumsum(0)).double() / num_bytes


def least_rate(split: TokenizerSplit, windows: Sequence[bytes]) -> float:
    """Compute the pre-tokens per byte, which no vocabulary falls below."""
    return sum(len(split.words(window)) for window in windows) / sum(map(len, windows))


def choose_pre_tokenizer(windows: Sequence[bytes], rate: float) -> PreTokenizer:
    """Return ``gpt2``, or ``spaces`` if the words of ``gpt2`` alone exceed a rate."""
    words = sum(len(pre_tokenize("gpt2", window)) for window in windows)
    return "gpt2" if words <= rate * (1 + RATE_TOLERANCE) * sum(map(len, windows)) else "spaces"


def keep_merges(split: TokenizerSplit, number: int) -> TokenizerSplit:
    """Return the tokenizer of the first merges; it equals one that was trained to that vocabulary.

    BPE adds one merge after another, whatever the size that it stops at.
    """
    content = json.loads(split.tokenizer.to_str())
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    dropped = {"".join(_pair(merge)) for merge in merges} - {"".join(_pair(merge)) for merge in merges[:number]}
    model = {
        **content["model"],
        "vocab": {piece: place for piece, place in vocabulary.items() if piece not in dropped},
        "merges": merges[:number],
    }
    return read_tokenizer(json.dumps({**content, "model": model}), type(split), trust_code=True)


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge  # a text in files of older versions
    return left, right


def _merged_at(word: str, ranks: dict[tuple[str, str], int]) -> list[int]:
    """Apply BPE to a word; return for each applied merge the highest rank so far, the first that allows it."""
    pieces, after, before = list(word), [*range(1, len(word) + 1)], [*range(-1, len(word) - 1)]
    queue: list[tuple[int, int, tuple[str, str]]] = []

    def push(left: int) -> None:
        if left >= 0 and after[left] < len(word):
            pair = pieces[left], pieces[after[left]]
            if pair in ranks:
                heapq.heappush(queue, (ranks[pair], left, pair))

    for place in range(len(word) - 1):
        push(place)
    out: list[int] = []
    while queue:
        rank, left, pair = heapq.heappop(queue)
        right = after[left]
        if right >= len(word) or (pieces[left], pieces[right]) != pair:
            continue  # one of them was merged before
        pieces[left], pieces[right] = pieces[left] + pieces[right], ""
        after[left] = after[right]
        if after[left] < len(word):
            before[after[left]] = left
        out.append(max(rank, out[-1] if out else -1))
        push(before[left])
        push(left)
    return out


def train_on(
    name: str, windows: Sequence[bytes], *, length: int, vocabulary: int | None = None, rate: float | None = None
) -> TokenizerSplit:
    """Train the tokenizer of ``bpe`` or ``unigram`` to a vocabulary size, or of ``unigram`` to tokens per byte.

    Windows have ``length`` bytes; rates are measured on the first 200 kB. :func:`grow_bpe` trains ``bpe`` to a rate.
    """
    texts = [window.decode("utf-8", errors="replace") for window in windows]
    if vocabulary is not None:
        return (train_unigram if name == "unigram" else train_bpe)(texts, vocabulary=int(vocabulary))
    if name != "unigram" or rate is None:
        raise ValueError(f"vocabulary must be a number for {name!r}, got {vocabulary} and rate={rate}")
    return unigram_at_rate(texts, windows[: max(1, _SAMPLE_BYTES // length)], float(rate))


def unigram_at_rate(
    texts: Sequence[str], windows: Sequence[bytes], rate: float, *, trials: int = _TRIALS
) -> TokenizerSplit:
    """Train unigram models on texts, halving the interval of vocabulary sizes, and return the nearest to a rate."""
    least, steps = math.log(257), 2**trials
    width = (math.log(_MOST_UNIGRAM_PIECES) - least) / steps

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

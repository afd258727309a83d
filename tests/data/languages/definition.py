"""The languages' log-probabilities by definition: sums over all texts that could have been written.

Nothing here is shared with the package. A text is a row of pieces (records, words). A byte's probability is the chance
of all texts that continue with it over the chance of all texts that the predictor may be reading.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

Pieces = dict[str, float]


def recall_pieces(values: str, fillers: str, gaps: dict[int, float], separator: str) -> Pieces:
    return {
        f"#{value}{''.join(filler)}?{value}{separator}": chance / len(values) / len(fillers) ** gap
        for value, (gap, chance) in itertools.product(values, gaps.items())
        for filler in itertools.product(fillers, repeat=gap)
    }


def zipf_pieces(words: tuple[str, ...], exponent: float) -> Pieces:
    weights = [(rank + 1) ** -exponent for rank in range(len(words))]
    return {word: weight / sum(weights) for word, weight in zip(words, weights, strict=True)}


class Independent:
    """Endless texts of pieces that are drawn independently."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.mean_length = sum(p * len(piece) for piece, p in pieces.items())
        self.begins = cache(self._begins)
        self.occurs = cache(self._occurs)

    def _begins(self, text: str) -> float:
        """Chance that a text, from its beginning, reads so."""
        if not text:
            return 1.0
        return sum(p * self._goes_on(piece, text) for piece, p in self.pieces.items())

    def _occurs(self, text: str) -> float:
        """Chance to read so from a place anywhere in an endless text."""
        places = ((p, piece[place:]) for piece, p in self.pieces.items() for place in range(len(piece)))
        return sum(p * self._goes_on(rest, text) for p, rest in places) / self.mean_length

    def _goes_on(self, rest: str, text: str) -> float:
        if len(rest) >= len(text):
            return float(rest.startswith(text))
        return self.begins(text[len(rest) :]) if text.startswith(rest) else 0.0

    def ideal(self, text: str) -> list[float]:
        return [log(self.begins(text[: t + 1])) - log(self.begins(text[:t])) for t in range(len(text))]

    def floor(self, text: str, window: int) -> list[float]:
        out = self.ideal(text[:window])
        for t in range(window, len(text)):
            seen = text[t - window : t]
            out.append(log(self.occurs(seen + text[t])) - log(self.occurs(seen)))
        return out

    def floor_rate(self, window: int) -> float:
        """Mean cost of a byte to the floor, over all windows that occur."""
        letters = sorted(set("".join(self.pieces)))
        windows = [""]
        for _ in range(window):
            windows = [w + x for w in windows for x in letters if self.occurs(w + x) > 0]
        both = ((self.occurs(w + x), self.occurs(w)) for w in windows for x in letters)
        return -sum(joint * math.log(joint / seen) for joint, seen in both if joint > 0)


class Copying:
    """Texts of words, each a copy of the word ``lag`` earlier or drawn afresh."""

    def __init__(self, pieces: Pieces, lag: int, copy: float) -> None:
        self.pieces, self.lag, self.copy = pieces, lag, copy

    def begins(self, text: str, before: tuple[str, ...] = ()) -> float:
        """Chance that a text reads so after the words ``before``."""
        if not text:
            return 1.0
        total = 0.0
        for word, fresh in self.pieces.items():
            p = fresh
            if len(before) >= self.lag:
                p = (1 - self.copy) * fresh + self.copy * (before[-self.lag] == word)
            if text.startswith(word):
                total += p * self.begins(text[len(word) :], (*before, word))
            elif word.startswith(text):
                total += p
        return total

    def ideal(self, text: str) -> list[float]:
        return [log(self.begins(text[: t + 1])) - log(self.begins(text[:t])) for t in range(len(text))]


def log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf

"""A language of words without spaces, many of them copies of earlier words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from rltok_rl.data.languages.boundary_language import Language, check_alphabets, find_pieces, log_until_impossible
from rltok_rl.data.languages.words import WordTree, make_words
from rltok_rl.ranges import is_number
from rltok_rl.text import text_to_ids
from rltok_rl.utils import check_count


class Lexicon(Language):
    """Words from a Zipf lexicon, written without spaces, that come back ``lag`` words later.

        cebcecdhdfhacebcecdhdfhadhd...

    Word n is a copy of word n - lag with probability ``copy``, and fresh otherwise; fresh words, and the first ``lag``,
    follow Zipf's law. No word begins another, so that a text can be read in one way only.

    The best boundary is right after the last letter of every word, whose token holds the word; a boundary before its
    end misses some of it (:func:`~rltok_rl.data.languages.words.make_words`). With word probabilities z and
    E[n] = sum_i z_i len_i bytes per word,

        entropy rate = sum_i z_i H(copy e_i + (1 - copy) z) / E[n]

    The floor reads words as independent: H(z) / E[n] if ``window`` bytes always show where words end, else a little
    more (computed exactly).

    Args:
        word_lengths: shortest and longest word, at least 2.
        words: the lexicon, most frequent word first, instead of one made from ``num_words``, ``letters``,
            ``word_lengths`` and ``lexicon_seed``.
        exponent: of Zipf's law, ``z_i ~ (i + 1)^-exponent``.
        lag: words from a word to its copy, at least 2.
        copy: probability of a copy, in [0, 1).
        window: bytes that the floor has read; at most ``largest_window``.

    Example:
        >>> language = Lexicon(words=["to", "be", "or", "not"], lag=3, window=4)
        >>> bytes(language.draw(1, 18, torch.Generator().manual_seed(3)).byte_ids[0].tolist())
        b'orbeororbeororbeor'
        >>> language.largest_window
        4
    """

    name = "lexicon"

    def __init__(
        self,
        *,
        num_words: Annotated[int, "[2, 4096]"] = 12,
        letters: str = "abcdefgh",
        word_lengths: Sequence[int] = (3, 4),
        words: Sequence[str] | None = None,
        exponent: Annotated[float, "[0, 100]"] = 1.0,
        lag: Annotated[int, "[2, 1e6]"] = 4,
        copy: Annotated[float, "[0, 1)"] = 0.9,
        lexicon_seed: Annotated[int, "[0, inf)"] = 0,
        window: Annotated[int, "[1, 1e6]"] = 4,
    ) -> None:
        super().__init__(window=window)
        if words is None:
            check_alphabets(letters=letters)
            if len(word_lengths) != 2 or not all(is_number(length) for length in word_lengths):
                raise ValueError(f"word_lengths must be (shortest, longest), got {word_lengths!r}")
            shortest, longest = word_lengths
            words = make_words(num_words, letters=letters, lengths=(shortest, longest), seed=lexicon_seed)
        if not all(isinstance(word, str) for word in words):
            raise TypeError(f"words must be strings, got {[*words]}")
        check_alphabets(words="".join(sorted(set("".join(words)))))
        if len(words) < 2:
            raise ValueError(f"words must be at least 2, got {list(words)}")
        if not 0.0 <= copy < 1.0:
            raise ValueError(f"copy must lie in [0, 1), got {copy}")
        if not 0.0 <= exponent < math.inf:
            raise ValueError(f"exponent must be at least 0 and finite, got {exponent}")
        self.tree = WordTree(words)
        self.words, self.copy, self.exponent = self.tree.words, copy, exponent
        self.lag = check_count("lag", lag, minimum=2)
        self.word_lengths = torch.tensor([len(word) for word in self.words])
        ranks = torch.arange(1, len(self.words) + 1, dtype=torch.float64)
        self.word_probs = ranks.pow(-exponent) / ranks.pow(-exponent).sum()  # z
        self._passed = self.tree.weights(self.word_probs).sum(-1) / self.word_length  # [nodes] visits per byte
        self._window(window)

    @property
    def largest_window(self) -> int:
        """Bytes that never hold any of the word that the next one depends on: ``(lag - 1)`` times the shortest."""
        return (self.lag - 1) * int(self.word_lengths.min())

    @property
    def alphabet(self) -> bytes:
        """All letters."""
        return bytes(self.tree.letters)

    @property
    def word_length(self) -> float:
        """E[n], mean bytes of a word."""
        return float(self.word_probs @ self.word_lengths.double())

    @property
    def boundary_rate(self) -> float:
        """One boundary per word."""
        return 1 / self.word_length

    def draw_ids(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw fresh texts, [num_rows, length] int64."""
        num_words = -(-length // int(self.word_lengths.min()))
        fresh = torch.multinomial(self.word_probs, num_rows * num_words, replacement=True, generator=generator)
        words = fresh.view(num_rows, num_words)
        copied = torch.rand(num_rows, num_words, generator=generator) < self.copy
        for n in range(self.lag, num_words):
            words[:, n] = torch.where(copied[:, n], words[:, n - self.lag], words[:, n])
        number, letter = find_pieces(self.word_lengths[words], length)
        spelt = torch.nn.utils.rnn.pad_sequence([text_to_ids(word) for word in self.words], batch_first=True)
        return spelt[words.gather(1, number), letter]

    def optimal_boundaries(self, byte_ids: Tensor) -> Tensor:
        """Mark the first byte after the last letter of every word, and the first column."""
        best = self.tree.walk(byte_ids)[1] >= 0
        best[..., 0] = True
        return best

    def ideal_log_prob(self, byte_ids: Tensor) -> Tensor:
        """Return log p_ideal, [*B, T] float64.

            P(b | u, word n - lag = i) = W_i(u b) / W_i(u),    W_i(u) = copy [word i begins with u] + (1 - copy) Z(u)

        u being the letters of word n so far, and Z(u) the chance that a fresh word begins with u.
        """
        nodes, completed = self.tree.walk(byte_ids)
        number = (completed >= 0).cumsum(-1) - (completed >= 0).long()  # of the word that each byte is in
        spelt = torch.zeros(*byte_ids.shape[:-1], byte_ids.shape[-1] + 1, dtype=torch.int64)
        place = torch.where(completed >= 0, number, byte_ids.shape[-1])  # the last column takes the rest
        spelt = spelt.scatter(-1, place, completed)
        source = spelt.gather(-1, (number - self.lag).clamp(min=0))  # word n - lag
        source = torch.where(number < self.lag, len(self.words), source)
        tables = self._byte_probs(torch.cat((self._mixed, self.word_probs[None])))  # [words + 1, nodes + 1, 256]
        return log_until_impossible(tables[source, nodes, byte_ids])

    def floor_log_prob(self, byte_ids: Tensor, *, window: int | None = None) -> Tensor:
        """Return log p_floor, [*B, T] float64.

        Windows start at any node of the tree, weighted by how often text visits it; each follows one path from there.
        """
        w = self._window(window)
        probs = self._byte_probs(self.word_probs)  # [nodes + 1, 256]
        start = probs[self.tree.walk(byte_ids[..., :w])[0], byte_ids[..., :w]].log()  # the beginning is in sight
        if byte_ids.shape[-1] <= w:
            return start
        nodes = torch.arange(self.tree.num_nodes).expand(*byte_ids.shape[:-1], byte_ids.shape[-1] - w, -1)
        weight = self._passed.expand(nodes.shape)  # [*B, T - w, nodes]
        for step in range(w):
            read = byte_ids[..., step : byte_ids.shape[-1] - w + step, None]
            weight = weight * probs[nodes, read]
            nodes = self.tree.next[nodes, read]
        following = (weight * probs[nodes, byte_ids[..., w:, None]]).sum(-1)
        return torch.cat((start, (following / weight.sum(-1)).log()), -1)

    @property
    def entropy_rate(self) -> float:
        """``sum_i z_i H(copy e_i + (1 - copy) z) / E[n]``."""
        return float(self.word_probs @ _entropy(self._mixed)) / self.word_length

    def floor_rate(self, *, window: int | None = None) -> float:
        """Return the mean cost of a byte to a predictor that has read ``window`` bytes, in nats.

        Follows all beliefs about the place in the tree that so many bytes can lead to, equal ones together.
        """
        probs = self._byte_probs(self.word_probs)[:-1][:, self.tree.letters]  # [nodes, letters]
        following = self.tree.next[:-1][:, self.tree.letters].clamp(max=self.tree.num_nodes - 1)
        beliefs, chance = self._passed[None], torch.ones(1, dtype=torch.float64)
        for _ in range(self._window(window)):
            joint = beliefs[:, None] * probs.T  # [beliefs, letters, nodes]
            moved = torch.zeros_like(joint).scatter_add(2, following.T.expand_as(joint), joint).flatten(0, 1)
            total = moved.sum(-1)
            reached = total > 0
            weight = (chance[:, None].expand(-1, len(self.tree.letters)).flatten() * total)[reached]
            after = (moved[reached] / total[reached, None]).round(decimals=12)
            beliefs, same = after.unique(dim=0, return_inverse=True)
            chance = weight.new_zeros(len(beliefs)).index_add(0, same, weight)
        return float(chance @ _entropy(beliefs @ probs))

    @property
    def _mixed(self) -> Tensor:
        """Probabilities of a word after each word ``lag`` words before, ``copy e_i + (1 - copy) z``, [words, words]."""
        return self.copy * torch.eye(len(self.words), dtype=torch.float64) + (1 - self.copy) * self.word_probs

    def _byte_probs(self, word_probs: Tensor) -> Tensor:
        """Next-byte probabilities [..., nodes + 1, 256] under word probabilities [..., words]."""
        weights = self.tree.weights(word_probs)
        table = weights.new_zeros(*weights.shape[:-2], self.tree.num_nodes + 1, 256)
        table[..., :-1, self.tree.letters] = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
        return table

    def _window(self, window: int | None) -> int:
        w = super()._window(window)
        if w > self.largest_window:
            raise ValueError(
                f"window must be at most (lag - 1) times the shortest word, {self.largest_window}, got {w}: a longer "
                f"one would hold some of the word that the next one depends on"
            )
        return w


def _entropy(probs: Tensor) -> Tensor:
    """Entropy in nats over the last dimension."""
    return -torch.xlogy(probs, probs).sum(-1)

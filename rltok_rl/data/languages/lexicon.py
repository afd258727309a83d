"""Words without spaces, each likely to be the one that stood some words earlier."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.data.languages.boundary_language import Language, check_alphabets
from rltok_rl.data.languages.words import WordTree, make_words


class Lexicon(Language):
    """Words from a Zipf lexicon, written without spaces, that come back ``lag`` words later.

    ### Text
    Word n is a copy of word n - lag with probability ``copy``, and fresh otherwise; fresh words, and the first ``lag``,
    follow Zipf's law. No word begins another, so that every text can be read in one way only, and a word's end is known
    when its last letter is read. A text begins with the first letter of a word:

        cebcecdhdfhacebcecdhdfhadhd...

    ### Best boundaries
    One right after the last letter of every word: the token pooled there holds the word. What the next word depends on
    is ``lag - 1`` whole words back, beyond the window of the bytes. Words come in families that differ in their first
    and last letters alone (:func:`~rltok_rl.data.languages.words.make_words`), so that a boundary before a word's end
    misses some of it; one behind it does so as soon as the encoder no longer sees all of the word.

    ### What they are worth
    With word probabilities z and E[n] = sum_i z_i len_i bytes per word,

        entropy rate = sum_i z_i H(copy e_i + (1 - copy) z) / E[n],

    and the floor is one who reads words as if they were independent, and finds where they end as well as ``window``
    bytes allow: H(z) / E[n] once they always tell, a little more before (computed exactly).

    ### Arguments
    Args:
        num_words: size of the lexicon.
        letters: what words are made of.
        word_lengths: shortest and longest word, at least 2.
        words: the lexicon itself, most frequent word first, instead of one made from the three above.
        exponent: of Zipf's law, ``z_i ~ (i + 1)^-exponent``.
        lag: words from a word to its copy, at least 2.
        copy: probability of a copy, in [0, 1).
        lexicon_seed: of the words made; another seed is another language.
        window: bytes that the floor, the best early exit, has read; at most ``largest_window``.

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
        num_words: int = 12,
        letters: str = "abcdefgh",
        word_lengths: tuple[int, int] = (3, 4),
        words: Sequence[str] | None = None,
        exponent: float = 1.0,
        lag: int = 4,
        copy: float = 0.9,
        lexicon_seed: int = 0,
        window: int = 4,
    ) -> None:
        super().__init__(window=window)
        if words is None:
            check_alphabets(letters=letters)
            shortest, longest = word_lengths
            words = make_words(num_words, letters=letters, lengths=(shortest, longest), seed=lexicon_seed)
        for word in words:
            check_alphabets(words="".join(sorted(set(word))))
        if len(words) < 2:
            raise ValueError(f"words must be at least 2, got {list(words)}")
        if isinstance(lag, bool) or not isinstance(lag, int) or lag < 2:
            raise ValueError(f"lag must be an integer of at least 2, got {lag!r}")
        if not 0.0 <= copy < 1.0:
            raise ValueError(f"copy must lie in [0, 1), got {copy}")
        if not 0.0 <= exponent < math.inf:
            raise ValueError(f"exponent must be at least 0 and finite, got {exponent}")
        self.tree = WordTree(words)
        self.words, self.lag, self.copy, self.exponent = self.tree.words, lag, copy, exponent
        self.word_lengths = torch.tensor([len(word) for word in self.words])
        ranks = torch.arange(1, len(self.words) + 1, dtype=torch.float64)
        self.word_probs = ranks.pow(-exponent) / ranks.pow(-exponent).sum()  # z
        self._weights = self.tree.weights(self.word_probs)  # [nodes, letters], Z(u b)
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
        """E[n], bytes of a word on average."""
        return float(self.word_probs @ self.word_lengths.double())

    @property
    def boundary_rate(self) -> float:
        """One boundary per word."""
        return 1 / self.word_length

    def draw_ids(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Fresh texts, [num_rows, length] int64."""
        num_words = -(-length // int(self.word_lengths.min()))
        fresh = torch.multinomial(self.word_probs, num_rows * num_words, replacement=True, generator=generator)
        words = fresh.view(num_rows, num_words)
        copied = torch.rand(num_rows, num_words, generator=generator) < self.copy
        for n in range(self.lag, num_words):
            words[:, n] = torch.where(copied[:, n], words[:, n - self.lag], words[:, n])
        ends = self.word_lengths[words].cumsum(1)  # [n, words] where each word ends
        place = torch.arange(length).expand(num_rows, -1).contiguous()
        number = torch.searchsorted(ends, place, right=True)  # [n, length] whose letter this is
        word = words.gather(1, number)
        letter = place - ends.gather(1, number) + self.word_lengths[word]
        spelt = torch.zeros(len(self.words), int(self.word_lengths.max()), dtype=torch.int64)
        for row, one in enumerate(self.words):
            spelt[row, : len(one)] = torch.tensor(list(one.encode()))
        return spelt[word, letter]

    def optimal_boundaries(self, byte_ids: Tensor) -> Tensor:
        """True right after the last letter of every word, and in the first column."""
        best = self.tree.walk(byte_ids)[1] >= 0
        best[..., 0] = True
        return best

    def ideal_log_prob(self, byte_ids: Tensor) -> Tensor:
        """Log-probability of every byte given all before it, [*B, T] float64.

            P(b | u, word n - lag = i) = W_i(u b) / W_i(u),    W_i(u) = copy [word i begins with u] + (1 - copy) Z(u)

        u being the letters of word n so far, and Z(u) the chance that a fresh word begins with u.
        """
        nodes, completed = self.tree.walk(byte_ids)
        number = (completed >= 0).cumsum(-1) - (completed >= 0).long()  # of the word that each byte is in
        spelt = torch.zeros(*byte_ids.shape[:-1], byte_ids.shape[-1] + 1, dtype=torch.int64)
        place = torch.where(completed >= 0, number, byte_ids.shape[-1])  # the last column takes what is no word
        spelt = spelt.scatter(-1, place, completed)
        source = spelt.gather(-1, (number - self.lag).clamp(min=0))  # word n - lag
        certain = F.one_hot(torch.arange(len(self.words)), len(self.words)).double()
        mixed = self.copy * certain + (1 - self.copy) * self.word_probs
        tables = self._byte_probs(torch.cat((mixed, self.word_probs[None])))  # [words + 1, nodes + 1, 256]
        source = torch.where(number < self.lag, len(self.words), source)
        prob = tables[source, nodes, byte_ids]
        return prob.masked_fill((prob == 0).cummax(-1).values, 0).log()

    def floor_log_prob(self, byte_ids: Tensor, *, window: int | None = None) -> Tensor:
        """Log-probability of every byte given the ``window`` bytes before it, [*B, T] float64.

        Every node of the tree may be where the window begins, as often as text passes there; each leads along one path.
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
        mixed = self.copy * torch.eye(len(self.words), dtype=torch.float64) + (1 - self.copy) * self.word_probs
        return float(self.word_probs @ _entropy(mixed)) / self.word_length

    def floor_rate(self, *, window: int | None = None) -> float:
        """What a byte costs one who has read ``window`` bytes, in nats.

        All beliefs about the place in the tree that so many bytes can lead to are followed, equal ones together.
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
    def _passed(self) -> Tensor:
        """[nodes] how often text passes each node, ``Z(u) / E[n]``."""
        return self._weights.sum(-1) / self.word_length

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

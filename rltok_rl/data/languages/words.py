"""Uniquely decodable word lists and their prefix tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def make_words(num_words: int, *, letters: str, lengths: tuple[int, int], seed: int) -> tuple[str, ...]:
    """Draw random words in families of four, none of which begins or ends another.

    A family is one stem with two first and two last letters: only its whole identifies a word. As no word begins
    another, its end is known when it is read. ``lengths`` are the shortest and the longest, at least 2.

    Example:
        >>> make_words(8, letters="abcd", lengths=(2, 3), seed=0)
        ('dd', 'db', 'ad', 'ab', 'acb', 'aca', 'dcb', 'dca')
    """
    shortest, longest = lengths
    if not 2 <= shortest <= longest:
        raise ValueError(f"word_lengths must be (shortest, longest) with 2 <= shortest <= longest, got {lengths}")
    if len(letters) < 2:
        raise ValueError(f"letters must hold at least 2 characters, got {letters!r}")
    generator = torch.Generator().manual_seed(seed)
    words: list[str] = []
    for _ in range(100 * num_words):
        if len(words) >= num_words:
            return tuple(words[:num_words])
        length = int(torch.randint(shortest, longest + 1, (), generator=generator))
        stem = "".join(letters[i] for i in torch.randint(len(letters), (length - 2,), generator=generator).tolist())
        first, last = (torch.randperm(len(letters), generator=generator)[:2].tolist() for _ in range(2))
        family = [f"{letters[i]}{stem}{letters[j]}" for i in first for j in last]
        if not any(_alike(word, other) for word in family for other in words):
            words += family
    raise ValueError(
        f"num_words must be small enough for words of {shortest} to {longest} of the letters {letters!r}, none "
        f"beginning or ending another, got {num_words} (found {len(words)})"
    )


def _alike(word: str, other: str) -> bool:
    return word.startswith(other) or other.startswith(word) or word.endswith(other) or other.endswith(word)


class WordTree:
    """Beginnings of words as nodes of a tree, in which text is a walk.

    Node 0 has read nothing. A word's last letter leads back to it; a letter that no word allows leads to an extra node
    behind the others. No word may begin another.

    Example:
        >>> tree = WordTree(["ab", "b"])
        >>> nodes, words = tree.walk(torch.tensor(list(b"bab")))
        >>> nodes.tolist(), words.tolist()
        ([0, 0, 1], [1, -1, 0])
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        if "" in self.words:
            raise ValueError(f"words must not be empty, got '' as word {self.words.index('')}")
        for word in self.words:
            for other in self.words:
                if other != word and other.startswith(word):
                    raise ValueError(f"words must not begin one another, got {word!r} and {other!r}")
        if len(set(self.words)) < len(self.words):
            raise ValueError(f"words must differ, got {list(self.words)}")
        beginnings = sorted({word[:end] for word in self.words for end in range(len(word))}, key=lambda b: (len(b), b))
        index = {beginning: node for node, beginning in enumerate(beginnings)} | dict.fromkeys(self.words, 0)
        self.num_nodes = dead = len(beginnings)
        self.letters = sorted({ord(letter) for word in self.words for letter in word})
        #: [nodes + 1, 256] node that a byte leads to
        self.next = torch.full((dead + 1, 256), dead)
        #: [nodes + 1, 256] word that a byte completes, or -1
        self.word = torch.full((dead + 1, 256), -1)
        #: [nodes, letters, words] float64, 1 for words that go on from a node with a letter
        self.beyond = torch.zeros(dead, len(self.letters), len(self.words), dtype=torch.float64)
        for number, word in enumerate(self.words):
            for end, letter in enumerate(word.encode()):
                self.next[index[word[:end]], letter] = index[word[: end + 1]]
                self.beyond[index[word[:end]], self.letters.index(letter), number] = 1
            self.word[index[word[:-1]], ord(word[-1])] = number

    def walk(self, byte_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return nodes [*B, T] before each byte, and the words [*B, T] that bytes complete, or -1."""
        nodes = torch.zeros_like(byte_ids)
        for t in range(byte_ids.shape[-1] - 1):
            nodes[..., t + 1] = self.next[nodes[..., t], byte_ids[..., t]]
        return nodes, self.word[nodes, byte_ids]

    def weights(self, probs: Tensor) -> Tensor:
        """Return the chance of the words beyond each byte: word probabilities [..., words] to [..., nodes, letters]."""
        return torch.einsum("nlw,...w->...nl", self.beyond, probs.double())

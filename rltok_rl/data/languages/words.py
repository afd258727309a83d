"""Words that can be told apart without spaces, and the tree of their beginnings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def make_words(num_words: int, *, letters: str, lengths: tuple[int, int], seed: int) -> tuple[str, ...]:
    """Random words in families of four, none of which begins or ends another.

    A family is one stem with two first and two last letters. Who stops before the last letter of a word cannot tell it
    from its sibling, and neither can who sees its last letters but no longer its first: a word is known at its end, to
    those who see all of it. Because no word begins another, its end is known as soon as it is read.

    Args:
        num_words: how many; the last family may be smaller.
        letters: what they are made of.
        lengths: shortest and longest, at least 2.
        seed: of the letters drawn.

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
        first, last = (
            [letters[i] for i in torch.randperm(len(letters), generator=generator)[:2].tolist()] for _ in range(2)
        )
        family = [f"{one}{stem}{other}" for one in first for other in last]
        if not any(_alike(word, other) for word in family for other in words):
            words += family
    raise ValueError(
        f"num_words must be small enough for words of {shortest} to {longest} of the letters {letters!r}, none "
        f"beginning or ending another, got {num_words} (found {len(words)})"
    )


def _alike(one: str, other: str) -> bool:
    return any((one.startswith(other), other.startswith(one), one.endswith(other), other.endswith(one)))


class WordTree:
    """Beginnings of words as nodes of a tree; node 0 has read nothing, the last one is where no word leads.

    A word's last letter leads back to node 0, so that text is a walk.

    Args:
        words: none of which begins another.

    Example:
        >>> tree = WordTree(["ab", "b"])
        >>> tree.begins.int()  # nodes "" and "a"
        tensor([[1, 1],
                [1, 0]], dtype=torch.int32)
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        for number, word in enumerate(self.words):
            if not word:
                raise ValueError(f"words must not be empty, got '' as word {number}")
            for other in self.words:
                if other != word and other.startswith(word):
                    raise ValueError(f"words must not begin one another, got {word!r} and {other!r}")
        if len(set(self.words)) < len(self.words):
            raise ValueError(f"words must differ, got {list(self.words)}")
        beginnings = sorted({word[:end] for word in self.words for end in range(len(word))}, key=lambda b: (len(b), b))
        index = {beginning: node for node, beginning in enumerate(beginnings)}
        self.num_nodes = dead = len(beginnings)
        self.letters = sorted({ord(letter) for word in self.words for letter in word})
        #: [nodes + 1, 256] where a byte leads
        self.next = torch.full((dead + 1, 256), dead)
        #: [nodes + 1, 256] the word that a byte completes, -1 where none
        self.word = torch.full((dead + 1, 256), -1)
        #: [nodes, words] which words go on from here
        self.begins = torch.zeros(dead, len(self.words), dtype=torch.bool)
        for number, word in enumerate(self.words):
            for end in range(len(word)):
                node, letter = index[word[:end]], ord(word[end])
                self.begins[node, number] = True
                last = end == len(word) - 1
                self.next[node, letter] = 0 if last else index[word[: end + 1]]
                if last:
                    self.word[node, letter] = number

    def walk(self, byte_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes [*B, T] before each byte, and the words [*B, T] that bytes complete (-1 where none)."""
        nodes = torch.zeros_like(byte_ids)
        for t in range(byte_ids.shape[-1] - 1):
            nodes[..., t + 1] = self.next[nodes[..., t], byte_ids[..., t]]
        return nodes, self.word[nodes, byte_ids]

    def weights(self, probs: Tensor) -> Tensor:
        """Chance of the words beyond each byte: word probabilities [..., words] to [..., nodes, letters].

        Row sums are the chance of the words that go on from a node.
        """
        beyond = torch.zeros(self.num_nodes, len(self.letters), len(self.words), dtype=torch.float64)
        for number, word in enumerate(self.words):
            node = 0
            for letter in word.encode():
                beyond[node, self.letters.index(letter), number] = 1
                node = int(self.next[node, letter])
        return torch.einsum("nlw,...w->...nl", beyond, probs.double())

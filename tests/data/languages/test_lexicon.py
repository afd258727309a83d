"""The lexicon language, by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rltok_rl.data.languages import Lexicon
from rltok_rl.data.languages.words import WordTree, make_words
from rltok_rl.text import ids_to_bytes, text_to_ids

ENGLISH = ["to", "be", "or", "not"]


def test_boundaries_are_word_ends():
    found = Lexicon(words=ENGLISH).optimal_boundaries(text_to_ids("tobeornottobeno"))
    assert found.int().tolist() == [1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0]


def test_entropy_rate_by_hand():
    """Two words of three letters, equally likely; three of four words are copies."""
    language = Lexicon(words=["aab", "bba"], exponent=0.0, copy=0.5, lag=2, window=2)
    p = 0.5 + 0.5 / 2
    assert language.entropy_rate == pytest.approx(-(p * math.log(p) + (1 - p) * math.log(1 - p)) / 3)
    assert language.word_length == 3 and language.boundary_rate == pytest.approx(1 / 3)


def test_a_lexicon_without_copies_is_worth_where_words_end():
    """Independent words leave tokens nothing to carry once the window tells where words end."""
    clear = Lexicon(words=["ab", "acb", "adb"], copy=0.0, lag=4, window=3)  # only words begin with "a"
    assert clear.optimal_return_per_byte == pytest.approx(0.0, abs=1e-12)
    assert clear.optimal_boundaries(text_to_ids("acbab")).int().tolist() == [1, 0, 1, 0, 1]
    copied = Lexicon(words=["ab", "acb", "adb"], copy=0.5, lag=4, window=3)
    fresh = -float((copied.word_probs * copied.word_probs.log()).sum())
    assert copied.floor_rate() == pytest.approx(fresh / copied.word_length)


def test_words_come_back():
    language = Lexicon(words=ENGLISH, lag=3, copy=0.75)
    byte_ids = language.draw(64, 300, torch.Generator().manual_seed(0)).byte_ids
    copies = total = 0
    for row in byte_ids:
        text, words = ids_to_bytes(row).decode(), []
        while any(text.startswith(word) for word in ENGLISH):
            words.append(next(word for word in ENGLISH if text.startswith(word)))
            text = text[len(words[-1]) :]
        assert len(text) < 3 and any(word.startswith(text) for word in ENGLISH)
        copies += sum(a == b for a, b in zip(words, words[3:], strict=False))
        total += len(words) - 3
    again = 0.75 + 0.25 * float((language.word_probs**2).sum())
    assert abs(copies / total - again) < 5 * math.sqrt(again * (1 - again) / total)


def test_words_can_be_told_apart_at_their_ends_and_not_before():
    words = make_words(20, letters="abcdef", lengths=(3, 5), seed=1)
    assert len(set(words)) == 20 and {3, 4, 5} >= {len(word) for word in words} > {5}
    for one, other in itertools.permutations(words, 2):
        assert not one.startswith(other) and not one.endswith(other)
    for word in words:
        assert any(word[:-1] == other[:-1] for other in words if other != word)
        assert any(word[1:] == other[1:] for other in words if other != word)
    assert words == make_words(20, letters="abcdef", lengths=(3, 5), seed=1)
    assert words != make_words(20, letters="abcdef", lengths=(3, 5), seed=2)
    assert make_words(6, letters="abcdef", lengths=(3, 5), seed=1) == words[:6]


def test_the_tree_walks_text():
    nodes, completed = WordTree(ENGLISH).walk(text_to_ids("notbeo"))
    assert completed.tolist() == [-1, -1, 3, -1, 1, -1]
    assert (nodes == 0).tolist() == [True, False, False, True, False, True]
    nodes, completed = WordTree(ENGLISH).walk(text_to_ids("nxto"))
    assert completed.tolist() == [-1, -1, -1, -1] and (nodes[2:] == nodes.max()).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": ["to", "tone"]}, "words must not begin one another, got 'to' and 'tone'"),
        ({"words": ["to", "to"]}, "words must differ"),
        ({"words": ["to"]}, "words must be at least 2"),
        ({"words": ["to", ""]}, "words must not be empty, got '' as word 1"),
        ({"words": ["to", "b e"]}, "words must be printable ASCII without spaces, got ' '"),
        ({"num_words": 60, "letters": "ab", "word_lengths": (2, 3)}, "num_words must be small enough .* got 60"),
        ({"letters": "a"}, "letters must hold at least 2 characters, got 'a'"),
        ({"word_lengths": (5, 4)}, r"word_lengths must be \(shortest, longest\) .* got \(5, 4\)"),
        ({"letters": "aa"}, "letters must have characters of its own, got 'a', also in letters"),
        ({"lag": 1}, "lag must be an integer of at least 2, got 1"),
        ({"copy": 1.0}, r"copy must lie in \[0, 1\), got 1.0"),
        ({"exponent": -1.0}, "exponent must be at least 0 and finite, got -1.0"),
        ({"window": 10}, r"window must be at most \(lag - 1\) times the shortest word, 9, got 10"),
    ],
)
def test_misuse(options, message):
    with pytest.raises(ValueError, match=message):
        Lexicon(**options)

"""One BPE training has the tokenizers of all smaller vocabularies, and their rates are counted at once."""

from __future__ import annotations

import json
import math
import re

import pytest
from rltok_rl.agents.segmenters import tokenizer_rates
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.agents.segmenters.tokenizer_rates import (
    RatedBPE,
    choose_pre_tokenizer,
    grow_bpe,
    keep_merges,
    least_rate,
    rates_by_merges,
    train_on,
    unigram_at_rate,
)
from rltok_rl.agents.segmenters.tokenizers import TokenizerSplit, WordSplit, pre_tokenize, train_bpe, train_unigram

from ...each import each
from .definition import TEXT, WORDS

TRAINING = [(WORDS + TEXT) * 3, "aaaaaaaa abababab abcabcabc bcabcabca " * 4]
WINDOWS = [window.encode() for window in (TEXT, "unseen: sung talkers, aaaaa abcab", "  \n\n x", "naïve")] + [
    b"\xff\x80 a"
]


def rate_of(split) -> float:
    return sum(len(split(window)) for window in WINDOWS) / sum(map(len, WINDOWS))


@each(pre_tokenizer=["gpt2", "spaces"])
def test_the_first_merges_are_every_smaller_vocabulary(pre_tokenizer):
    split = train_bpe(TRAINING, vocabulary=460, pre_tokenizer=pre_tokenizer)
    rates = rates_by_merges(split, WINDOWS)
    assert rates[0] == 1.0 and (rates.diff() <= 0).all()
    for number in (*range(12), 40, 90, len(rates) - 1):
        kept = keep_merges(split, number)
        smaller = train_bpe(TRAINING, vocabulary=kept.tokenizer.get_vocab_size(), pre_tokenizer=pre_tokenizer)
        assert kept.tokenizer.get_vocab() == smaller.tokenizer.get_vocab()
        assert [kept(window) for window in WINDOWS] == [smaller(window) for window in WINDOWS]
        assert float(rates[number]) == pytest.approx(rate_of(kept), abs=1e-12)
    assert least_rate(split, WINDOWS) == sum(len(split.words(w)) for w in WINDOWS) / sum(map(len, WINDOWS)) < rates[-1]


def test_a_piece_that_two_merges_make():
    """Then ranks in a word need not rise; a merge counts from the highest rank before it."""
    split = train_bpe(TRAINING, vocabulary=460)
    content = split.tokenizer.get_vocab()
    for text in ("abcabc", "aaaaaaaaa", "bcabcab", "ababa"):
        lengths = [len(keep_merges(split, n)(text.encode())) for n in range(0, len(content) - 256)]
        rates = rates_by_merges(split, [text.encode()]) * len(text)
        assert rates.round().int().tolist()[: len(lengths)] == lengths
    file = json.loads(split.tokenizer.to_str())
    merges, known = file["model"]["merges"], {*file["model"]["vocab"]}
    made = {"".join(merge): tuple(merge) for merge in merges}
    ways = (([piece[:at], piece[at:]], by) for piece, by in made.items() for at in range(1, len(piece)))
    another = next(way for way, by in ways if {*way} <= known and tuple(way) != by)
    file["model"]["merges"] = [*merges, another]  # makes a piece that an earlier merge makes, too
    longer = read_tokenizer(json.dumps(file), type(split), trust_code=True)
    kept = keep_merges(longer, len(merges))
    assert kept.tokenizer.get_vocab() == content and [kept(w) for w in WINDOWS] == [split(w) for w in WINDOWS]
    # In "abcd" the fourth merge waits for the fifth, because the first takes the b that the third needs.
    merges = [("b", "c"), ("a", "b"), ("ab", "c"), ("abc", "d"), ("a", "bc")]
    pieces = [*(piece for piece, place in content.items() if place < 256), "bc", "ab", "abc", "abcd"]
    file["model"] |= {"merges": merges, "vocab": {piece: place for place, piece in enumerate(pieces)}}
    small = read_tokenizer(json.dumps(file), type(split), trust_code=True)
    lengths = [len(keep_merges(small, number)(b"abcd")) for number in range(6)]
    assert (rates_by_merges(small, [b"abcd"]) * 4).tolist() == lengths == [4, 3, 3, 3, 3, 1]


def test_words_of_the_pre_tokenizers():
    assert pre_tokenize("gpt2", b"so, he's (1)") == ["so", ",", "Ġhe", "'s", "Ġ(", "1", ")"]
    assert pre_tokenize("spaces", b"so, he's (1)\n ") == ["so,", "Ġhe's", "Ġ(1)", "ĊĠ"]
    for name in ("gpt2", "spaces"):
        assert all(len("".join(pre_tokenize(name, window))) == len(window) for window in WINDOWS)
    text = TEXT.encode()
    floor = len(pre_tokenize("gpt2", text)) / len(text)
    assert choose_pre_tokenizer([text], floor) == "gpt2" and choose_pre_tokenizer([text], 0.9 * floor) == "spaces"
    assert train_bpe([TEXT], vocabulary=260).words(text) == pre_tokenize("gpt2", text) != pre_tokenize("spaces", text)
    split = train_bpe([TEXT * 3], vocabulary=400, pre_tokenizer="spaces")
    assert split.words(text) == pre_tokenize("spaces", text) and "".join(split.pieces(text)) == "".join(
        split.words(text)
    )


def test_text_grows_until_the_rate_is_met():
    trained = []

    def train(num_bytes: int):
        trained.append(num_bytes)
        return train_bpe([TRAINING[0][:num_bytes]], vocabulary=600)

    met = grow_bpe(train, WINDOWS, 0.6, num_bytes=100, most_bytes=800)
    assert trained == [100, 400] and met.met and met.num_bytes == 400
    assert met.rate == pytest.approx(rate_of(met.split)) == pytest.approx(0.6, rel=0.01)
    assert str(met) == f"bpe: {met.rate:.4f} tokens per byte, {met.pieces} pieces trained on 400 bytes"
    unmet = grow_bpe(train, WINDOWS, 0.1, num_bytes=100, most_bytes=800)
    assert trained[2:] == [100, 400, 800] and not unmet.met and unmet.least > 0.1
    assert unmet.least == least_rate(unmet.split, WINDOWS)
    rates = rates_by_merges(train(800), WINDOWS)
    smallest = int((rates == rates.min()).nonzero()[0])  # of several vocabularies that are as near
    assert unmet.pieces == 256 + smallest < 256 + len(rates) - 1
    words = (
        rf"bpe: 0\.\d+ tokens per byte, \d+ pieces trained on 800 bytes; the target is 0.1, .* have {unmet.least:.4f}"
    )
    assert re.fullmatch(words, str(unmet))
    least, trained[:] = float(rates_by_merges(train(100), WINDOWS)[-1]), []
    near = grow_bpe(train, WINDOWS, least / 1.005, num_bytes=100, most_bytes=800)
    assert near.met and trained == [100]  # a rate that is met within its tolerance needs no more text
    assert grow_bpe(train, WINDOWS, 0.1, num_bytes=800, most_bytes=800).num_bytes == 800
    easy = grow_bpe(train, WINDOWS, 1.0, num_bytes=100, most_bytes=800)
    assert isinstance(easy, RatedBPE) and easy.pieces == 256 and easy.rate == 1.0


def test_a_rate_is_met_within_a_hundredth_of_itself():
    split = train_bpe([TEXT], vocabulary=256)
    for target in (0.05, 0.2, 0.9):
        for share, met in ((0.985, False), (0.995, True), (1.0, True), (1.005, True), (1.015, False)):
            assert RatedBPE(split, target, share * target, 9, 0.0).met is met, (target, share)
    for windows in ([TEXT.encode()], WINDOWS):
        floor = least_rate(split, windows)
        for share, name in ((1.1, "gpt2"), (0.995, "gpt2"), (0.985, "spaces")):
            assert choose_pre_tokenizer(windows, share * floor) == name


def test_unigram_models_are_tried_between_one_piece_and_the_most(monkeypatch):
    """Rates that fall with the logarithm of the size: the one that is returned is within a step of the target."""
    most, sizes = 32_768, []

    def train(texts, *, vocabulary):
        sizes.append(vocabulary)
        tokens = round(1000 * (1 - 0.9 * math.log(vocabulary / 257) / math.log(most / 257)))

        def split(text):
            return [len(text) - tokens + 1] + [1] * (tokens - 1)

        split.vocabulary = vocabulary
        return split

    monkeypatch.setattr(tokenizer_rates, "train_unigram", train)
    for target in (0.02, 0.3, 0.55, 0.9, 1.0):
        for trials, options in ((4, {"trials": 4}), (6, {})):
            sizes.clear()
            chosen = unigram_at_rate([TEXT], [bytes(1000)], target, **options)
            assert len(sizes) == 1 + trials and max(sizes) == most and min(sizes) > 257
            rates = {size: len(train([], vocabulary=size)(bytes(1000))) / 1000 for size in [*sizes]}
            assert chosen.vocabulary == min(rates, key=lambda size: abs(rates[size] - target))  # noqa: B023
            assert target < 0.1 or abs(rates[chosen.vocabulary] - target) <= 0.9 / 2**trials + 1e-3


def test_tokenizers_are_trained_to_a_size_or_to_a_rate_of_the_first_windows(monkeypatch):
    calls = []
    monkeypatch.setattr(tokenizer_rates, "unigram_at_rate", lambda *arguments: calls.append(arguments))
    windows = [bytes([97 + n % 26]) * 999 + b"\xff" for n in range(300)]
    for length, count in ((1000, 200), (60_000, 3), (500_000, 1)):
        train_on("unigram", windows, length=length, rate=0.25)
        texts, measured, rate = calls.pop()
        assert measured == windows[:count] and rate == 0.25
        assert texts == [window[:-1].decode() + "\ufffd" for window in windows]
    for name, kind in (("bpe", TokenizerSplit), ("unigram", WordSplit)):
        split = train_on(name, [(WORDS + TEXT).encode()] * 2, length=9, vocabulary=300, rate=0.1)
        assert type(split) is kind and 257 <= split.tokenizer.get_vocab_size() <= 300


def test_files_of_every_tokenizer_that_is_trained_here_are_read():
    splits = [train_bpe([TEXT], vocabulary=270, pre_tokenizer=name) for name in ("gpt2", "spaces")]
    for split in (*splits, train_unigram([TEXT], vocabulary=280)):
        again = read_tokenizer(split.tokenizer.to_str(), type(split))
        assert type(again) is type(split) and [again(w) for w in WINDOWS] == [split(w) for w in WINDOWS]


def test_refusals():
    for call, message in [
        (lambda: grow_bpe(train_bpe, [], 0.5, num_bytes=1, most_bytes=2), "windows must hold at least one text"),
        (
            lambda: grow_bpe(train_bpe, WINDOWS, 0.5, num_bytes=3, most_bytes=2),
            "num_bytes must be at most most_bytes, 2",
        ),
        (lambda: train_on("bpe", WINDOWS, length=8), "vocabulary must be a number for 'bpe', got None and rate=None"),
        (lambda: train_on("unigram", WINDOWS, length=8), "vocabulary must be a number for 'unigram'"),
        (lambda: train_bpe(["a"], vocabulary=300, pre_tokenizer="gpt4"), r"one of \['gpt2', 'spaces'\], got 'gpt4'"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()

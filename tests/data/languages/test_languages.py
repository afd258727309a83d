"""Languages: what they say of themselves is true of their texts, by definition and by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rltok_rl.data import RepeatedSource
from rltok_rl.data.languages import Automaton, Language, Lexicon, Recall, visible_bytes
from rltok_rl.data.languages.gaps import Gaps
from rltok_rl.data.languages.words import WordTree, make_words
from rltok_rl.models import UNet, preset
from rltok_rl.text import ids_to_bytes, text_to_ids

from ...each import each, refused
from .definition import Copying, Independent, recall_pieces, zipf_pieces

UNIFORM = {"values": "01", "fillers": "ab", "shortest_gap": 1, "mean_gap": 2.0, "gap_law": "uniform"}
WORDS = ("aab", "ba", "bbab", "abb")  # after "ab" one cannot tell where words end
ENGLISH = ["to", "be", "or", "not"]
# Small languages, and the same written out: all pieces of text with their probabilities.
SMALL = {
    "recall": (Recall(**UNIFORM), Independent(recall_pieces("01", "ab", {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}, ""))),
    "recall with separator": (
        Recall(**UNIFORM | {"shortest_gap": 0, "mean_gap": 0.5, "separator": ";."}),
        Independent(recall_pieces("01", "ab", {0: 1 / 2, 1: 1 / 2}, ";.")),
    ),
    "memoryless recall": (
        Recall(values="012", fillers="a", shortest_gap=1, mean_gap=2.0),
        Independent(recall_pieces("012", "a", {g: 0.5**g for g in range(1, 60)}, "")),
    ),
    "lexicon": (Lexicon(words=WORDS, lag=4, copy=0.6, window=3), Independent(zipf_pieces(WORDS, 1.0))),
}
LARGE: dict[str, Language] = {
    "recall": Recall(),
    "uniform recall": Recall(gap_law="uniform", shortest_gap=2, mean_gap=6.5, separator=";", window=5),
    "recall in one byte": Recall(window=1),
    "lexicon": Lexicon(),
    "ambiguous lexicon": Lexicon(words=WORDS, lag=4, copy=0.5, window=3),
}


def texts(language: Language, num_rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return language.draw(num_rows, length, torch.Generator().manual_seed(seed)).byte_ids


def strings(byte_ids: torch.Tensor) -> list[str]:
    return [ids_to_bytes(row).decode() for row in byte_ids]


@each(name=SMALL)
def test_log_probabilities_and_rates_are_bayes_rule(name):
    language, definition = SMALL[name]
    byte_ids = texts(language, 12, 24)

    def defined(predict, *window):
        return torch.tensor([predict(text, *window) for text in strings(byte_ids)], dtype=torch.float64)

    for window in (1, 2, 3, 4, 6):
        found = language.floor_log_prob(byte_ids, window=window)
        torch.testing.assert_close(found, defined(definition.floor, window), atol=1e-10, rtol=0)
        if window <= 4:
            assert language.floor_rate(window=window) == pytest.approx(definition.floor_rate(window), abs=1e-9)
    off_by_one = language.floor_log_prob(byte_ids, window=2) - defined(definition.floor, 3)
    assert off_by_one.abs().max() > 0.1
    if isinstance(language, Lexicon):
        definition = Copying(definition.pieces, lag=4, copy=0.6)
    torch.testing.assert_close(language.ideal_log_prob(byte_ids), defined(definition.ideal), atol=1e-10, rtol=0)


@each(name=LARGE)
def test_probabilities_of_all_next_bytes_sum_to_one(name):
    (text,) = texts(LARGE[name], 1, 40)
    for predict in (LARGE[name].ideal_log_prob, LARGE[name].floor_log_prob):
        for t in range(len(text)):
            following = text[: t + 1].repeat(256, 1)
            following[:, t] = torch.arange(256)
            assert predict(following)[:, t].exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@each(name=LARGE)
def test_long_texts_cost_what_the_closed_forms_say(name):
    """Within five standard errors over rows (chance of a false alarm below 1e-5), and those are small."""
    language = LARGE[name]
    byte_ids = texts(language, 64, 1200, seed=1)
    ideal, floor = language.ideal_log_prob(byte_ids), language.floor_log_prob(byte_ids)
    for found, expected in (
        (-ideal, language.entropy_rate),
        (-floor, language.floor_rate()),
        (ideal - floor, language.optimal_return_per_byte),
        (language.optimal_boundaries(byte_ids).double(), language.boundary_rate),
    ):
        rows = found[:, 200:].mean(-1)  # beginnings are not what an endless text looks like
        error = rows.std().item() / math.sqrt(len(rows))
        assert abs(rows.mean().item() - expected) < 5 * error
        assert error < 0.05 * expected


@each(name=LARGE)
def test_every_language_is_a_causal_source_of_fresh_texts(name):
    language, generator = LARGE[name], torch.Generator().manual_seed(0)
    first, second = (language.draw(4, 60, generator) for _ in range(2))
    assert torch.equal(first.byte_ids, texts(language, 4, 60)) and not torch.equal(first.byte_ids, second.byte_ids)
    assert first.byte_ids.dtype == torch.int64 and first.lengths.tolist() == [60] * 4 and not first.ends.any()
    assert set(ids_to_bytes(texts(language, 64, 200).flatten())) == set(language.alphabet)
    repeated = RepeatedSource(language, times=3).draw(6, 40, torch.Generator().manual_seed(0)).byte_ids
    assert torch.equal(repeated, texts(language, 2, 40).repeat_interleave(3, 0))
    byte_ids = texts(language, 6, 50)
    for function in (language.ideal_log_prob, language.floor_log_prob, language.optimal_boundaries):
        torch.testing.assert_close(function(byte_ids)[2], function(byte_ids[2]))
        torch.testing.assert_close(function(byte_ids.view(2, 3, 50)), function(byte_ids).view(2, 3, 50))
        torch.testing.assert_close(function(byte_ids[:, :20]), function(byte_ids)[:, :20])
    assert language.optimal_boundaries(byte_ids)[:, 0].all()
    impossible = byte_ids[0].clone()
    impossible[12] = ord(" ")
    found = language.ideal_log_prob(impossible)
    assert found[:12].isfinite().all() and (found[12:] == -math.inf).all()
    ideal, floor = language.ideal_log_prob(byte_ids)[:, 1:], language.floor_log_prob(byte_ids)[:, 1:]
    for log_prob, share in ((ideal, 1.0), (floor, 0.0), ((ideal + 3 * floor) / 4, 0.25)):
        assert language.share_captured(byte_ids, log_prob) == pytest.approx(share, abs=1e-9)


def test_visible_bytes_is_what_a_model_sees():
    """A byte further back than that moves no early prediction; one that is not does."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", window=4, num_encoder_layers=2)).double().eval()
    reach = visible_bytes(4, num_layers=2)
    text = text_to_ids("#0abababababababab?0")[None]
    last = text.shape[1] - 1
    before = model.early_logits(model.encode(text))[0, -1]
    for place, moves in ((last - reach, False), (last - reach + 1, True)):
        changed = text.clone()
        changed[0, place] = ord("z")
        after = model.early_logits(model.encode(changed))[0, -1]
        assert (after - before).abs().max().item() > 1e-9 if moves else torch.equal(before, after)


# Recall, by hand


def test_recall_boundaries_follow_the_values_of_keys_alone():
    def marks(language, text: str) -> str:
        return "".join(".|"[int(x)] for x in language.optimal_boundaries(text_to_ids(text)))

    assert marks(Recall(fillers="abch"), "#0abc?0#3h?3#1aa") == "||......|....|.."
    assert marks(Recall(), "#") == "|"
    language = Recall(separator=";", shortest_gap=1, mean_gap=2.0, gap_law="uniform")
    records = strings(texts(language, 1, 4000))[0].split(";")[:-1]
    assert len(records) > 500
    for record in records:
        assert record[0] == "#" and record[1] in "01234567" and record[-2:] == "?" + record[1]
        assert 1 <= len(record) - 4 <= 3 and set(record[2:-2]) <= set("abcd")


def test_what_a_window_misses_of_recall():
    language = Recall(values="0123", shortest_gap=3, mean_gap=6.0)
    byte_ids = texts(language, 32, 200)
    answers = (byte_ids == ord("?")).roll(1, -1)
    answers[:, 0] = False
    assert (language.ideal_log_prob(byte_ids)[answers] == 0).all()
    blind = language.floor_log_prob(byte_ids, window=4)[answers]  # "#v" + 3 filler bytes + "?": 4 bytes miss v
    torch.testing.assert_close(blind, torch.full_like(blind, -math.log(4)), atol=1e-12, rtol=0)
    sees = language.floor_log_prob(byte_ids, window=5)[answers]
    assert set(sees.exp().round(decimals=9).tolist()) == {0.25, 1.0}
    for window in (8, 9, 20):  # from the shortest gap on, memoryless gaps leave nothing to count
        memoryless = Recall(values="0123", shortest_gap=8, mean_gap=12.0, window=window)
        hidden = min((4 / 5) ** (window - 1 - 8), 1.0)  # P(g > window - 2)
        assert memoryless.optimal_return_per_byte == pytest.approx(math.log(4) * hidden / (4 + 12), abs=1e-12)
    fixed = Recall(values="01", fillers="ab", shortest_gap=2, mean_gap=2.0, window=1)  # gaps of 2, always
    assert fixed.entropy_rate == pytest.approx(3 * math.log(2) / 6)
    assert fixed.floor_rate(window=2) == pytest.approx(4 * math.log(2) / 6)
    # One byte: after a value two ways to go on, and after a filler byte another one or the query.
    assert fixed.floor_rate() == pytest.approx((4 + 2 + 2) * math.log(2) / 6)


@each(law=["memoryless", "uniform"])
def test_gaps_are_drawn_as_their_law_says(law):
    gaps = Gaps(law, 2, 5.0)
    drawn = gaps.draw((40_000,), torch.Generator().manual_seed(0))
    assert gaps.mean == 5.0
    for k in range(12):
        p = float((1 - gaps.hazards[:k]).prod()) * float(1 - gaps.hazards[-1]) ** max(k - len(gaps.hazards), 0)
        assert abs((drawn >= k).double().mean().item() - p) <= 5 * math.sqrt(p * (1 - p) / 40_000)


# Automata, by hand


def test_an_automaton_is_checked_and_reads_beliefs():
    """A hidden parity: after a, the floor of one byte cannot tell which of two states it is in."""

    def moves(state: str):
        return {"even": {97: (0.5, "odd"), 98: (0.5, "even")}, "odd": {97: (0.25, "even"), 99: (0.75, "odd")}}[state]

    language = Automaton(moves, "even", lambda state: state == "odd", window=1, name="parity")
    assert language.alphabet == b"abc" and language.boundary_rate == pytest.approx(2 / 3)
    found = language.floor_log_prob(text_to_ids("bacabb"))[1:].exp().tolist()
    after_a = (1 / 6) / (1 / 6 + 1 / 6)  # from even to odd as often as back
    after_c, after_b = 0.25, 0.5
    assert found == pytest.approx([after_b, (1 - after_a) * 0 + after_a * 0.75, after_c, (1 - after_a) * 0.5, 0.5])
    opened = {"new": {60: (0.5, "a"), 62: (0.5, "b")}, "a": {98: (1.0, "b")}, "b": {97: (1.0, "a")}}
    once = Automaton(opened.__getitem__, "new", lambda state: state == "a", window=1, name="opened")
    assert once.stationary.tolist() == [0.0, 0.5, 0.5]  # a text never comes back to its beginning
    parted = {**opened, "b": {97: (1.0, "b")}, "a": {98: (1.0, "a")}}
    with pytest.raises(ValueError, match="the same recurring states"):
        _ = Automaton(parted.__getitem__, "new", bool, window=1, name="x").stationary
    with pytest.raises(ValueError, match=r"moves\('odd'\) must sum to 1, got 0.5"):
        Automaton({"even": {97: (1.0, "odd")}, "odd": {98: (0.5, "even")}}.get, "even", bool, window=1, name="x")


# Lexicon, by hand


def test_lexicon_boundaries_and_rates():
    found = Lexicon(words=ENGLISH).optimal_boundaries(text_to_ids("tobeornottobeno"))
    assert found.int().tolist() == [1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0]
    two = Lexicon(words=["aab", "bba"], exponent=0.0, copy=0.5, lag=2, window=2)  # three of four words are copies
    p = 0.5 + 0.5 / 2
    assert two.entropy_rate == pytest.approx(-(p * math.log(p) + (1 - p) * math.log(1 - p)) / 3)
    assert two.word_length == 3 and two.boundary_rate == pytest.approx(1 / 3)
    # Independent words leave tokens nothing to carry if the window tells where words end: only words begin with "a".
    clear, copied = (Lexicon(words=["ab", "acb", "adb"], copy=copy, lag=4, window=3) for copy in (0.0, 0.5))
    assert clear.optimal_return_per_byte == pytest.approx(0.0, abs=1e-12)
    fresh = -float((copied.word_probs * copied.word_probs.log()).sum())
    assert copied.floor_rate() == pytest.approx(fresh / copied.word_length)


def test_words_come_back():
    language = Lexicon(words=ENGLISH, lag=3, copy=0.75)
    copies = total = 0
    for text in strings(texts(language, 64, 300)):
        words = []
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
    assert words != make_words(20, letters="abcdef", lengths=(3, 5), seed=2)
    assert make_words(6, letters="abcdef", lengths=(3, 5), seed=1) == words[:6]
    nodes, completed = WordTree(ENGLISH).walk(text_to_ids("notbeo"))
    assert completed.tolist() == [-1, -1, 3, -1, 1, -1]
    assert (nodes == 0).tolist() == [True, False, False, True, False, True]
    nodes, completed = WordTree(ENGLISH).walk(text_to_ids("nxto"))
    assert completed.tolist() == [-1, -1, -1, -1] and (nodes[2:] == nodes.max()).all()


def test_refusals():
    ideal = Recall().ideal_log_prob(texts(Recall(), 8, 100))
    share = r"log_prob must have shape \[8, 99\], without first bytes, got \[8, 100\]"
    refused(
        (lambda: Recall().floor_rate(window=True), ValueError, "window must be an integer of at least 1, got True"),
        (lambda: Recall().draw(1, 1), ValueError, "length must be at least 2 .* got 1"),
        (lambda: visible_bytes(0, 1), ValueError, "layer_window must be at least 1"),
        (lambda: Recall().share_captured(texts(Recall(), 8, 100), ideal), ValueError, share),
    )
    for kind, options, words in [
        (Recall, {"window": 0}, "window must be an integer of at least 1, got 0"),
        (Recall, {"values": "0"}, "values must hold at least 2 characters, got '0'"),
        (Recall, {"fillers": ""}, "fillers must hold at least 1 character"),
        (Recall, {"fillers": "ab0"}, "fillers must not share characters, got '0', also in values"),
        (Recall, {"separator": ";;"}, "separator must not share characters, got ';', also in separator"),
        (Recall, {"values": "0\n"}, r"values must be printable ASCII without spaces, got '\\n'"),
        (Recall, {"shortest_gap": -1}, "shortest_gap must be an integer of at least 0, got -1"),
        (Recall, {"mean_gap": 3.0}, "mean_gap must be finite and at least shortest_gap=6, got 3.0"),
        (Recall, {"gap_law": "even"}, r"gap_law must be one of \['memoryless', 'uniform'\], got 'even'"),
        (Recall, {"gap_law": "uniform", "mean_gap": 9.3}, "mean_gap must be a whole or a half number .* got 9.3"),
        (Lexicon, {"words": ["to", "tone"]}, "words must not begin one another, got 'to' and 'tone'"),
        (Lexicon, {"words": ["to", "to"]}, "words must differ"),
        (Lexicon, {"words": ["to"]}, "words must be at least 2"),
        (Lexicon, {"words": ["to", ""]}, "words must not be empty, got '' as word 1"),
        (Lexicon, {"words": ["to", "b e"]}, "words must be printable ASCII without spaces, got ' '"),
        (Lexicon, {"num_words": 60, "letters": "ab", "word_lengths": (2, 3)}, "must be small enough .* got 60"),
        (Lexicon, {"letters": "a"}, "letters must hold at least 2 characters, got 'a'"),
        (Lexicon, {"word_lengths": (5, 4)}, r"word_lengths must be \(shortest, longest\) .* got \(5, 4\)"),
        (Lexicon, {"letters": "aa"}, "letters must not share characters, got 'a', also in letters"),
        (Lexicon, {"lag": 1}, "lag must be an integer of at least 2, got 1"),
        (Lexicon, {"copy": 1.0}, r"copy must lie in \[0, 1\), got 1.0"),
        (Lexicon, {"exponent": -1.0}, "exponent must be at least 0 and finite, got -1.0"),
        (Lexicon, {"window": 10}, r"window must be at most \(lag - 1\) times the shortest word, 9, got 10"),
    ]:
        refused((lambda kind=kind, options=options: kind(**options), ValueError, words))

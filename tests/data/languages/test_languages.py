"""Laws of every language: what it says of itself is what its texts and the definitions say."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.data import RepeatedSource
from rltok_rl.data.languages import Language, Lexicon, Recall, visible_bytes
from rltok_rl.text import ids_to_bytes, text_to_ids

from .definition import Copying, Independent, recall_pieces, zipf_pieces

UNIFORM = {"values": "01", "fillers": "ab", "shortest_gap": 1, "mean_gap": 2.0, "gap_law": "uniform"}
WORDS = ("aab", "ba", "bbab", "abb")  # after "ab" one cannot tell where words end
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


@pytest.mark.parametrize("window", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", SMALL)
def test_floor_is_bayes_rule(name, window):
    language, definition = SMALL[name]
    byte_ids = texts(language, 12, 24)
    found = language.floor_log_prob(byte_ids, window=window)
    expected = torch.tensor([definition.floor(text, window) for text in strings(byte_ids)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", SMALL)
def test_a_floor_off_by_one_byte_would_be_noticed(name):
    language, definition = SMALL[name]
    byte_ids = texts(language, 12, 24)
    wrong = torch.tensor([definition.floor(text, 3) for text in strings(byte_ids)], dtype=torch.float64)
    assert (language.floor_log_prob(byte_ids, window=2) - wrong).abs().max() > 0.1


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SMALL)
def test_floor_rate_is_the_mean_over_all_windows(name, window):
    language, definition = SMALL[name]
    assert language.floor_rate(window=window) == pytest.approx(definition.floor_rate(window), abs=1e-9)


@pytest.mark.parametrize("name", SMALL)
def test_ideal_is_bayes_rule(name):
    language, definition = SMALL[name]
    byte_ids = texts(language, 12, 24)
    if isinstance(language, Lexicon):
        definition = Copying(definition.pieces, lag=4, copy=0.6)
    expected = torch.tensor([definition.ideal(text) for text in strings(byte_ids)], dtype=torch.float64)
    torch.testing.assert_close(language.ideal_log_prob(byte_ids), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("which", ["ideal", "floor"])
def test_probabilities_of_all_next_bytes_sum_to_one(name, which):
    language = LARGE[name]
    (text,) = texts(language, 1, 40)
    for t in range(len(text)):
        following = text[: t + 1].repeat(256, 1)
        following[:, t] = torch.arange(256)
        predict = language.ideal_log_prob if which == "ideal" else language.floor_log_prob
        assert predict(following)[:, t].exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", LARGE)
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


@pytest.mark.parametrize("name", LARGE)
def test_the_floor_is_below_the_ideal_and_rises_with_the_window(name):
    language = LARGE[name]
    rates = [language.floor_rate(window=w) for w in (1, 2, 3, 4, 5, 6)]
    assert all(wide <= narrow + 1e-12 for narrow, wide in zip(rates, rates[1:], strict=False))
    assert language.entropy_rate < rates[-1]
    assert language.optimal_return_per_byte == language.floor_rate() - language.entropy_rate > 0


@pytest.mark.parametrize("name", LARGE)
def test_texts_follow_the_seed_and_are_always_fresh(name):
    language = LARGE[name]
    generator = torch.Generator().manual_seed(0)
    first, second = (language.draw(4, 60, generator) for _ in range(2))
    assert torch.equal(first.byte_ids, texts(language, 4, 60)) and not torch.equal(first.byte_ids, second.byte_ids)
    assert first.byte_ids.dtype == torch.int64 and first.lengths.tolist() == [60] * 4
    assert not first.ends.any()
    assert set(ids_to_bytes(texts(language, 64, 200).flatten())) == set(language.alphabet)
    assert all(33 <= byte <= 126 for byte in language.alphabet)


@pytest.mark.parametrize("name", LARGE)
def test_rows_and_single_texts_are_treated_alike(name):
    language = LARGE[name]
    byte_ids = texts(language, 6, 50)
    for function in (language.ideal_log_prob, language.floor_log_prob, language.optimal_boundaries):
        torch.testing.assert_close(function(byte_ids)[2], function(byte_ids[2]))
        torch.testing.assert_close(function(byte_ids.view(2, 3, 50)), function(byte_ids).view(2, 3, 50))
        torch.testing.assert_close(function(byte_ids[:, :20]), function(byte_ids)[:, :20])  # causal
    assert language.optimal_boundaries(byte_ids)[:, 0].all()


@pytest.mark.parametrize("name", LARGE)
def test_impossible_bytes(name):
    language = LARGE[name]
    (text,) = texts(language, 1, 30)
    text[12] = ord(" ")
    found = language.ideal_log_prob(text)
    assert found[:12].isfinite().all() and (found[12:] == -math.inf).all()


@pytest.mark.parametrize("name", LARGE)
def test_share_captured(name):
    language = LARGE[name]
    byte_ids = texts(language, 8, 100)
    ideal, floor = language.ideal_log_prob(byte_ids)[:, 1:], language.floor_log_prob(byte_ids)[:, 1:]
    for log_prob, share in ((ideal, 1.0), (floor, 0.0), ((ideal + 3 * floor) / 4, 0.25)):
        assert language.share_captured(byte_ids, log_prob) == pytest.approx(share, abs=1e-9)
    with pytest.raises(ValueError, match=r"one entry for each byte but the first, \[8, 99\], got \[8, 100\]"):
        language.share_captured(byte_ids, language.ideal_log_prob(byte_ids))


def test_windows_are_dealt_to_several_rows():
    repeated = RepeatedSource(Recall(), times=3)
    byte_ids = repeated.draw(6, 40, torch.Generator().manual_seed(0)).byte_ids
    assert torch.equal(byte_ids[::3].repeat_interleave(3, 0), byte_ids)
    assert torch.equal(byte_ids[::3], texts(Recall(), 2, 40))
    repeated.check_length(10_000)


def test_visible_bytes_is_what_a_model_sees():
    """A byte further back than that moves no early prediction; one that is not does."""
    from rltok_rl.models import UNet, preset

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recall(window=0), "window must be an integer of at least 1, got 0"),
        (lambda: Recall().floor_rate(window=True), "window must be an integer of at least 1, got True"),
        (lambda: Recall().draw(1, 1), "length must be at least 2 .* got 1"),
        (lambda: visible_bytes(0, 1), "layer_window must be at least 1"),
    ],
)
def test_misuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()

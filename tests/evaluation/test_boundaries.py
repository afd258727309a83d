"""Token lengths, policy entropy, and all boundary metrics of several texts."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch

from rltok_rl.evaluation import (
    boundary_match,
    boundary_metrics,
    join_texts,
    policy_entropy,
    summarise_lengths,
    token_lengths,
)
from rltok_rl.evaluation.boundaries import QUANTILES
from rltok_rl.models import Segmentation
from rltok_rl.text import text_to_bytes

TEXTS = ["to be, or not", "é€ to", "x", " be"]


def drawn(text: str | bytes, seed: int, rate: float = 0.4) -> Segmentation:
    generator, content = torch.Generator().manual_seed(seed), text_to_bytes(text)
    probabilities = torch.rand(len(content), generator=generator)
    boundaries = torch.rand(len(content), generator=generator) < rate
    boundaries[0], probabilities[0] = True, 1.0
    return Segmentation(content, boundaries, probabilities)


def test_lengths_by_hand():
    boundaries = torch.tensor([[1, 0, 0, 1, 1, 0], [1, 0, 1, 0, 0, 1]])
    assert token_lengths(boundaries).tolist() == [1, 3, 1, 1, 2, 3]
    counted = torch.ones(2, 6, dtype=torch.bool)
    counted[:, 0] = False  # forced: no token of one byte, and the next one is counted from it
    assert token_lengths(boundaries, counted).tolist() == [3, 1, 2, 3]
    assert token_lengths(boundaries[0], counted[0]).tolist() == [3, 1]
    sparse = torch.tensor([[0, 0, 0], [0, 1, 1], [0, 0, 0], [1, 0, 1]])  # rows without a boundary have no token
    assert token_lengths(sparse).tolist() == [2, 1, 1, 2]
    for row in torch.rand(5, 40) < 0.3:
        assert int(token_lengths(row).sum()) == int(row.nonzero().max()) + 1  # every byte up to the last boundary


def test_a_summary_of_lengths_by_hand():
    lengths = torch.tensor([1, 2, 2, 5, 20])
    summary = summarise_lengths(lengths)
    assert summary.mean == 6.0 and summary.spread == pytest.approx(statistics.pstdev(lengths.tolist()))
    # The shortest length that so many tokens do not exceed.
    assert summary.quantiles == {0.05: 1.0, 0.25: 2.0, 0.5: 2.0, 0.75: 5.0, 0.95: 20.0}
    assert summary.histogram == (1, 2, 0, 0, 1, *[0] * 10, 1)
    for count in (1, 3, 20, 60, 100):  # of 1 .. n the quantile is the product, rounded up exactly
        found = summarise_lengths(torch.arange(count).flip(0) + 1).quantiles
        assert found == {q: -(-round(100 * q) * count // 100) for q in QUANTILES}
    ones = summarise_lengths(token_lengths(torch.ones(7)))
    assert (ones.count, ones.mean, ones.spread, ones.histogram) == (7, 1.0, 0.0, (7, *[0] * 15))
    assert set(ones.quantiles.values()) == {1.0}
    for boundaries in (torch.zeros(3, 5), torch.zeros(0), torch.zeros(2, 0)):
        none = summarise_lengths(token_lengths(boundaries))
        assert none.count == 0 and sum(none.histogram) == 0
        assert all(math.isnan(x) for x in (none.mean, none.spread, *none.quantiles.values()))


def test_entropy_by_hand():
    probabilities = torch.tensor([1.0, 0.25, 0.0, 0.5])
    quarter = 0.25 * 2 + 0.75 * math.log2(4 / 3)
    assert policy_entropy(probabilities) == pytest.approx((quarter + 1.0) / 4)
    assert policy_entropy(probabilities, torch.tensor([0, 1, 0, 0])) == pytest.approx(quarter)
    assert policy_entropy(torch.tensor([0.0, 1.0])) == 0.0
    tenth = torch.tensor([0.1])
    exact = -sum(p * math.log2(p) for p in (tenth.item(), 1 - tenth.item()))
    assert policy_entropy(tenth) == pytest.approx(exact, rel=1e-12)


def test_entropy_of_draws_is_that_of_the_strings_on_average():
    """By enumeration: the mean over all strings of a policy with a lag is the entropy of their distribution."""
    length, first, after = 5, 0.3, {0: 0.2, 1: 0.7}
    whole = mean = 0.0
    for string in itertools.product((0, 1), repeat=length):
        probs = [first] + [after[a] for a in string[:-1]]
        likelihood = math.prod(p if a else 1 - p for p, a in zip(probs, string, strict=True))
        whole -= likelihood * math.log2(likelihood)
        mean += likelihood * length * policy_entropy(torch.tensor(probs, dtype=torch.float64))
    assert mean == pytest.approx(whole)


def test_metrics_of_several_texts_are_those_of_all_their_bytes():
    parts = [drawn(text, number) for number, text in enumerate(TEXTS)]
    joined = join_texts(parts, gap=2)
    assert bytes(joined.byte_ids.tolist()) == b"\0\0".join(text.encode() for text in TEXTS)
    lengths = [n for part in parts for n in token_lengths(part.boundaries, torch.arange(len(part.text)) > 0).tolist()]
    assert token_lengths(joined.boundaries, joined.counted).tolist() == lengths
    # After a mark the first boundary may be missing, too: no token crosses the gap.
    marked = Segmentation(b"abc", torch.tensor([False, False, True]), torch.ones(3))
    joined = join_texts([marked, marked], gap=4)
    assert token_lengths(joined.boundaries, joined.counted).tolist() == [3, 3]
    metrics = boundary_metrics(join_texts(parts))
    free = [(part, place) for part in parts for place in range(1, len(part.text))]
    laid = [(part, place) for part, place in free if part.boundaries[place]]
    assert (metrics["bytes"], metrics["boundaries"], metrics["rate"]) == (len(free), len(laid), len(laid) / len(free))
    for name, places in (("share", laid), ("chance", free)):
        spaces = [part.text[at : at + 1].isspace() for part, at in places]
        assert metrics["white_space"][name] == sum(spaces) / len(places)
        words = [[byte >= 128 or chr(byte).isalnum() for byte in part.text[at - 1 : at + 1]] for part, at in places]
        first = words.count([False, True]) / len(places)
        assert metrics["word_edges"]["first_letter"][name] == metrics["word_positions"]["start"]["0"][name] == first
    entropies = [policy_entropy(part.probabilities[at : at + 1]) for part, at in free]
    assert metrics["entropy"]["bits_per_byte"] == pytest.approx(sum(entropies) / len(free))
    mean = statistics.fmean(float(part.probabilities[at]) for part, at in free)
    most = -mean * math.log2(mean) - (1 - mean) * math.log2(1 - mean)
    assert metrics["entropy"]["bits_per_byte"] < metrics["entropy"]["most"] == pytest.approx(most)
    assert metrics["bytes_per_token"]["count"] == len(laid) == sum(metrics["bytes_per_token"]["histogram"])
    assert [*metrics["bytes_per_token"]["quantiles"]] == ["0.05", "0.25", "0.5", "0.75", "0.95"]
    assert len(metrics["bytes_per_token"]["histogram"]) == 16
    assert [*metrics["word_positions"]["start"]] == ["-1", *"012345", "6+", "outside"]
    assert metrics["split_characters"]["chance"] == pytest.approx(2 / len(free))  # the first byte of é is no decision


def test_boundaries_of_different_texts_are_not_paired():
    two = Segmentation(b"ab", torch.tensor([True, True]), torch.ones(2))
    one = Segmentation(b"ab", torch.tensor([True, False]), torch.ones(2))
    for tolerance in (1, 2, 3, 4):
        mine, theirs = (join_texts(parts, gap=1 + tolerance) for parts in ([two, one], [one, two]))
        match = boundary_match(mine.boundaries, theirs.boundaries, mine.counted, tolerance=tolerance)
        assert (match.precision, match.recall) == (0.0, 0.0), tolerance


def test_extreme_texts():
    everywhere, none = (boundary_metrics(join_texts([drawn("to be, é", 0, rate)])) for rate in (1.0, 0.0))
    assert everywhere["rate"] == everywhere["bytes_per_token"]["mean"] == everywhere["white_space"]["lift"] == 1.0
    assert none["rate"] == none["boundaries"] == none["bytes_per_token"]["count"] == none["white_space"]["covered"] == 0
    assert all(math.isnan(x) for x in (none["white_space"]["share"], none["bytes_per_token"]["mean"]))
    # Every byte from 0xC2 on is followed by a wrong one: nothing is inside a character.
    every_byte = boundary_metrics(join_texts([drawn(bytes(range(256)), 0)]))
    assert every_byte["bytes"] == 255 and every_byte["split_characters"]["chance"] == 0.0
    assert math.isnan(every_byte["split_characters"]["covered"])

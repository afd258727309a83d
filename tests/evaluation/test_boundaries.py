"""All figures of several texts: those of the functions, text by text."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.evaluation import boundary_figures, boundary_match, join_texts, policy_entropy, token_lengths
from rltok_rl.models import Segmentation
from rltok_rl.text import text_to_ids

TEXTS = ["to be, or not", "é€ to", "x", " be"]


def drawn(text: str | bytes, seed: int, rate: float = 0.4) -> Segmentation:
    generator = torch.Generator().manual_seed(seed)
    content = text.encode() if isinstance(text, str) else text
    probabilities = torch.rand(len(content), generator=generator)
    boundaries = torch.rand(len(content), generator=generator) < rate
    boundaries[0], probabilities[0] = True, 1.0
    return Segmentation(content, boundaries, probabilities)


def test_texts_stand_beside_each_other():
    parts = [drawn(text, number) for number, text in enumerate(TEXTS)]
    joined = join_texts(parts, gap=2)
    assert bytes(joined.byte_ids.tolist()) == b"\0\0".join(text.encode() for text in TEXTS)
    assert int(joined.counted.sum()) == sum(len(text.encode()) - 1 for text in TEXTS)
    lengths = [n for one in parts for n in token_lengths(one.boundaries, torch.arange(len(one.text)) > 0).tolist()]
    assert token_lengths(joined.boundaries, joined.counted).tolist() == lengths


def test_figures_of_several_texts_are_those_of_all_their_bytes():
    parts = [drawn(text, number) for number, text in enumerate(TEXTS)]
    found = boundary_figures(join_texts(parts))
    free = [(one, place) for one in parts for place in range(1, len(one.text))]
    laid = [(one, place) for one, place in free if one.boundaries[place]]
    assert (found["bytes"], found["boundaries"]) == (len(free), len(laid))
    assert found["rate"] == len(laid) / len(free)
    spaces = [one.text[place : place + 1].isspace() for one, place in laid]
    assert found["white_space"]["share"] == sum(spaces) / len(laid)
    assert found["white_space"]["chance"] == sum(one.text[at : at + 1].isspace() for one, at in free) / len(free)
    entropies = [policy_entropy(one.probabilities[at : at + 1]) for one, at in free]
    assert found["entropy"]["bits_per_byte"] == pytest.approx(sum(entropies) / len(free))
    assert found["entropy"]["bits_per_byte"] < found["entropy"]["most"] <= 1
    assert found["bytes_per_token"]["count"] == len(laid) == sum(found["bytes_per_token"]["histogram"])
    assert found["split_characters"]["chance"] == pytest.approx(2 / len(free))  # the first byte of é is no decision


def test_boundaries_of_one_text_are_not_paired_with_those_of_another():
    one = Segmentation(b"ab", torch.tensor([True, True]), torch.ones(2))
    other = Segmentation(b"ab", torch.tensor([True, False]), torch.ones(2))
    for tolerance in (1, 2, 3, 4):
        mine, theirs = (join_texts(parts, gap=1 + tolerance) for parts in ([one, other], [other, one]))
        found = boundary_match(mine.boundaries, theirs.boundaries, mine.counted, tolerance=tolerance)
        assert (found.precision, found.recall) == (0.0, 0.0)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_no_boundaries_and_nothing_but_boundaries(rate):
    found = boundary_figures(join_texts([drawn("to be, é", 0, rate)]))
    if rate:
        assert found["rate"] == found["bytes_per_token"]["mean"] == found["white_space"]["lift"] == 1.0
    else:
        assert found["rate"] == found["boundaries"] == found["bytes_per_token"]["count"] == 0
        assert math.isnan(found["white_space"]["share"]) and math.isnan(found["white_space"]["lift"])
        assert math.isnan(found["bytes_per_token"]["mean"]) and found["white_space"]["covered"] == 0.0


def test_bytes_that_are_no_text_have_figures():
    found = boundary_figures(join_texts([drawn(bytes(range(256)), 0)]))
    # Every byte from 0xC2 on is followed by one that it does not go with: nothing is inside a character.
    assert found["bytes"] == 255 and found["split_characters"]["chance"] == 0.0
    assert math.isnan(found["split_characters"]["covered"])


def test_a_text_without_decisions_is_refused():
    for nothing in ([], [drawn("x", 0)]):
        with pytest.raises(ValueError, match="drawn must hold a text of at least 2 bytes"):
            join_texts(nothing)
    assert join_texts([drawn("xy", 0)]).byte_ids.tolist() == text_to_ids("xy").tolist()

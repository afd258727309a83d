"""Several draws of the boundaries bound the cost over all of them, more tightly the more there are."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter
from torch import Tensor

from rltok_rl.evaluation import document_nats, marginal_nats, read_samples, read_text, summarise, summarise_samples
from rltok_rl.evaluation.marginal import window_nats
from rltok_rl.functional.likelihood import byte_log_prob, log_mean_exp
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

TEXTS = ["It is a truth universally acknowledged,", "that a single man é", "must"]


@pytest.fixture(scope="module")
def model() -> UNet:
    """A model that minds where boundaries are, so that draws differ by more than rounding."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", boundary_scale=1.0, target_rate=0.4)).eval()
    torch.nn.init.normal_(model.final_head.projection.weight, std=0.5)
    return model


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def enumerated(model: UNet, window: Tensor) -> tuple[list[float], list[float]]:
    """Probability of every boundary string of a window, and what the window costs with it, one by one."""
    chances, costs = [], []
    for rest in itertools.product([0, 1], repeat=len(window) - 2):
        out = model(window[None, :-1], torch.tensor([[1, *rest]]))
        probs = out.boundary_logits.sigmoid()[0].tolist()
        chances.append(math.prod(p if a else 1 - p for p, a in zip(probs[1:], rest, strict=True)))
        costs.append(-float(byte_log_prob(out.final_logits, window[None, 1:]).sum()))
    assert sum(chances) == pytest.approx(1.0, abs=1e-5)
    return chances, costs


def test_expected_bounds_fall_with_every_draw_towards_the_sum_over_all_strings(model):
    """All k-tuples of boundary strings, weighed: nothing here is drawn."""
    chances, costs = enumerated(model, text_to_ids(TEXTS[0])[:5])  # 8 strings
    exact = sum(p * math.exp(-cost) for p, cost in zip(chances, costs, strict=True))
    expected = []
    for k in (1, 2, 3):
        tuples = torch.tensor(list(itertools.product(range(len(costs)), repeat=k)))
        weights = torch.tensor(chances, dtype=torch.float64)[tuples].prod(1)
        bounds = marginal_nats(torch.tensor(costs, dtype=torch.float64)[tuples])
        # The mean likelihood is unbiased for every k, and so its logarithm a bound.
        assert float((weights * (-bounds).exp()).sum()) == pytest.approx(exact, rel=1e-5)
        expected.append(float((weights * bounds).sum()))
    assert expected[0] > expected[1] + 1e-3 > expected[2] + 2e-3 > -math.log(exact) + 3e-3
    by_definition = sum(p * cost for p, cost in zip(chances, costs, strict=True))
    assert expected[0] == pytest.approx(by_definition, rel=1e-5)


def test_leaving_a_draw_out_never_tightens_on_average():
    """For any values at all, and so in expectation: the bound of k is at most the mean of those of k - 1 of them."""
    nats = 5 * torch.randn(50, 6, dtype=torch.float64).exp()
    without = [torch.cat((nats[:, :j], nats[:, j + 1 :]), 1) for j in range(6)]
    apart = torch.stack([marginal_nats(rest) for rest in without], 1).mean(1) - marginal_nats(nats)
    assert bool((apart > 0).all())
    same = torch.full((1, 4), 7.5, dtype=torch.float64)
    assert marginal_nats(same).item() == pytest.approx(7.5)


@torch.no_grad()
def test_draws_are_the_policys_and_cost_what_their_strings_cost(model):
    """Every draw of a short text is a string of the enumeration, the one that the generator's numbers ask for."""
    window = text_to_ids(TEXTS[0])[:5]
    chances, costs = enumerated(model, window)
    draws, found = generator(), read_samples(model, TEXTS[0][:5], samples=40, context=4, generator=generator())
    strings = list(itertools.product([0, 1], repeat=3))
    taken = []
    for number in range(40):
        drawn = model(window[None, :-1], uniforms=torch.rand(1, 4, generator=draws)).boundaries[0]
        taken.append(strings.index(tuple(drawn[1:].int().tolist())))
        assert float(found.nats[0, number]) == pytest.approx(costs[taken[-1]], abs=1e-4)
    assert len(set(taken)) > 4
    exact = -math.log(sum(p * math.exp(-cost) for p, cost in zip(chances, costs, strict=True)))
    assert summarise_samples(found)["k_samples"]["corpus_bits_per_byte"] == pytest.approx(
        -math.log(sum(math.exp(-costs[n]) for n in taken) / 40) / 4 / math.log(2), abs=1e-5
    )
    assert abs(marginal_nats(found.nats).item() - exact) < abs(found.nats.mean() - exact)


def test_the_first_draw_is_the_one_that_there_is_without_others(model):
    """One sample, of one or of many, is what a plain reading tells; the rest follows from the same generator."""
    plain = read_text(model, TEXTS, context=8, generator=generator())
    one, many, again = (read_samples(model, TEXTS, samples=k, context=8, generator=generator()) for k in (1, 4, 4))
    assert torch.equal(one.first.final_nats, plain.final_nats) and torch.equal(many.first.boundaries, plain.boundaries)
    assert torch.equal(many.nats, again.nats) and torch.equal(many.nats[:, :1], one.nats)
    assert len({column.sum().item() for column in many.nats.T}) == 4
    expected = summarise(plain)
    for figures in (summarise_samples(one), summarise_samples(many)):
        for name in ("corpus_bits_per_byte", "corpus_standard_error", "document_bits_per_byte", "rate"):
            assert figures["one_sample"][name] == pytest.approx(expected[name], rel=1e-9)
    figures = summarise_samples(one)
    assert {k: v for k, v in figures["one_sample"].items() if k != "rate"} == pytest.approx(figures["k_samples"])
    assert figures["corpus_spread"] is None and figures["count"] == 1


def test_figures_of_several_draws_by_hand(model):
    """The bound is taken window by window, then summed by document."""
    found = read_samples(model, TEXTS, samples=3, context=8, stride=5, generator=generator())
    figures, sizes = summarise_samples(found), found.first.window_sizes
    assert sizes is not None and int(sizes.sum()) == len(found.first.at)
    bounds = [-math.log(sum(math.exp(-cost) for cost in row) / 3) for row in found.nats.tolist()]
    counts, _ = document_nats(found.first)
    per_document, at = [0.0] * len(TEXTS), 0
    for size, bound in zip(sizes.tolist(), bounds, strict=True):
        per_document[int(found.first.document[at])] += bound
        at += size
    assert figures["k_samples"]["corpus_bits_per_byte"] == pytest.approx(sum(bounds) / int(counts.sum()) / math.log(2))
    assert figures["k_samples"]["document_bits_per_byte"] == pytest.approx(
        sum(cost / n for cost, n in zip(per_document, counts.tolist(), strict=True)) / len(TEXTS) / math.log(2)
    )
    passes = [float(column.sum()) / int(counts.sum()) / math.log(2) for column in found.nats.T]
    mean = sum(passes) / 3
    assert figures["corpus_spread"] == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in passes) / 2))
    thresholded = summarise(read_text(model, TEXTS, context=8, stride=5, greedy=True))
    for name in ("corpus_bits_per_byte", "document_standard_error", "rate"):
        assert figures["thresholded"][name] == pytest.approx(thresholded[name])


def test_windows_apart_are_bounded_more_tightly_than_whole_texts(model):
    found = read_samples(model, TEXTS[0], samples=6, context=8, generator=generator())
    whole = -log_mean_exp(-found.nats.sum(0))
    assert float(marginal_nats(found.nats).sum()) < float(whole) - 0.1


@pytest.mark.parametrize("name", ["gumbel", "magnet", "grouped"])
def test_segmenters_that_sample_are_thresholded_at_one_half(model, name):
    segmenter = make_segmenter(name, model).eval()
    found = read_samples(model, TEXTS, samples=2, context=16, segmenter=segmenter, generator=generator())
    segmenter.evaluation = "round"
    rounded = read_text(model, TEXTS, context=16, segmenter=segmenter)
    assert found.thresholded is not None and torch.equal(found.thresholded, window_nats(rounded))
    with pytest.raises(ValueError, match="samples belong to boundaries that are drawn at random, got"):
        read_samples(model, TEXTS, samples=2, context=16, segmenter=segmenter)


def test_boundaries_without_a_probability_have_no_threshold(model):
    segmenter = make_segmenter("random", model).eval()
    found = read_samples(model, TEXTS, samples=2, context=16, segmenter=segmenter, generator=generator())
    assert found.thresholded is None and summarise_samples(found)["thresholded"] is None
    with pytest.raises(ValueError, match="greedy needs boundaries that have a probability each, got ExactRandom"):
        read_text(model, TEXTS, context=16, segmenter=segmenter, greedy=True)


def test_misuse_is_said_by_name(model):
    with pytest.raises(ValueError, match="samples must be an integer of at least 1, got 0"):
        read_samples(model, "abc", samples=0, context=4)
    with pytest.raises(ValueError, match="greedy must be left out"):
        read_samples(model, "abc", samples=2, context=4, greedy=True)
    with pytest.raises(ValueError, match="log_values must have at least one entry along dim -1"):
        log_mean_exp(torch.zeros(3, 0))

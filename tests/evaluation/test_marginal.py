"""Draws and particles bound the cost over all boundary strings, more tightly the more there are."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter
from torch import Tensor

from rltok_rl.evaluation import (
    document_nats,
    loss_metrics,
    marginal,
    marginal_nats,
    particle_nats,
    read_samples,
    read_text,
    summarise,
    summarise_samples,
)
from rltok_rl.evaluation.marginal import effective_number, systematic_resampling, window_nats
from rltok_rl.evaluation.windowed import Output, TextWindows
from rltok_rl.functional.likelihood import byte_log_prob, log_mean_exp
from rltok_rl.models import UNet
from rltok_rl.text import text_to_ids

from .conftest import small_model

TEXTS = ["It is a truth universally acknowledged,", "that a single man é", "must"]


@pytest.fixture(scope="module")
def narrow_model() -> UNet:
    return small_model(head=0.4, width=32, target_rate=0.4)


@torch.no_grad()
def enumerated(model: UNet, window: Tensor) -> tuple[Tensor, Tensor]:
    """[S] probability of every boundary string of a window, and [S] the cost of the window with it."""
    strings = torch.tensor([(1, *rest) for rest in itertools.product((0, 1), repeat=len(window) - 2)])
    out = model(window[None, :-1].expand(len(strings), -1), strings)
    p = out.boundary_logits.sigmoid().double()[:, 1:]
    chances = torch.where(strings[:, 1:].bool(), p, 1 - p).prod(1)
    costs = -byte_log_prob(out.final_logits, window[None, 1:].expand(len(strings), -1)).double().sum(1)
    assert float(chances.sum()) == pytest.approx(1.0, abs=1e-5)
    return chances, costs


def test_expected_bounds_fall_with_every_draw_towards_the_sum_over_all_strings(model):
    """All k-tuples of boundary strings, weighed; nothing is drawn."""
    chances, costs = enumerated(model, text_to_ids(TEXTS[0])[:5])  # 8 strings
    exact = float((chances * (-costs).exp()).sum())
    expected = []
    for k in (1, 2, 3):
        tuples = torch.tensor(list(itertools.product(range(len(costs)), repeat=k)))
        weights, bounds = chances[tuples].prod(1), marginal_nats(costs[tuples])
        # The mean likelihood is unbiased for every k, and so its logarithm a bound.
        assert float((weights * (-bounds).exp()).sum()) == pytest.approx(exact, rel=1e-5)
        expected.append(float((weights * bounds).sum()))
    assert expected[0] > expected[1] + 1e-3 > expected[2] + 2e-3 > -math.log(exact) + 3e-3
    assert expected[0] == pytest.approx(float((chances * costs).sum()), rel=1e-5)


@torch.no_grad()
def test_draws_are_the_policys_and_cost_what_their_strings_cost(model, seeded):
    """Every draw of a short text is a string of the enumeration, drawn with the generator's numbers."""
    window = text_to_ids(TEXTS[0])[:5]
    _, costs = enumerated(model, window)
    draws, samples = seeded(), read_samples(model, TEXTS[0][:5], samples=40, context=4, generator=seeded())
    strings = list(itertools.product([0, 1], repeat=3))
    drawn = []
    for _ in range(40):
        boundaries = model(window[None, :-1], uniforms=torch.rand(1, 4, generator=draws)).boundaries[0]
        drawn.append(strings.index(tuple(boundaries[1:].int().tolist())))
    torch.testing.assert_close(samples.nats[0], costs[drawn], atol=1e-4, rtol=0)
    assert len(set(drawn)) > 4
    bits = -log_mean_exp(-costs[drawn]).item() / 4 / math.log(2)
    assert summarise_samples(samples)["k_samples"]["corpus_bits_per_byte"] == pytest.approx(bits, abs=1e-5)


def test_the_first_draw_is_a_single_reading(model, seeded):
    plain = read_text(model, TEXTS, context=8, generator=seeded())
    one, many = (read_samples(model, TEXTS, samples=k, context=8, generator=seeded()) for k in (1, 4))
    again = read_samples(model, TEXTS, samples=4, context=8, generator=seeded(), greedy=False)
    assert torch.equal(one.first.final_nats, plain.final_nats) and torch.equal(many.first.boundaries, plain.boundaries)
    assert torch.equal(many.nats, again.nats) and torch.equal(many.nats[:, :1], one.nats)
    assert len({column.sum().item() for column in many.nats.T}) == 4
    expected, metrics = summarise(plain), summarise_samples(one)
    for name in ("corpus_bits_per_byte", "corpus_standard_error", "document_bits_per_byte", "rate"):
        assert metrics["one_sample"][name] == pytest.approx(expected[name], rel=1e-9)
    assert {**metrics["k_samples"], "rate": expected["rate"]} == pytest.approx(metrics["one_sample"])
    assert metrics["corpus_spread"] is None and metrics["count"] == 1


def test_metrics_of_several_draws_by_hand(model, seeded):
    """The bound is taken window by window, then summed by document."""
    reports: list[tuple[int, int, float]] = []
    options = {"context": 8, "stride": 5, "progress": lambda *one: reports.append(one)}
    samples = read_samples(model, TEXTS, samples=3, generator=seeded(), **options)
    metrics, sizes = summarise_samples(samples), samples.first.window_sizes
    bounds = [-math.log(sum(math.exp(-cost) for cost in row) / 3) for row in samples.nats.tolist()]
    counts, _ = document_nats(samples.first)
    per_document, at = [0.0] * len(TEXTS), 0
    for size, bound in zip(sizes.tolist(), bounds, strict=True):
        per_document[int(samples.first.document[at])] += bound
        at += size
    total = int(counts.sum())
    by_document = [cost / n for cost, n in zip(per_document, counts.tolist(), strict=True)]
    for name, nats in (("corpus", sum(bounds) / total), ("document", sum(by_document) / len(TEXTS))):
        assert metrics["k_samples"][f"{name}_bits_per_byte"] == pytest.approx(nats / math.log(2))
    assert metrics["one_sample"] == {**loss_metrics(*document_nats(samples.first)), "rate": samples.first.rate}
    spread = (samples.nats.sum(0) / total / math.log(2)).std()
    assert metrics["corpus_spread"] == pytest.approx(float(spread))
    thresholded = summarise(read_text(model, TEXTS, context=8, stride=5, greedy=True))
    for name in ("corpus_bits_per_byte", "document_standard_error", "rate"):
        assert metrics["thresholded"][name] == pytest.approx(thresholded[name])
    nats = float(samples.nats.sum() + samples.thresholded.sum())
    assert reports[-1] == (4 * total, 4 * total, pytest.approx(nats))
    assert [done for done, *_ in reports] == sorted(done for done, *_ in reports)


def test_independent_windows_are_bounded_more_tightly_than_whole_texts(model, seeded):
    nats = read_samples(model, TEXTS[0], samples=6, context=8, generator=seeded()).nats
    assert float(marginal_nats(nats).sum()) < float(marginal_nats(nats.sum(0, keepdim=True))) - 0.1


def test_segmenters_are_thresholded_if_they_have_probabilities(model, seeded):
    for name in ("gumbel", "magnet", "grouped"):
        segmenter = make_segmenter(name, model).eval()
        samples = read_samples(model, TEXTS, samples=2, context=16, segmenter=segmenter, generator=seeded())
        segmenter.evaluation = "round"
        rounded = read_text(model, TEXTS, context=16, segmenter=segmenter)
        assert samples.thresholded is not None and torch.equal(samples.thresholded, window_nats(rounded)), name
    random = make_segmenter("random", model).eval()
    samples = read_samples(model, TEXTS, samples=2, context=16, segmenter=random, generator=seeded())
    assert samples.thresholded is None and summarise_samples(samples)["thresholded"] is None


def test_resampling_is_in_proportion_for_every_weight():
    """Counted over all random numbers of a fine grid."""
    log_weights = torch.tensor([[0.1, 0.6, 0.3, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1e-30, 0.0]]).log()
    grid = (torch.arange(2_000) + 0.5) / 2_000
    drawn = systematic_resampling(log_weights.expand(2_000, 3, 4), grid[:, None].expand(2_000, 3))
    counts = torch.nn.functional.one_hot(drawn, 4).sum(2).double().mean(0)
    torch.testing.assert_close(counts, 4 * log_weights.double().softmax(-1), atol=2e-3, rtol=0)
    assert bool((drawn.diff(dim=-1) >= 0).all())
    for weights, chosen in (([0, 1, 1, 0], [1, 1, 2, 2]), ([1, 1, 1, 1], [0, 1, 2, 3]), ([1, 0, 1, 2], [0, 2, 3, 3])):
        # Random numbers lie in [0, 1): at 0 each mark stands where a share begins.
        assert systematic_resampling(torch.tensor(weights).log(), torch.tensor(0.0)).tolist() == chosen
    last = systematic_resampling(torch.zeros(3), torch.tensor(1 - 2**-24))  # rounding must not lead beyond the last
    assert last.tolist() == [0, 1, 2]
    assert effective_number(torch.tensor([0.5, 0.25, 0.25]).log()).item() == pytest.approx(1 / 0.375)
    assert effective_number(torch.full((2, 5), -3000.0)).tolist() == pytest.approx([5.0, 5.0])


@torch.no_grad()
def test_the_estimate_of_particles_is_unbiased(narrow_model, seeded, monkeypatch):
    """Thousands of estimates of one probability that is also enumerated: 16 boundary strings of six bytes."""
    text, count = TEXTS[0][:6], 1_500
    chances, costs = enumerated(narrow_model, text_to_ids(text))
    exact = float((chances * (-costs).exp()).sum())
    monkeypatch.setattr(marginal, "EVERY", 1)
    resampled: list[int] = []
    resample = marginal.systematic_resampling
    monkeypatch.setattr(marginal, "systematic_resampling", lambda *a: resampled.append(1) or resample(*a))
    nats = particle_nats(narrow_model, [text] * count, particles=3, context=9, generator=seeded())
    ratio = (-nats).exp() / exact
    error = float(ratio.std()) / math.sqrt(count)
    assert resampled and error < 0.03
    assert abs(float(ratio.mean()) - 1) < 3 * error  # the random numbers are fixed
    assert float(nats.mean()) > -math.log(exact)


def test_one_particle_is_one_sample(model, seeded):
    for name in (None, "gumbel", "magnet", "grouped", "random"):
        segmenter = None if name is None else make_segmenter(name, model).eval()
        options = {"context": 8, "stride": 5, "segmenter": segmenter}
        one = read_samples(model, TEXTS[1:], samples=1, generator=seeded(), **options)
        nats = particle_nats(model, TEXTS[1:], particles=1, generator=seeded(), **options)
        torch.testing.assert_close(nats, one.nats[:, 0], atol=1e-3, rtol=0)


def test_options_reach_the_particles(seeded):
    rated = small_model(head=0.5, rate_embedding=True)
    torch.nn.init.normal_(rated.rate_embedding.weight, std=0.5)
    reports: list[tuple[int, int, float]] = []
    for options in ({"target_rate": 0.05}, {"target_rate": 0.9, "most": 2}, {"most": 3, "stride": 3}):
        options = {"context": 8, "generator": None, **options}
        one = read_samples(rated, TEXTS, samples=1, **{**options, "generator": seeded()}).nats[:, 0]
        reports.clear()
        options["progress"] = lambda *report: reports.append(report)
        nats = particle_nats(rated, TEXTS, particles=1, **{**options, "generator": seeded()})
        torch.testing.assert_close(nats, one, atol=1e-3, rtol=0)
        state = torch.get_rng_state()
        again = particle_nats(rated, TEXTS, particles=1, **{**options, "generator": seeded()})
        assert torch.equal(again, nats) and torch.equal(state, torch.get_rng_state())
        read = read_text(rated, TEXTS, context=8, stride=options.get("stride"), most=options.get("most"))
        done, total, spent = reports[-1]
        assert done == total == len(read.at) and spent == pytest.approx(float(nats.sum()))


def test_batches_of_particles_change_nothing(model, seeded, monkeypatch):
    options = {"particles": 6, "context": 16, "stride": 11}
    whole = particle_nats(model, TEXTS[1:], generator=seeded(), **options)
    sizes, stepper = [], marginal.Stepper
    monkeypatch.setattr(marginal, "Stepper", lambda segmented, rows: sizes.append(rows) or stepper(segmented, rows))
    monkeypatch.setattr(marginal, "BATCH_BYTES", 200)  # of two windows of 16 bytes with six particles each
    particle_nats(model, TEXTS[0] * 2, generator=seeded(), **options)
    assert sizes[-1] == max(sizes) == 12
    monkeypatch.setattr(marginal, "BATCH_BYTES", 1)
    torch.testing.assert_close(particle_nats(model, TEXTS[1:], generator=seeded(), **options), whole, atol=1e-3, rtol=0)


class Remembering:
    """Stands in for a stepper: its predictions depend on all boundaries of a row, quickly."""

    def __init__(self, num_rows: int) -> None:
        self.drawn: list[tuple[int, ...]] = [()] * num_rows

    @staticmethod
    def chance(drawn: tuple[int, ...]) -> float:
        """Probability of a boundary after these."""
        return 0.25 + 0.5 * (sum(drawn) % 2)

    @staticmethod
    def log_probs(drawn: tuple[int, ...]) -> Tensor:
        """[256] of the next byte, after these."""
        seed = sum(a << place for place, a in enumerate(drawn)) + 1000 * len(drawn)
        return (3 * torch.randn(256, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)

    def step(self, byte_ids, uniforms):
        pairs = zip(self.drawn, uniforms.tolist(), strict=True)
        self.drawn = [(*drawn, int(u < self.chance(drawn))) for drawn, u in pairs]
        return Output(torch.stack([self.log_probs(drawn) for drawn in self.drawn]), None, None)

    def take(self, rows):
        self.drawn = [self.drawn[row] for row in rows.tolist()]


@pytest.mark.parametrize("every", [2, 3])
def test_particles_are_those_of_the_definition(every, seeded, monkeypatch):
    """One window at a time, particle by particle, in the words of the docstring."""
    monkeypatch.setattr(marginal, "EVERY", every)
    text = torch.randint(256, (40,), generator=seeded())
    count, length = 4, 12
    windows = TextWindows(torch.tensor([0, 11, 20]), torch.tensor([1, 15, 21]), torch.tensor([13, 24, 33]))
    uniforms = torch.rand(3, length * count + (length - 1) // every, generator=seeded(1))
    costs = marginal._filter(Remembering(3 * count), text, windows, uniforms, count)
    branched = kept = 0
    for window, (start, first) in enumerate(zip(windows.start.tolist(), windows.first.tolist(), strict=True)):
        numbers = uniforms[window].tolist()
        drawn: list[tuple[int, ...]] = [()] * count
        weights, cost = [1.0] * count, 0.0
        for t in range(length):
            for j in range(count):
                drawn[j] = (*drawn[j], int(numbers[t * count + j] < Remembering.chance(drawn[j])))
                if start + t + 1 >= first:
                    weights[j] *= math.exp(Remembering.log_probs(drawn[j])[text[start + t + 1]])
            if (t + 1) % every or t + 1 == length:
                continue
            if sum(weights) ** 2 / sum(w * w for w in weights) >= count / 2:
                kept += 1
                continue
            branched += 1
            cost -= math.log(sum(weights) / count)
            marks = [(numbers[length * count + t // every] + k) / count * sum(weights) for k in range(count)]
            drawn = [drawn[next(j for j in range(count) if sum(weights[: j + 1]) > mark)] for mark in marks]
            weights = [1.0] * count
        assert costs[window].item() == pytest.approx(cost - math.log(sum(weights) / count), rel=1e-5)
    assert branched > 3 and kept > 1

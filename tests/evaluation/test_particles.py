"""Particles: an unbiased estimate of a text's probability, and so a bound of its cost, tighter than draws apart."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter

from rltok_rl.evaluation import marginal as particles
from rltok_rl.evaluation import marginal_nats, particle_nats, read_samples
from rltok_rl.evaluation.marginal import effective_number, systematic_resampling
from rltok_rl.evaluation.reading import Windows
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

TEXTS = ["It is a truth universally acknowledged,", "that a single man é", "must"]


@pytest.fixture(scope="module")
def model() -> UNet:
    """A model that minds where boundaries are, so that particles differ by more than rounding."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=32, boundary_scale=1.0, target_rate=0.4)).eval()
    torch.nn.init.normal_(model.final_head.projection.weight, std=0.4)
    return model


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_resampling_is_in_proportion_for_every_weight():
    """Counted over all random numbers of a fine grid."""
    log_weights = torch.tensor([[0.1, 0.6, 0.3, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1e-30, 0.0]]).log()
    grid = (torch.arange(2_000) + 0.5) / 2_000
    taken = systematic_resampling(log_weights.expand(2_000, 3, 4), grid[:, None].expand(2_000, 3))
    counts = torch.nn.functional.one_hot(taken, 4).sum(2).double().mean(0)
    torch.testing.assert_close(counts, 4 * log_weights.double().softmax(-1), atol=2e-3, rtol=0)
    assert bool((taken.diff(dim=-1) >= 0).all())
    last = systematic_resampling(torch.zeros(3), torch.tensor(1 - 2**-24))  # rounding must not lead beyond the last
    assert last.tolist() == [0, 1, 2]


def test_the_effective_number_by_hand():
    assert effective_number(torch.tensor([0.5, 0.25, 0.25]).log()).item() == pytest.approx(1 / 0.375)
    assert effective_number(torch.full((2, 5), -3000.0)).tolist() == pytest.approx([5.0, 5.0])


@torch.no_grad()
def test_the_estimate_is_unbiased(model, monkeypatch):
    """Thousands of estimates of one probability that is also enumerated: 16 boundary strings of six bytes."""
    text, count = TEXTS[0][:6], 1_500
    window = text_to_ids(text)
    exact = 0.0
    for rest in itertools.product([0, 1], repeat=len(window) - 2):
        out = model(window[None, :-1], torch.tensor([[1, *rest]]))
        probs = out.boundary_logits.sigmoid()[0].tolist()[1:]
        chance = math.prod(p if a else 1 - p for p, a in zip(probs, rest, strict=True))
        exact += chance * float(byte_log_prob(out.final_logits, window[None, 1:]).sum().exp())
    monkeypatch.setattr(particles, "EVERY", 1)
    branched: list[int] = []
    resample = particles.systematic_resampling
    monkeypatch.setattr(particles, "systematic_resampling", lambda *a: branched.append(1) or resample(*a))
    nats = particle_nats(model, [text] * count, particles=3, context=9, generator=generator())
    ratio = (-nats).exp() / exact
    error = float(ratio.std()) / math.sqrt(count)
    assert branched and error < 0.03
    assert abs(float(ratio.mean()) - 1) < 3 * error  # with these random numbers, and every run has them
    assert float(nats.mean()) > -math.log(exact)


@pytest.mark.parametrize("name", [None, "gumbel", "magnet", "grouped", "random"])
def test_one_particle_is_one_sample(model, name):
    segmenter = None if name is None else make_segmenter(name, model).eval()
    options = {"context": 8, "stride": 5, "segmenter": segmenter}
    one = read_samples(model, TEXTS[1:], samples=1, generator=generator(), **options)
    nats = particle_nats(model, TEXTS[1:], particles=1, generator=generator(), **options)
    torch.testing.assert_close(nats, one.nats[:, 0], atol=1e-4, rtol=0)


def test_batches_and_chunks_change_nothing(model, monkeypatch):
    options = {"particles": 6, "context": 16, "stride": 11}
    whole = particle_nats(model, TEXTS[1:], generator=generator(), **options)
    monkeypatch.setattr(particles, "BATCH_BYTES", 1)
    monkeypatch.setattr(particles, "CHUNK_BYTES", 1)
    torch.testing.assert_close(
        particle_nats(model, TEXTS[1:], generator=generator(), **options), whole, atol=1e-4, rtol=0
    )


class Remembering:
    """In a stepper's place: what it predicts depends on all boundaries of a row, in a way that is quick to tell."""

    def __init__(self, num_rows: int) -> None:
        self.model = UNet(preset("tiny"))  # for its device alone
        self.drawn: list[tuple[int, ...]] = [()] * num_rows

    @staticmethod
    def chance(drawn: tuple[int, ...]) -> float:
        """Of a boundary after these."""
        return 0.25 + 0.5 * (sum(drawn) % 2)

    @staticmethod
    def log_probs(drawn: tuple[int, ...]) -> torch.Tensor:
        """[256] of the next byte, after these."""
        seed = sum(a << place for place, a in enumerate(drawn)) + 1000 * len(drawn)
        return (3 * torch.randn(256, generator=generator(seed))).log_softmax(-1)

    def step(self, byte_ids, uniforms):
        chances = [self.chance(drawn) for drawn in self.drawn]
        found = [u < chance for u, chance in zip(uniforms.tolist(), chances, strict=True)]
        self.drawn = [(*drawn, int(a)) for drawn, a in zip(self.drawn, found, strict=True)]
        return torch.stack([self.log_probs(drawn) for drawn in self.drawn]), None, None

    def take(self, rows):
        self.drawn = [self.drawn[row] for row in rows.tolist()]


@pytest.mark.parametrize("every", [2, 3])
def test_a_filter_is_its_definition(monkeypatch, every):
    """One window at a time, particle by particle, in the words of the docstring."""
    monkeypatch.setattr(particles, "EVERY", every)
    text = torch.randint(256, (40,), generator=generator())
    windows = Windows(torch.tensor([0, 11, 20]), torch.tensor([1, 15, 21]), torch.tensor([13, 24, 33]))  # 12 bytes each
    count, length = 4, 12
    uniforms = torch.rand(3, length * count + (length - 1) // every, generator=generator(1))
    found = particles._filter(Remembering(3 * count), text, windows, uniforms, count)
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
        assert found[window].item() == pytest.approx(cost - math.log(sum(weights) / count), rel=1e-5)
    assert branched > 3 and kept > 1


def test_particles_bound_more_tightly_than_draws_apart(model):
    """The mean bound of 24 windows of 38 bytes, eight readings each."""
    texts = [TEXTS[0]] * 24
    apart = read_samples(model, texts, samples=8, context=64, generator=generator())
    together = particle_nats(model, texts, particles=8, context=64, generator=generator())
    gain = marginal_nats(apart.nats) - together
    assert float(gain.mean()) > 2 * float(gain.std()) / math.sqrt(len(texts)) > 0


def test_misuse_is_said_by_name(model):
    with pytest.raises(ValueError, match="particles must be an integer of at least 1, got 0"):
        particle_nats(model, "abc", particles=0, context=4)
    with pytest.raises(ValueError, match="particles belong to boundaries that are drawn at random, .* got SpaceByte"):
        particle_nats(model, "abc", particles=2, context=4, segmenter=make_segmenter("spacebyte", model))

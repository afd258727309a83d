"""Target rates as inputs: equal to the plain model at first, and independent between rows."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.models import UNet, preset, segment
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.generation import generate
from rltok_rl.models.incremental import decide, observe, prefill

from ..each import each
from .conftest import VARIANTS, assert_causal, assert_same, mixed_boundaries, outputs, refused, seeded, stepped

RATES = torch.tensor([0.1, 0.2, 0.45])
OTHERS = {"alone": {}, "with others": {**VARIANTS["n-grams, smoothing"], **VARIANTS["attention"]}}


@pytest.fixture
def rate_model(build):
    """A model whose rate embedding has been trained away from zero, so that rates reach every output."""

    def make(**options) -> UNet:
        model = build(rate_embedding=True, **options)
        with torch.no_grad():
            model.rate_embedding.weight.normal_(generator=seeded(3))
        return model

    return make


@each(name=OTHERS)
@torch.no_grad()
def test_begins_as_the_plain_model(name, build, text):
    """Equal outputs at the configured rate, to the last bit."""
    plain, model = build(**OTHERS[name]), build(rate_embedding=True, **OTHERS[name])
    byte_ids, boundaries, uniforms = text(3, 40), mixed_boundaries(3, 40), torch.rand(3, 40)
    expected = outputs(plain, byte_ids, boundaries)
    for rate in (None, 0.2):
        assert_same(outputs(model, byte_ids, boundaries, target_rate=rate), expected, atol=0)
    assert torch.equal(model(byte_ids, uniforms=uniforms).boundaries, plain(byte_ids, uniforms=uniforms).boundaries)


@torch.no_grad()
def test_policy_starts_from_the_rate_of_each_row(text):
    """Fresh policies draw about as many boundaries as they are asked for, 3000 bytes per row."""
    model = UNet(preset("tiny", rate_embedding=True)).eval()
    drawn = model(text(3, 3000), target_rate=RATES, generator=seeded(0)).boundaries
    torch.testing.assert_close(drawn.float().mean(1), RATES, rtol=0, atol=0.03)
    byte_ids, boundaries = text(3, 50), mixed_boundaries(3, 50)
    found, expected = (model(byte_ids, boundaries, target_rate=rate).boundary_logits for rate in (RATES, None))
    shift = (RATES.double().logit() - torch.tensor(0.2, dtype=torch.float64).logit()).float()
    torch.testing.assert_close(found, expected + shift[:, None], rtol=0, atol=1e-6)


@each(name=OTHERS)
@torch.no_grad()
def test_rows_of_many_rates_are_rows_of_one(name, rate_model, text):
    """Windows, steps and prefills; every output depends on the rate, and row 1 has the configured one."""
    model, byte_ids, boundaries = rate_model(**OTHERS[name]).double(), text(3, 40), mixed_boundaries(3, 40)
    together, default = (outputs(model, byte_ids, boundaries, target_rate=rate) for rate in (RATES, None))
    for row, rate in enumerate(RATES.tolist()):
        at = slice(row, row + 1)
        assert_same(outputs(model, byte_ids[at], boundaries[at], target_rate=rate), together, at, atol=1e-6)
        for output in ("encoder_states", "boundary_logits", "early_logits", "final_logits"):
            assert ((together[output] - default[output])[row].abs().max() > 1e-3) == (row != 1), output
    packed = outputs(model, byte_ids, boundaries, target_rate=RATES, layout="packed")
    assert_same(packed, together)
    assert_same(stepped(model, model.new_cache(3, target_rate=RATES), byte_ids, boundaries), together)
    cache = model.new_cache(3, target_rate=RATES)
    read = prefill(model, cache, byte_ids[:, :20], boundaries[:, :20])
    torch.testing.assert_close(read.final_logits, together["final_logits"][:, :20], rtol=0, atol=1e-8)
    assert_same(stepped(model, cache, byte_ids[:, 20:], boundaries[:, 20:]), together, slice(None), slice(20, None))


@torch.no_grad()
def test_rows_start_anew_at_the_configured_rate_or_another(rate_model, text):
    """Row 1 at byte 20, between the halves of a step, at a third rate; row 2 at byte 30, at the configured one."""
    model, byte_ids, boundaries = rate_model().double(), text(3, 50), mixed_boundaries(3, 50)
    boundaries[1, 20] = boundaries[2, 30] = True
    cache = model.new_cache(3, target_rate=RATES)
    before = cache.target_rate
    stepped(model, cache, byte_ids[:, :20], boundaries[:, :20])
    observe(model, cache, byte_ids[:, 20])
    cache.reset(torch.tensor([False, True, False]))
    cache.set_rates(torch.tensor([0.7]), torch.tensor([1]))
    byte_ids[1, 20:] = text(1, 30, seed=9)
    observe(model, cache, byte_ids[1:2, 20], rows=torch.tensor([1]))
    decide(model, cache, boundaries[:, 20])
    stepped(model, cache, byte_ids[:, 21:30], boundaries[:, 21:30])
    cache.reset(torch.tensor([False, False, True]))
    assert torch.equal(before, RATES)  # what was handed out before stays what it was
    torch.testing.assert_close(cache.target_rate, torch.tensor([0.1, 0.7, 0.2]))
    order = torch.tensor([2, 1, 1, 0])
    found = stepped(model, cache.take(order), byte_ids[order, 30:], boundaries[order, 30:])["final_logits"]
    for place, (row, start, rate) in enumerate(((2, 30, None), (1, 20, 0.7), (1, 20, 0.7), (0, 0, 0.1))):
        at = slice(row, row + 1)
        expected = model(byte_ids[at, start:], boundaries[at, start:], target_rate=rate).final_logits[0, 30 - start :]
        torch.testing.assert_close(found[place], expected, rtol=0, atol=1e-6)


def test_no_output_sees_what_comes_after_it_and_all_teach_the_embedding(rate_model, text):
    """At the configured rate it has nothing to learn."""
    model, byte_ids, boundaries = rate_model(), text(1, 30), mixed_boundaries(1, 30)
    assert_causal(model, byte_ids, boundaries, target_rate=0.4)
    for name, rate in (("boundary_logits", 0.4), ("early_logits", 0.4), ("final_logits", 0.4), ("final_logits", None)):
        value = getattr(model(byte_ids, boundaries, target_rate=rate), name).square().sum()
        (slope,) = torch.autograd.grad(value, model.rate_embedding.weight)
        assert (slope.abs().max() > 1e-4) == (rate == 0.4), name


@torch.no_grad()
def test_texts_are_written_at_the_rate_of_their_row(rate_model):
    """Greedy bytes: rows of two rates write what each writes alone."""
    model = rate_model()
    how = {"max_bytes": 30, "temperature": 0.0, "greedy": True}
    together = generate(model, ["once upon", "once upon"], target_rate=torch.tensor([0.05, 0.9]), **how)
    for row, rate in enumerate((0.05, 0.9)):
        alone = generate(model, "once upon", target_rate=rate, **how)
        assert together.texts[row] == alone.texts[0]
        assert torch.equal(together.boundaries[row], alone.boundaries[0])
    assert together.boundaries[1].sum() > together.boundaries[0].sum()


def test_refusals(build, text):
    plain, model = build(), build(rate_embedding=True)
    strictly = "target_rate must lie strictly between 0 and 1, got "
    one_rate = "target_rate must be left out where the model has one rate only (rate_embedding=False), 0.2"
    for rate, error, words in (
        (0.0, ValueError, strictly + "0.0"),
        (1, ValueError, strictly + "1"),
        ("0.2", TypeError, "target_rate must be a number or a tensor of one per row, got '0.2'"),
        (torch.tensor([0.2]), ValueError, "target_rate must have one rate per row, [2], got [1]"),
        (torch.tensor([1, 1]), TypeError, "target_rate must be a floating-point tensor, got torch.int64"),
        (torch.tensor([0.2, 1.5]), ValueError, strictly + "1.5 at index"),
    ):
        calls = (lambda r=rate: model(text(2, 5), target_rate=r), lambda r=rate: model.new_cache(2, target_rate=r))
        refused((call, error, words) for call in calls)
    refused(
        [
            (lambda: plain(text(2, 5), target_rate=0.3), ValueError, one_rate),
            (lambda: plain.new_cache(2, target_rate=0.3), ValueError, one_rate),
            (lambda: segment(plain, "abc", target_rate=0.3), ValueError, one_rate),
            (lambda: generate(plain, "abc", max_bytes=1, target_rate=0.3), ValueError, one_rate),
            (lambda: model(text(2, 5), cache=model.new_cache(2), target_rate=0.3), ValueError, "out with a cache"),
            (lambda: observe(model, UNetCache.empty(plain.config, 2), text(2, 1)[:, 0]), ValueError, "for this model"),
            (lambda: plain.new_cache(2).set_rates(RATES[:2]), ValueError, "whose model has rate_embedding"),
        ]
    )

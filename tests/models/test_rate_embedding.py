"""Target rates as inputs: equal to the plain model at first, and independent between rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models import UNet, preset, segment
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.generation import generate
from rltok_rl.models.incremental import decide, observe, prefill
from rltok_rl.models.segmentation import policy_terms

from .test_incremental import assert_same, stepped
from .test_unet import assert_causal

RATES = torch.tensor([0.1, 0.2, 0.45])
OTHERS = {
    "alone": {},
    "with others": {
        "smoothing": "gradient",
        "ngram_sizes": (2, 5),
        "ngram_buckets": 40,
        "pooling": "attention",
        "upsampling": "attention",
        "window": 5,
    },
}
with_others = pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS.keys())


@pytest.fixture
def rate_model(build):
    """A model whose rate embedding has been trained away from zero, so that rates reach every output."""

    def make(**options) -> UNet:
        model = build(rate_embedding=True, **options)
        with torch.no_grad():
            model.rate_embedding.weight.normal_(generator=torch.Generator().manual_seed(3))
        return model

    return make


def random_boundaries(num_rows: int, length: int) -> Tensor:
    boundaries = torch.rand(num_rows, length, generator=torch.Generator().manual_seed(6)) < 0.3
    boundaries[:, 0] = True
    return boundaries


@with_others
@torch.no_grad()
def test_begins_as_the_plain_model(build, text, others):
    """Equal weights from equal seeds, and equal outputs at the configured rate to the last bit."""
    plain, model = build(**others), build(rate_embedding=True, **others)
    extra = {"rate_embedding.weight"}
    assert set(model.state_dict()) - set(plain.state_dict()) == extra
    for name, values in plain.state_dict().items():
        assert torch.equal(values, model.state_dict()[name]), name
    byte_ids, boundaries = text(3, 40), random_boundaries(3, 40)
    expected = plain(byte_ids, boundaries)
    for rate in (None, 0.2):
        found = model(byte_ids, boundaries, target_rate=rate)
        assert torch.equal(found.final_logits, expected.final_logits)
        assert torch.equal(found.boundary_logits, expected.boundary_logits)
    uniforms = torch.rand(3, 40)
    assert torch.equal(model(byte_ids, uniforms=uniforms).boundaries, plain(byte_ids, uniforms=uniforms).boundaries)


@torch.no_grad()
def test_policy_starts_from_the_rate_of_each_row(text):
    """Fresh policies draw about as many boundaries as they are asked for, 3000 bytes per row."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", rate_embedding=True)).eval()
    drawn = model(text(3, 3000), target_rate=RATES, generator=torch.Generator().manual_seed(0)).boundaries
    torch.testing.assert_close(drawn.float().mean(1), RATES, rtol=0, atol=0.03)
    byte_ids, boundaries = text(3, 50), random_boundaries(3, 50)
    found = model(byte_ids, boundaries, target_rate=RATES).boundary_logits
    shift = RATES.double().logit() - torch.tensor(0.2, dtype=torch.float64).logit()
    expected = model(byte_ids, boundaries).boundary_logits + shift[:, None]
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-6)


@with_others
@torch.no_grad()
def test_rows_of_many_rates_are_rows_of_one(rate_model, text, others):
    model, byte_ids, boundaries = rate_model(**others).double(), text(3, 40), random_boundaries(3, 40)
    together = model(byte_ids, boundaries, target_rate=RATES)
    default = model(byte_ids, boundaries)
    for row, rate in enumerate(RATES.tolist()):
        apart = model(byte_ids[row : row + 1], boundaries[row : row + 1], target_rate=rate)
        for name in ("encoder_states", "boundary_logits", "early_logits", "final_logits"):
            ours = getattr(together, name)[row]
            torch.testing.assert_close(ours, getattr(apart, name)[0], rtol=0, atol=1e-6)
            moved = (ours - getattr(default, name)[row]).abs().max()
            assert (moved > 1e-3) == (row != 1), name  # every output depends on the rate; row 1 has the configured rate


@with_others
@torch.no_grad()
def test_steps_and_prefills_equal_windows(rate_model, text, others):
    model, byte_ids, boundaries = rate_model(**others), text(3, 60), random_boundaries(3, 60)
    full = model(byte_ids, boundaries, target_rate=RATES)
    assert_same(stepped(model, model.new_cache(3, target_rate=RATES), byte_ids, boundaries), full)
    cache = model.new_cache(3, target_rate=RATES)
    read = prefill(model, cache, byte_ids[:, :20], boundaries[:, :20])
    torch.testing.assert_close(read.boundary_logits, full.boundary_logits[:, :20], rtol=0, atol=1e-5)
    torch.testing.assert_close(read.final_logits, full.final_logits[:, :20], rtol=0, atol=1e-4)
    assert_same(stepped(model, cache, byte_ids[:, 20:], boundaries[:, 20:]), full, start=20)
    packed = model(byte_ids, boundaries, target_rate=RATES, layout="packed")
    torch.testing.assert_close(packed.final_logits, full.final_logits, rtol=0, atol=1e-4)


@torch.no_grad()
def test_rows_start_anew_at_the_configured_rate_or_another(rate_model, text):
    """Row 1 at byte 20, between the halves of a step, at a third rate; row 2 at byte 30, at the configured one."""
    model, first, second = rate_model().double(), text(3, 50), text(3, 50, seed=9)
    boundaries = random_boundaries(3, 50)
    boundaries[1, 20] = boundaries[2, 30] = True
    cache = model.new_cache(3, target_rate=RATES)
    before = cache.target_rate
    stepped(model, cache, first[:, :20], boundaries[:, :20])
    observe(model, cache, first[:, 20])
    cache.reset(torch.tensor([False, True, False]))
    cache.set_rates(torch.tensor([0.7]), torch.tensor([1]))
    observe(model, cache, second[1:2, 0], rows=torch.tensor([1]))
    decide(model, cache, boundaries[:, 20])
    joined = torch.stack((first[0], torch.cat((first[1, :20], second[1, :30])), first[2]))
    stepped(model, cache, joined[:, 21:30], boundaries[:, 21:30])
    cache.reset(torch.tensor([False, False, True]))
    joined[2, 30:] = second[2, :20]
    assert torch.equal(before, RATES)  # what was handed out before stays what it was
    torch.testing.assert_close(cache.target_rate, torch.tensor([0.1, 0.7, 0.2]))
    branch = cache.take(torch.tensor([2, 1, 1, 0]))
    found = stepped(model, branch, joined[[2, 1, 1, 0], 30:], boundaries[[2, 1, 1, 0], 30:])["final_logits"]
    whole = model(first[:1], boundaries[:1], target_rate=0.1).final_logits[0, 30:]
    one = model(second[1:2, :30], boundaries[1:2, 20:], target_rate=0.7).final_logits[0, 10:]
    two = model(second[2:, :20], boundaries[2:, 30:]).final_logits[0]
    for row, expected in ((0, two), (1, one), (2, one), (3, whole)):
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-6)


def test_no_output_sees_what_comes_after_it(rate_model, text, monkeypatch):
    model = rate_model()
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *given, **options: forward(*given, **options, target_rate=0.4))
    assert_causal(model, text(1, 30), random_boundaries(1, 30))


def test_gradients_reach_the_embedding_by_every_path(rate_model, text):
    """Policy, early exit and predictions teach it; at the configured rate it has nothing to learn."""
    model, byte_ids, boundaries = rate_model(), text(2, 30), random_boundaries(2, 30)
    weight = model.rate_embedding.weight
    for name in ("boundary_logits", "early_logits", "final_logits"):
        (slope,) = torch.autograd.grad(
            getattr(model(byte_ids, boundaries, target_rate=0.4), name).square().sum(), weight
        )
        assert slope.abs().max() > 0, name
    (slope,) = torch.autograd.grad(model(byte_ids, boundaries).final_logits.square().sum(), weight)
    assert slope.abs().max() < 1e-4


@torch.no_grad()
def test_long_texts_are_segmented_at_a_rate(rate_model, text):
    model, byte_ids = rate_model(window=3, num_encoder_layers=2).double(), text(1, 200)[0]
    whole = model.boundary_terms(model.encode(byte_ids[None], target_rate=0.4), target_rate=0.4)
    for ours, expected in zip(policy_terms(model, byte_ids, piece=13, target_rate=0.4), whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
    found = segment(model, bytes(byte_ids.tolist()), target_rate=0.4, generator=torch.Generator().manual_seed(0))
    logits = boundary_logits(*whole, found.boundaries[None])
    torch.testing.assert_close(found.probabilities[1:], logits[0, 1:].sigmoid().float(), rtol=0, atol=1e-6)


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


def test_saved_models_come_back(rate_model, text, tmp_path):
    model = rate_model()
    again = UNet.from_pretrained(model.save_pretrained(tmp_path / "m"))
    byte_ids, boundaries = text(2, 20), random_boundaries(2, 20)
    ours, theirs = (m(byte_ids, boundaries, target_rate=0.4).final_logits for m in (model, again))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("rate", "error", "message"),
    [
        (0.0, ValueError, "target_rate must lie strictly between 0 and 1, got 0.0"),
        (1, ValueError, "target_rate must lie strictly between 0 and 1, got 1"),
        ("0.2", TypeError, "target_rate must be a number or a tensor of one per row, got '0.2'"),
        (torch.tensor([0.2]), ValueError, r"target_rate must have one rate per row, \[2\], got \[1\]"),
        (torch.tensor([1, 1]), TypeError, "target_rate must be a floating-point tensor, got torch.int64"),
        (torch.tensor([0.2, 1.5]), ValueError, "target_rate must lie strictly between 0 and 1, got 1.5 at index"),
    ],
)
def test_wrong_rates_are_refused(build, text, rate, error, message):
    model = build(rate_embedding=True)
    with pytest.raises(error, match=message):
        model(text(2, 5), target_rate=rate)
    with pytest.raises(error, match=message):
        model.new_cache(2, target_rate=rate)


def test_misuse_is_refused(build, text):
    plain, model = build(), build(rate_embedding=True)
    one_rate = r"target_rate must be left out where the model has one rate only \(rate_embedding=False\), 0.2"
    for call in (
        lambda: plain(text(2, 5), target_rate=0.3),
        lambda: plain.new_cache(2, target_rate=0.3),
        lambda: segment(plain, "abc", target_rate=0.3),
        lambda: generate(plain, "abc", max_bytes=1, target_rate=0.3),
    ):
        with pytest.raises(ValueError, match=one_rate):
            call()
    with pytest.raises(ValueError, match="target_rate must be left out with a cache"):
        model(text(2, 5), cache=model.new_cache(2), target_rate=0.3)
    with pytest.raises(ValueError, match="cache must be made for this model"):
        observe(model, UNetCache.empty(plain.config, 2), text(2, 1)[:, 0])
    with pytest.raises(ValueError, match="rates must be those of a cache whose model has rate_embedding"):
        plain.new_cache(2).set_rates(torch.tensor([0.2, 0.3]))
    with pytest.raises(TypeError, match="rate_embedding must be True or False, got 1"):
        preset("tiny", rate_embedding=1)

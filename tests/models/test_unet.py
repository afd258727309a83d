"""Laws of the whole model with all options: causality, independent rows, routed gradients, learning."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.likelihood import bits_per_byte, next_byte_log_prob
from rltok_rl.functional.ngrams import ngram_hash
from rltok_rl.functional.policy import boundary_log_prob
from rltok_rl.models import UNet, heads, mixing, preset, unet
from rltok_rl.models import level as levels
from rltok_rl.models.mixing import give_back, policy_smoothing

from ..each import each
from .conftest import VARIANTS, assert_causal, assert_same, mixed_boundaries, outputs, seeded, slopes


@each(name=VARIANTS, case=[("padded", 0.3), ("packed", 1.1), ("packed", 1e-9)])
@torch.no_grad()
def test_causal(name, case, build, text):
    layout, rate = case
    assert_causal(build(**VARIANTS[name]).double(), text(1, 30), mixed_boundaries(1, 30, rate), layout=layout)


def ahead(layout):
    """A layout in which bytes are served by the token after theirs."""
    later = torch.minimum(layout.token_index + 1, layout.token_index[:, -1:])
    return replace(layout, token_index=torch.cat((layout.token_index[:, :1], later[:, 1:]), 1))


@each(name=["plain", "mean", "routing"], level=[1, 2])
@torch.no_grad()
def test_causality_test_catches_an_early_token(name, level, build, text):
    """Planted: bytes, or tokens of a second level, receive the token that is still open."""
    model, calls = build(**VARIANTS[name]).double(), []
    num_levels = 1 if model.second_level is None else 2

    def early(states, updates, layout, *others):
        calls.append(layout)  # the second level is computed within the first
        leaks = len(calls) % num_levels == level % num_levels
        return give_back(states, updates, ahead(layout) if leaks else layout, *others)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match="sees what comes after it"):
        patch.setattr(levels, "give_back", early)
        assert_causal(model, text(1, 30), mixed_boundaries(1, 30))


EARLY_BYTES = {
    "encoder_states": (heads, "ngram_hash", lambda *args: ngram_hash(*args).roll(-1, -1)),
    "decoder_states": (unet, "policy_smoothing", lambda kind, x, *args: policy_smoothing(kind, x.roll(-1, -1), *args)),
}


@each(states=EARLY_BYTES)
def test_causality_test_catches_an_early_byte(states, build, text):
    """Planted: n-grams, or tokens smoothed by boundary logits, of the next byte."""
    model = build(**VARIANTS["n-grams, smoothing"]).double()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match=f"{states} .* sees what comes"):
        patch.setattr(*EARLY_BYTES[states])
        assert_causal(model, text(1, 30), mixed_boundaries(1, 30))


@each(name=VARIANTS)
def test_no_gradient_comes_from_later_bytes(name, build, text):
    """Predictions at byte t have no gradient with respect to the embedding of a later byte."""
    model, embedded = build(**VARIANTS[name]).double(), []
    embed = model.embed

    def hold(*inputs):
        embedded.append(embed(*inputs).detach().requires_grad_())
        return embedded[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "embed", hold)
        for layout in ("padded", "packed"):
            found = outputs(model, text(1, 9), mixed_boundaries(1, 9, 0.4), layout=layout)
            names = {"boundary_logits", "early_logits", "final_logits", "second_probabilities"} & found.keys()
            for t, name in itertools.product(range(9), names):
                x = found[name]
                (slope,) = torch.autograd.grad(x[0, t].sum() + 0 * embedded[-1].sum(), embedded[-1], retain_graph=True)
                assert slope[0, t + 1 :].abs().sum() == 0
                assert name == "second_probabilities" or slope[0, : t + 1].abs().max() > 0


@each(name=VARIANTS, layout=["padded", "packed"])
@torch.no_grad()
def test_rows_are_independent(name, layout, build, text):
    """Rows with 1, a few and T tokens, together and alone."""
    model, byte_ids, boundaries = build(**VARIANTS[name]), text(3, 30), mixed_boundaries(3, 30)
    together = outputs(model, byte_ids, boundaries, layout=layout)
    for row in range(3):
        at = slice(row, row + 1)
        assert_same(
            outputs(model, byte_ids[at], boundaries[at], layout=layout), together, at, atol=3e-5
        )  # a short row alone is not fused


@each(name=VARIANTS, layout=["padded", "packed"], length=[0, 1, 2])
@torch.no_grad()
def test_shortest_windows(name, layout, length, build, text):
    model = build(**VARIANTS[name])
    drawn = [None] if model.config.byte_scope == "window" else []  # byte layers of a token need its boundaries
    for boundaries in (torch.ones(3, length, dtype=torch.bool), *drawn):
        out = model(text(3, length), boundaries, layout=layout)
        assert out.final_logits.shape == out.early_logits.shape == (3, length, 256)
        assert out.boundary_logits.shape == (3, length) and bool(out.final_logits.isfinite().all())


@each(name=VARIANTS)
def test_float64_gradients_equal_finite_differences(name, build, text):
    """Derivatives of all outputs along a random direction in all parameters, to eight digits.

    A single operation in float32 would leave about seven. Straight-through parts have no derivative and are left out;
    test_second_level.py tests their gradient.
    """
    model, byte_ids = build(**VARIANTS[name]).double(), text(2, 20)
    with pytest.MonkeyPatch.context() as patch:
        for module in (levels, mixing):
            patch.setattr(module, "confidence", lambda probs, _: torch.ones_like(probs))
        boundaries = mixed_boundaries(2, 20, 0.3)
        if model.config.byte_scope == "window":
            boundaries = model(byte_ids, generator=seeded(0)).boundaries
        weights = {name: torch.randn_like(values) for name, values in outputs(model, byte_ids, boundaries).items()}

        def value() -> Tensor:
            return sum((x * weights[name]).sum() for name, x in outputs(model, byte_ids, boundaries).items())

        slope, difference = slopes(value, list(model.parameters()), step=1e-3)
    torch.testing.assert_close(slope, difference, rtol=1e-8, atol=1e-8)


@each(name=VARIANTS)
@torch.no_grad()
def test_mixed_precision_stays_close(name, build, text):
    """bfloat16 autocast or weights: close where no rounded probability flips, and decided in float32."""
    model, byte_ids, boundaries = build(**VARIANTS[name]), text(2, 30), mixed_boundaries(2, 30)
    exact = outputs(model, byte_ids, boundaries)
    with torch.autocast("cpu", torch.bfloat16):
        found = [outputs(model, byte_ids, boundaries, layout=layout) for layout in ("padded", "packed")]
    for said in (*found, outputs(model.bfloat16(), byte_ids, boundaries)):
        assert said["boundary_logits"].dtype == torch.float32 and said["final_logits"].isfinite().all()
        if "second_probabilities" in said:
            assert said["second_probabilities"].dtype == torch.float32
            if not torch.equal(said["second_boundaries"], exact["second_boundaries"]):
                continue
        for output in ("boundary_logits", "early_logits", "final_logits"):
            torch.testing.assert_close(said[output].float(), exact[output], rtol=0, atol=0.15)


def test_gradients_reach_only_what_should_learn(build, text):
    model, byte_ids, boundaries = build(), text(2, 30), mixed_boundaries(2, 30)

    def reached(name: str) -> set[str]:
        model.zero_grad(set_to_none=True)
        values = getattr(model(byte_ids, boundaries), name)
        if name == "boundary_logits":
            boundary_log_prob(values, boundaries)[:, 1:].sum().backward()
        else:
            next_byte_log_prob(values, byte_ids).sum().backward()
        return {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}

    trunk = {"embedding", "encoder"}
    assert reached("boundary_logits") == trunk | {"encoder_norm", "boundary_head"}
    assert reached("early_logits") == trunk | {"encoder_norm", "early_head"}
    assert reached("final_logits") == trunk | {"token_layers", "decoder", "decoder_norm", "final_head"}


def test_early_exit_starts_as_the_final_head_and_never_sees_a_boundary(build, text):
    model = UNet(preset("tiny"))
    early, final = model.early_head.projection.weight, model.final_head.projection.weight
    assert torch.equal(early, final) and early.data_ptr() != final.data_ptr()
    model, byte_ids = build(), text(2, 30)
    sampled, fixed = model(byte_ids, generator=seeded(0)), model(byte_ids, mixed_boundaries(2, 30))
    assert torch.equal(sampled.early_logits, fixed.early_logits)


@each(rate=[1 / 2, 1 / 5, 1 / 20])
@torch.no_grad()
def test_policy_starts_at_its_target_rate(rate, text):
    model = UNet(preset("small", target_rate=rate)).eval()  # in training the soft cap pulls small rates up a little
    assert model(text(2, 500)).boundary_logits.sigmoid().mean().item() == pytest.approx(rate, rel=0.1)


@torch.no_grad()
def test_soft_cap_of_boundaries_in_training_only(build, text):
    """Logits of 30, capped at 0.5: u = 0.9 lies below the free probability and above the capped one, 0.62."""
    model, byte_ids, ones = build(boundary_cap=0.5), text(2, 40), torch.ones(2, 40, dtype=torch.bool)
    model.boundary_head.projection.weight.mul_(50)
    free, capped = (model.train(mode)(byte_ids, ones).boundary_logits for mode in (False, True))
    assert free.abs().max() > 0.6
    torch.testing.assert_close(capped, 0.5 * torch.tanh(free / 0.5))
    model = build(boundary_cap=0.5, boundary_bias=True)
    model.boundary_head.projection.weight.zero_()
    model.boundary_head.projection.bias[0] = 30 / model.config.boundary_scale
    uniforms = torch.full((2, 40), 0.9)
    assert model.eval()(byte_ids, uniforms=uniforms).boundaries.all()
    assert not model.train()(byte_ids, uniforms=uniforms).boundaries[:, 1:].any()


@torch.no_grad()
def test_boundaries_are_drawn_by_seed_uniforms_or_threshold(build, text):
    model, byte_ids = build(), text(3, 200)
    a, b, c = (model(byte_ids, generator=seeded(s)).boundaries for s in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)
    uniforms = torch.rand(3, 200)
    for drawn_with in (torch.zeros(3, 200), torch.full((3, 200), 0.999), uniforms):  # probabilities lie near 0.2
        out = model(byte_ids, uniforms=drawn_with)
        apart = (drawn_with - out.boundary_logits.sigmoid())[:, 1:]
        assert torch.equal(out.boundaries[:, 1:][apart.abs() > 1e-5], (apart < 0)[apart.abs() > 1e-5])
        assert out.boundaries[:, 0].all() and torch.equal(out.num_tokens, out.boundaries.sum(1))
    model.boundary_head.projection.weight.mul_(100)
    out = model(byte_ids, greedy=True)
    assert torch.equal(out.boundaries[:, 1:], out.boundary_logits[:, 1:] > 0)
    assert 0 < out.boundaries[:, 1:].sum() < 3 * 199


@pytest.mark.parametrize(("options", "bits"), [({}, 0.05), ({"second_level": "routing", "num_token_layers": 2}, 1.4)])
def test_learns_a_short_text_by_heart(options, bits):
    """80 random letters, with boundaries drawn from the policy in every update; the loss alone moves every part."""
    torch.manual_seed(0)
    byte_ids = torch.randint(97, 123, (1, 80))
    model = UNet(preset("tiny", **options))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(400):
        loss = -next_byte_log_prob(model(byte_ids).final_logits, byte_ids).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.1 * bits:
            break
    nats = -next_byte_log_prob(model.eval()(byte_ids).final_logits, byte_ids).sum().item()
    assert bits_per_byte(nats, 79) < bits  # letters at random cost 4.7 bits
    for name, parameter in model.named_parameters():
        assert "second" not in name or (parameter - before[name]).abs().max() > 0, name


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_equals_cpu(build, text):
    model, byte_ids, boundaries = build(), text(2, 300), mixed_boundaries(2, 300)
    on_cpu = outputs(model, byte_ids, boundaries)
    on_gpu = outputs(model.cuda(), byte_ids.cuda(), boundaries.cuda())
    for name, values in on_cpu.items():
        torch.testing.assert_close(on_gpu[name].cpu(), values, rtol=1e-4, atol=1e-4)


def test_small_initial_weights_of_the_boundary_head_leave_a_fresh_policy_undecided():
    """Like a small scale: the same logits, and the same weights everywhere else."""
    torch.manual_seed(0)
    byte_ids, models = torch.randint(256, (2, 20)), []
    for options in (
        {"boundary_scale": 1 / 16},
        {"boundary_scale": 1.0, "boundary_init": 1 / 16},
        {"boundary_init": 0.0},
    ):
        torch.manual_seed(1)
        models.append(UNet(preset("tiny", target_rate=0.3, **options)))
    scaled, small, none = ([model.boundary_terms(model.encode(byte_ids))] for model in models)
    torch.testing.assert_close(scaled, small)
    assert torch.equal(none[0].base.sigmoid(), torch.full((2, 20), 0.3)) and not none[0].lags.any()
    for name, weight in models[0].state_dict().items():
        assert name.startswith("boundary_head") or torch.equal(weight, models[1].state_dict()[name])

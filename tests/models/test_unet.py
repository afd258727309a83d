"""Laws of the whole model with all options: causality, independent rows, routed gradients, learning."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rltok_rl.models.level
import rltok_rl.models.unet
from rltok_rl.functional.likelihood import bits_per_byte, next_byte_log_prob
from rltok_rl.functional.policy import boundary_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.models.tokens import TokenLayout

from .conftest import hold_for, mixed_boundaries

OPTIONS = {
    "plain": {},
    "mean": {"pooling": "mean"},
    "deviation": {"upsampling": "deviation"},
    "mean and deviation": {"pooling": "mean", "upsampling": "deviation"},
    "capped attention": {"attention_cap": 10.0},
    "short window": {"window": 2, "num_lags": 1},
    "deep, no lags": {"num_encoder_layers": 2, "num_token_layers": 2, "num_decoder_layers": 2, "num_lags": 0},
    "no byte layers": {"num_encoder_layers": 0, "num_decoder_layers": 0},
    "n-grams and smoothing": {"ngram_sizes": (3, 2, 7), "ngram_buckets": 50, "smoothing": "gradient"},
    "attention both ways": {"pooling": "attention", "upsampling": "attention", "tokens_read": 3, "window": 5},
    "stride level": {"second_level": "stride", "num_token_layers": 2, "num_second_layers": 2},
    "routing level": {"second_level": "routing", "second_rate": 0.4, "num_token_layers": 3, "pooling": "mean"},
    "H-Net level": {"second_level": "routing", "second_residual": "projection", "upsampling": "deviation"},
}


def outputs(model: UNet, byte_ids: Tensor, boundaries: Tensor, layout: str = "padded") -> dict[str, Tensor]:
    """Everything the model says per position."""
    out = model(byte_ids, boundaries, layout=layout)
    base, lags = model.boundary_terms(out.encoder_states)
    return {
        "boundary_logits": out.boundary_logits,
        "base": base,
        "lags": lags,
        "early_logits": out.early_logits,
        "decoder_states": out.decoder_states,
        "final_logits": out.final_logits,
    }


def assert_causal(model: UNet, byte_ids: Tensor, boundaries: Tensor, layout: str = "padded") -> None:
    """No output at or before t may notice that bytes and boundaries after t change.

    Args:
        byte_ids: [1, T].
        boundaries: [1, T].
    """
    length = byte_ids.shape[1]
    generator = torch.Generator().manual_seed(5)
    other_bytes = torch.randint(256, (length, length), generator=generator)
    other_boundaries = torch.rand(length, length, generator=generator) < 0.5
    after = torch.arange(length) > torch.arange(length)[:, None]  # [T, T]: row t changes all that comes after t
    changed = outputs(
        model,
        torch.where(after, other_bytes, byte_ids),
        torch.where(after, other_boundaries, boundaries),
        layout,
    )
    for name, original in outputs(model, byte_ids, boundaries, layout).items():
        apart = (changed[name] - original).abs().reshape(length, length, -1)
        apart = apart.amax(-1) if apart.shape[-1] else apart.new_zeros(length, length)  # [T, T]
        wrong = (~(apart <= 1e-5) & ~after).any(1).nonzero().flatten().tolist()
        assert not wrong, f"{name} up to position {wrong[0]} sees what comes after it, by {apart[~after].max()}"


def test_causal(build, text):
    def law(options):
        for layout, rate in (("padded", 0.3), ("packed", 1.1), ("packed", 0.0)):
            boundaries = torch.rand(1, 30, generator=torch.Generator().manual_seed(1)) < rate
            boundaries[:, 0] = True
            assert_causal(build(**options), text(1, 30), boundaries, layout)

    hold_for(law, OPTIONS)


@pytest.mark.parametrize("pooling", ["select", "mean"])
def test_causality_test_catches_an_early_token(build, text, monkeypatch, pooling):
    """A planted off-by-one: bytes receive the open token, which is pooled from later bytes."""

    def leaky_upsample(states: Tensor, updates: Tensor, layout: TokenLayout) -> Tensor:
        last = layout.token_index[:, -1:]
        coming = torch.minimum(layout.token_index + 1, last)
        served = updates.reshape(-1, states.shape[-1])[coming]
        return states + served

    monkeypatch.setattr(rltok_rl.models.mixing, "upsample", leaky_upsample)
    with pytest.raises(AssertionError, match="sees what comes after it"):
        assert_causal(build(pooling=pooling), text(1, 30), mixed_boundaries(1, 30))


def test_causality_test_catches_a_window_that_looks_ahead(build, text, monkeypatch):
    def leaky_window(query, key, value, *, window, cap):
        ahead = [torch.cat((x[:, 1:], x[:, :1]), dim=1) for x in (key, value)]
        return torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (query, *ahead)), is_causal=True
        ).transpose(1, 2)

    monkeypatch.setattr(rltok_rl.models.unet, "sliding_window_attention", leaky_window)
    with pytest.raises(AssertionError, match="sees what comes after it"):
        assert_causal(build(), text(1, 30), mixed_boundaries(1, 30))


def test_rows_are_independent(build, text):
    """Rows with 1, a few and T tokens, together and alone."""
    byte_ids, boundaries = text(4, 30), mixed_boundaries(4, 30)

    def law(options):
        model = build(**options)
        for layout in ("padded", "packed"):
            together = outputs(model, byte_ids, boundaries, layout)
            for row in range(4):
                alone = outputs(model, byte_ids[row : row + 1], boundaries[row : row + 1], layout)
                for name, values in alone.items():
                    torch.testing.assert_close(together[name][row], values[0], rtol=0, atol=1e-5)

    hold_for(law, OPTIONS)


def test_layouts_are_equal_with_their_gradients(build, text):
    byte_ids, boundaries = text(4, 40), mixed_boundaries(4, 40)

    def law(options):
        results = []
        for layout in ("padded", "packed"):
            model = build(**options)
            out = model(byte_ids, boundaries, layout=layout)
            (-next_byte_log_prob(out.final_logits, byte_ids).mean()).backward()
            results.append((out.final_logits, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
        (padded, padded_grads), (packed, packed_grads) = results
        torch.testing.assert_close(padded, packed, rtol=0, atol=1e-5)
        assert padded_grads.keys() == packed_grads.keys()
        for name, grad in padded_grads.items():
            torch.testing.assert_close(grad, packed_grads[name], rtol=0, atol=1e-5)

    hold_for(law, OPTIONS)


def test_shortest_windows(build, text):
    def law(options):
        model = build(**options)
        for layout, length in itertools.product(("padded", "packed"), (0, 1, 2)):
            for boundaries in (torch.ones(3, length, dtype=torch.bool), None):
                out = model(text(3, length), boundaries, layout=layout)
                assert out.final_logits.shape == out.early_logits.shape == (3, length, 256)
                assert out.boundary_logits.shape == (3, length)
                assert bool(out.final_logits.isfinite().all())

    hold_for(law, OPTIONS)


def test_gradients_reach_only_what_should_learn(build, text):
    model, byte_ids = build(), text(2, 30)

    def reached(loss: Tensor) -> set[str]:
        model.zero_grad(set_to_none=True)
        loss.backward()
        return {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}

    out = model(byte_ids, generator=torch.Generator().manual_seed(0))
    policy = boundary_log_prob(out.boundary_logits, out.boundaries)[:, 1:].sum()
    early, final = (next_byte_log_prob(x, byte_ids).sum() for x in (out.early_logits, out.final_logits))
    trunk = {"embedding", "encoder"}
    assert reached(policy) == trunk | {"encoder_norm", "boundary_head"}
    out = model(byte_ids, out.boundaries)
    early = next_byte_log_prob(out.early_logits, byte_ids).sum()
    assert reached(early) == trunk | {"encoder_norm", "early_head"}
    out = model(byte_ids, out.boundaries)
    final = next_byte_log_prob(out.final_logits, byte_ids).sum()
    assert reached(final) == trunk | {"token_layers", "decoder", "decoder_norm", "final_head"}


def test_early_exit_never_sees_a_boundary(build, text):
    model, byte_ids = build(), text(2, 30)
    sampled = model(byte_ids, generator=torch.Generator().manual_seed(0))
    given = model(byte_ids, mixed_boundaries(2, 30))
    assert torch.equal(sampled.early_logits, given.early_logits)


def test_early_head_starts_as_the_final_head_and_apart_from_it():
    model = UNet(preset("tiny"))
    assert torch.equal(model.early_head.projection.weight, model.final_head.projection.weight)
    assert model.early_head.projection.weight.data_ptr() != model.final_head.projection.weight.data_ptr()


@pytest.mark.parametrize("rate", [1 / 2, 1 / 5, 1 / 20])
def test_policy_starts_at_its_target_rate(rate, text):
    torch.manual_seed(0)
    model = UNet(preset("small", target_rate=rate)).eval()  # in training the soft cap pulls small rates up a little
    probs = model(text(2, 500)).boundary_logits.sigmoid()
    assert probs.mean().item() == pytest.approx(rate, rel=0.1)


def test_soft_cap_of_boundaries_in_training_only(build, text):
    model, byte_ids = build(boundary_cap=0.5), text(2, 40)
    ones = torch.ones(2, 40, dtype=torch.bool)
    with torch.no_grad():
        model.boundary_head.projection.weight.mul_(50)
    free = model.eval()(byte_ids, ones).boundary_logits
    capped = model.train()(byte_ids, ones).boundary_logits
    assert free.abs().max() > 0.6
    torch.testing.assert_close(capped, 0.5 * torch.tanh(free / 0.5))


def test_sampling_repeats_and_greedy_thresholds(build, text):
    model, byte_ids = build(), text(3, 200)
    a, b, c = (model(byte_ids, generator=torch.Generator().manual_seed(s)).boundaries for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    with torch.no_grad():
        model.boundary_head.projection.weight.mul_(100)
    out = model(byte_ids, greedy=True)
    assert torch.equal(out.boundaries[:, 1:], out.boundary_logits[:, 1:] > 0)
    assert 0 < out.boundaries[:, 1:].sum() < 3 * 199


def test_uniforms_decide_what_is_drawn(build, text):
    model, byte_ids = build(), text(3, 60)
    for level, drawn in ((0.0, True), (0.999, False)):  # probabilities lie near 0.2
        out = model(byte_ids, uniforms=torch.full((3, 60), level))
        assert (out.boundaries[:, 1:] == drawn).all() and out.boundaries[:, 0].all()
    uniforms = torch.rand(3, 60)
    out = model(byte_ids, uniforms=uniforms)
    assert torch.equal(out.num_tokens, out.boundaries.sum(1))
    free = (uniforms - out.boundary_logits.sigmoid()).abs() > 1e-5
    free[:, 0] = False
    assert torch.equal(out.boundaries[free], (uniforms < out.boundary_logits.sigmoid())[free])


def test_boundaries_are_drawn_under_the_cap_in_training(build, text):
    """Logits of 30, capped at 0.5: u = 0.9 lies below the free probability and above the capped one, 0.62."""
    model, byte_ids = build(boundary_cap=0.5, boundary_bias=True), text(2, 40)
    with torch.no_grad():
        model.boundary_head.projection.weight.zero_()
        model.boundary_head.projection.bias[0] = 30 / model.config.boundary_scale
    uniforms = torch.full((2, 40), 0.9)
    assert model.eval()(byte_ids, uniforms=uniforms).boundaries.all()
    assert not model.train()(byte_ids, uniforms=uniforms).boundaries[:, 1:].any()


def test_overfits_a_short_text():
    """80 random letters, with boundaries drawn from the policy in every update."""
    torch.manual_seed(0)
    byte_ids = torch.randint(97, 123, (1, 80))
    model = UNet(preset("tiny"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(400):
        out = model(byte_ids)
        loss = -next_byte_log_prob(out.final_logits, byte_ids).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.005:
            break
    nats = -next_byte_log_prob(model.eval()(byte_ids).final_logits, byte_ids).sum().item()
    assert bits_per_byte(nats, 79) < 0.05


def test_float64_gradients_equal_finite_differences(build, text, monkeypatch):
    """Derivatives of all outputs along a random direction in all parameters, to eight digits.

    A single operation in float32 would leave about seven. Straight-through parts have no derivative and are left out;
    test_second_level.py tests their gradient.
    """
    monkeypatch.setattr(rltok_rl.models.level, "confidence", lambda probs, _: torch.ones_like(probs))

    def law(options):
        model, byte_ids = build(**options).double(), text(2, 20)
        boundaries = model(byte_ids, generator=torch.Generator().manual_seed(0)).boundaries
        weights = {name: torch.randn_like(values) for name, values in outputs(model, byte_ids, boundaries).items()}

        def value() -> Tensor:
            said = outputs(model, byte_ids, boundaries)
            return sum((said[name] * weight).sum() for name, weight in weights.items())

        slope, difference = slopes(value, list(model.parameters()), step=1e-3)
        torch.testing.assert_close(slope, difference, rtol=1e-8, atol=1e-8)

    hold_for(law, OPTIONS)


def slopes(value: Callable[[], Tensor], parameters: list[Tensor], *, step: float) -> tuple[Tensor, Tensor]:
    """Derivative of ``value`` along a random direction: by gradients, and by differences with an error of step^4."""
    directions = [0.05 * torch.randn_like(p) for p in parameters]
    gradients = torch.autograd.grad(value(), parameters)
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    at = {}
    with torch.no_grad():
        for k in (-2, -1, 1, 2):
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=k * step)
            at[k] = value()
            for p, d in zip(parameters, directions, strict=True):
                p.sub_(d, alpha=k * step)
    return slope, (at[-2] - 8 * at[-1] + 8 * at[1] - at[2]) / (12 * step)


def test_mixed_precision_stays_close(build, text):
    """bfloat16 weights or bfloat16 autocast: finite, close, and float32 where boundaries are decided."""
    model, byte_ids, boundaries = build(), text(2, 60), mixed_boundaries(2, 60)
    exact = outputs(model, byte_ids, boundaries)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = outputs(model, byte_ids, boundaries)
    narrow = outputs(model.bfloat16(), byte_ids, boundaries)
    for said in (mixed, narrow):
        assert said["boundary_logits"].dtype == torch.float32
        for name in ("boundary_logits", "early_logits", "final_logits"):
            torch.testing.assert_close(said[name].float(), exact[name], rtol=0, atol=0.1)


@pytest.mark.gpu
def test_gpu_equals_cpu(build, text):
    model, byte_ids, boundaries = build(), text(2, 300), mixed_boundaries(2, 300)
    on_cpu = outputs(model, byte_ids, boundaries)
    on_gpu = outputs(model.cuda(), byte_ids.cuda(), boundaries.cuda())
    for name, values in on_cpu.items():
        torch.testing.assert_close(on_gpu[name].cpu(), values, rtol=1e-4, atol=1e-4)

"""Mistakes that once went unnoticed, each by what it did."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.functional.decoding import sample_bytes
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.incremental import observe, prefill, step
from rltok_rl.models.tokens import downsample, token_layout
from rltok_rl.viz import boundary_text

from .conftest import mixed_boundaries


def test_mean_pooling_counts_beyond_what_bfloat16_can():
    boundaries = torch.zeros(1, 1000, dtype=torch.bool)
    boundaries[0, [0, -1]] = True
    tokens = downsample(torch.ones(1, 1000, 2).bfloat16(), token_layout(boundaries), "mean")
    assert tokens.dtype == torch.bfloat16 and (tokens == 1).all()


@torch.no_grad()
def test_mean_pooling_in_bfloat16_steps_as_it_runs(build, text):
    model, byte_ids = build(pooling="mean", num_decoder_layers=0).bfloat16(), text(1, 400)
    boundaries = torch.zeros(1, 400, dtype=torch.bool)
    boundaries[0, [0, -1]] = True
    cache = model.new_cache(1)
    for t in range(400):
        _, said = step(model, cache, byte_ids[:, t], boundaries[:, t])
    full = model(byte_ids, boundaries).decoder_states[:, -1]
    torch.testing.assert_close(said.decoder_state, full, rtol=0.05, atol=0.05)


def test_decode_refuses_a_text_without_a_first_token(build, text):
    """It would have been given the last token of the row before."""
    model = build()
    states = model.encode(text(2, 10))
    boundaries = torch.ones(2, 10, dtype=torch.int64)
    assert model.decode(states, boundaries).shape == states.shape  # integers will do
    boundaries[1, 0] = 0
    with pytest.raises(ValueError, match="boundaries must be 1 at the first byte"):
        model.decode(states, boundaries)
    with pytest.raises(ValueError, match=r"boundaries must have the shape of byte_ids, \[2, 10\], got \[2, 9\]"):
        model.decode(states, boundaries[:, :9])


def test_what_cannot_be_used_is_not_ignored(build, text):
    for options in ({"greedy": True}, {"uniforms": torch.rand(2, 5)}, {"generator": torch.Generator()}):
        with pytest.raises(ValueError, match="must be left out with boundaries"):
            build()(text(2, 5), mixed_boundaries(2, 5), **options)


def test_caches_of_other_models_are_refused(build, text):
    model = build()
    byte_ids = text(2, 1)[:, 0]
    for other in (build(window=8), build(num_lags=3), build(num_token_layers=2)):
        with pytest.raises(ValueError, match="cache must be made for this model"):
            observe(model, other.new_cache(2), byte_ids)
    with pytest.raises(ValueError, match="cache must have the model's dtype and device .* got torch.float64"):
        observe(model, UNetCache.empty(model.config, 2, dtype=torch.float64), byte_ids)
    with pytest.raises(ValueError, match=r"byte_ids must hold one prompt .* \[3, T >= 1\], got \[1, 4\]"):
        model(text(1, 4), cache=model.new_cache(3))
    cache = model.new_cache(2)
    prefill(model, cache, text(2, 4))
    with pytest.raises(ValueError, match="cache must be empty"):
        model(text(2, 4), cache=cache)
    with pytest.raises(ValueError, match="rows must be int64 of shape .* without repetition"):
        observe(model, model.new_cache(2), byte_ids, rows=torch.tensor([1, 1]))


@pytest.mark.parametrize("name", ["final_cap", "attention_cap", "boundary_cap", "rope_base", "boundary_scale"])
def test_infinite_settings_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
        preset("tiny", **{name: float("inf")})
    with pytest.raises(TypeError, match=f"{name} must be a number, got '1'"):
        preset("tiny", **{name: "1"})


def test_cold_and_narrow_sampling_takes_the_likeliest():
    logits = torch.randn(50, 256)
    for options in ({"temperature": 1e-40}, {"top_p": 1e-300}):
        assert torch.equal(sample_bytes(logits, **options), logits.argmax(-1))
    with pytest.raises(ValueError, match="logits must be numbers, got nan in row 1"):
        sample_bytes(torch.tensor([[0.0, 1.0], [0.0, float("nan")]]))


def test_special_ids_are_never_predicted():
    with pytest.raises(ValueError, match=r"targets must lie in 0\.\.255 .* got values from 256 to 256"):
        next_byte_log_prob(torch.zeros(1, 2, 256), torch.tensor([[0, 256]]))


def test_invisible_characters_show_all_their_bytes():
    assert boundary_text("a\u200bb".encode(), [0] * 5, colour=False) == "a\\xe2\\x80\\x8bb"


def test_a_broken_model_does_not_write_in_silence():
    from rltok_rl import generate

    model = UNet(preset("tiny"))
    with torch.no_grad():
        model.boundary_head.projection.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="must be finite, got nan"):
        generate(model, "abc", max_bytes=2)

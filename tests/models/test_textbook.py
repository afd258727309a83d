"""The model computes what the paper's equations say, for every option, with weights that make every part count."""

from __future__ import annotations

import torch

from rltok_rl.models import UNetConfig

from ..each import each
from .conftest import VARIANTS, mixed_boundaries, outputs, stepped
from .textbook import textbook_forward

CASES = {
    **VARIANTS,
    "uncapped": {"final_cap": None, "encoder_norm": False},
    "biases": {"boundary_bias": True, "head_bias": True},
    "small caps": {"final_cap": 2.0, "attention_cap": 1.0, "boundary_cap": 1.0},
    "other scales": {"boundary_scale": 0.5, "target_rate": 0.4, "rope_base": 100.0, "norm_eps": 1e-2, "num_lags": 3},
    "n-grams, summed": {"ngram_sizes": (3, 8), "ngram_buckets": 999, "ngram_scale": "sum", "num_special": 3},
    "smoothing": {"smoothing": "detached", "boundary_scale": 1.0, "boundary_cap": 1.0, "upsampling": "deviation"},
    "attention, one token": {"pooling": "attention", "upsampling": "attention", "tokens_read": 1, "attention_cap": 1.0},
    "attention, deviation": {"pooling": "attention", "upsampling": "deviation", "window": 3, "num_heads": 4},
    "straight through": {**VARIANTS["attention"], "smoothing": "straight_through"},
    "wide, attention": {**VARIANTS["attention"], "token_width": 88, "smoothing": "detached", "num_token_layers": 2},
    "wide, own token": {"token_width": 96, "byte_scope": "token", "window": 6},
    "wide second level": {"second_level": "stride", "second_width": 80, "second_heads": 4, "num_token_layers": 2},
    "tokens of one width, other heads": {"token_width": 64, "token_heads": 4},
    "other widths": {"byte_mlp_ratio": 2, "token_mlp_ratio": 3, "window": 5, "num_heads": 4},
}


@each(name=CASES, path=["padded", "packed", "stepped"])
@torch.no_grad()
def test_model_equals_the_textbook(name, path, build, text):
    """26 bytes: windows (16) wrap. Paths take training mode in turn, which caps the boundary logits."""
    boundaries, training = mixed_boundaries(2, 26, 0.35), path != "packed"
    model, byte_ids = build(**CASES[name]).double().train(training), text(2, 26)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))  # sharp attention and large logits reveal small errors
    expected = textbook_forward(model, byte_ids, boundaries, training=training)
    if path == "stepped":
        said = stepped(model, model.new_cache(2), byte_ids, boundaries)
    else:
        said = outputs(model, byte_ids, boundaries, layout=path)
    for output, values in expected.items():
        # Weights this large turn any error into differences of order 1; rotary angles are float32.
        torch.testing.assert_close(said[output], values, rtol=1e-4, atol=1e-4, msg=lambda m, n=output: f"{n}: {m}")


def test_defaults_are_the_papers():
    config = UNetConfig(width=64, num_heads=2, num_encoder_layers=1, num_token_layers=1, num_decoder_layers=1)
    assert config.boundary_scale == 1 / 16  # Eq. 22
    assert (config.num_lags, config.target_rate) == (8, 1 / 5)  # Section 2.5, Table 2
    assert (config.window, config.byte_mlp_ratio, config.token_mlp_ratio) == (64, 1, 4)  # Appendix D
    assert (config.pooling, config.upsampling) == ("select", "add")  # Eq. 7, 9
    assert not config.boundary_bias  # Eq. 21

"""The model computes what the paper's equations say, for every option, with weights that make every part count."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.models import UNetConfig
from rltok_rl.models.cache import UNetCache

from .conftest import hold_for
from .test_incremental import stepped
from .test_unet import OPTIONS
from .textbook import textbook_forward

CASES = {
    **OPTIONS,
    "uncapped": {"final_cap": None},
    "small caps": {"final_cap": 2.0, "attention_cap": 1.0, "boundary_cap": 1.0},
    "other scales": {"boundary_scale": 0.5, "target_rate": 0.4, "rope_base": 100.0, "norm_eps": 1e-2, "num_lags": 3},
    "n-grams, summed": {"ngram_sizes": (3, 8), "ngram_buckets": 999, "ngram_scale": "sum", "num_special": 3},
    "smoothing": {"smoothing": "detached", "boundary_scale": 1.0, "boundary_cap": 1.0, "upsampling": "deviation"},
    "attention, one token": {"pooling": "attention", "upsampling": "attention", "tokens_read": 1, "attention_cap": 1.0},
    "attention, deviation": {"pooling": "attention", "upsampling": "deviation", "window": 3, "num_heads": 4},
    "all of Appendix C": {
        "pooling": "attention",
        "upsampling": "attention",
        "smoothing": "straight_through",
        "ngram_sizes": (2, 4),
        "ngram_buckets": 30,
    },
    "other widths": {"byte_mlp_ratio": 2, "token_mlp_ratio": 3, "window": 5, "num_heads": 4},
}


@pytest.mark.parametrize("path", ["padded", "packed", "stepped"])
@torch.no_grad()
def test_model_equals_the_textbook(build, text, path):
    """26 bytes: windows (16) wrap. Paths take training mode in turn, which caps the boundary logits."""
    boundaries = torch.rand(2, 26, generator=torch.Generator().manual_seed(6)) < 0.35
    boundaries[:, 0] = True

    def law(options):
        training = path != "packed"
        model, byte_ids = build(**options).double().train(training), text(2, 26)
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # sharp attention and large logits reveal small errors
        expected = textbook_forward(model, byte_ids, boundaries, training=training)
        if path == "stepped":
            said = stepped(model, UNetCache.empty(model.config, 2, dtype=torch.float64), byte_ids, boundaries)
        else:
            said = vars(model(byte_ids, boundaries, layout=path))
        for name, values in expected.items():
            # Weights this large turn any error into differences of order 1; rotary angles are float32.
            torch.testing.assert_close(said[name], values, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")

    hold_for(law, CASES)


def test_defaults_are_the_papers():
    config = UNetConfig(width=64, num_heads=2, num_encoder_layers=1, num_token_layers=1, num_decoder_layers=1)
    assert config.boundary_scale == 1 / 16  # Eq. 22
    assert config.num_lags == 8  # Section 2.5
    assert config.target_rate == 1 / 5  # Section 2.5, Table 2
    assert config.window == 64  # Appendix D
    assert (config.byte_mlp_ratio, config.token_mlp_ratio) == (1, 4)  # Appendix D
    assert (config.pooling, config.upsampling) == ("select", "add")  # Eq. 7, 9
    assert not config.boundary_bias  # Eq. 21

"""Presets have the sizes that their names promise; configurations go through plain values."""

from __future__ import annotations

import json

import pytest
import torch

from rltok_rl.models import PRESETS, UNet, UNetConfig, parameter_counts, preset

from .conftest import VARIANTS

# Millions as the paper and its released configurations name them; Table 2 calls n = 2, 4, 6 token layers "20-40M".
MILLIONS = {"paper-147m": 147, "paper-90m": 90, "paper-40m": 40} | {f"released-{n}m": n for n in (18, 32, 73, 130)}
SWEEP = ("paper-20m", "paper-30m", "paper-40m")


def counts_of(name: str) -> dict[str, int]:
    with torch.device("meta"):  # shapes without memory
        return parameter_counts(UNet(preset(name)))


def test_parameter_counts_match_names():
    """All parameters, embedding of 320 ids and both byte heads included, lie within 4 % of the name."""
    for name, millions in MILLIONS.items():
        assert counts_of(name)["total"] / 1e6 == pytest.approx(millions, rel=0.04), name


def test_rate_sweep_keeps_token_work_per_byte_constant():
    """Appendix B.6: n token layers at rate 1/n cost the same per byte."""
    totals = [counts_of(name)["total"] / 1e6 for name in SWEEP]
    assert 20 <= totals[0] < totals[1] < totals[2] <= 40.5
    assert [preset(name).num_token_layers * preset(name).target_rate for name in SWEEP] == pytest.approx([1.0] * 3)


def test_parts_are_counted_once():
    counts, width, model = counts_of("paper-147m"), 768, UNet(preset("tiny"))
    assert parameter_counts(model)["total"] == sum(p.numel() for p in model.parameters())
    assert counts["embedding"] == 320 * width
    assert counts["early_head"] == counts["final_head"] == 256 * width
    assert counts["boundary_head"] == 9 * width
    assert counts["encoder"] == counts["decoder"] == 4 * (7 * width**2 + 4 * width)
    assert counts["token_layers"] == 12 * (16 * width**2 + 4 * width)


def test_wide_token_layers_start_at_the_scale_of_their_own_width():
    """Nothing else changes, and the vectors that widen tokens are zero."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", token_width=160, num_token_layers=2, second_level="stride", second_width=256))
    stacks = ((model.encoder, 64), (model.token_layers, 160), (model.second_level.layers, 256))
    for stack, width in stacks:
        for layer in stack:
            assert layer.attention.query_key_value.weight.shape == (3 * width, width)
            assert layer.attention.out.weight.std().item() == pytest.approx(width**-0.5, rel=0.05)
    assert model.token_pad.tolist() == [0.0] * 96 and model.second_level.pad.tolist() == [0.0] * 96
    counts = parameter_counts(model)
    assert counts["token_layers"] == 2 * (16 * 160**2 + 4 * 160) and counts["token_pad"] == 96
    assert counts["total"] == sum(p.numel() for p in model.parameters())


def test_configurations_survive_a_round_trip():
    for config in (*map(preset, PRESETS), *(preset("tiny", **options) for options in VARIANTS.values())):
        assert UNetConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    config = preset("tiny", second_level="stride", second_rate=1 / 4, num_token_layers=3, ngram_sizes=[3, 4])
    assert (config.second_stride, config.lower_layers, config.ngram_sizes, config.bytes_before) == (4, 2, (3, 4), 3)
    assert preset("tiny", num_token_layers=3).lower_layers == 3

"""Presets have the sizes that their names promise."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.models import PRESETS, UNet, UNetConfig, parameter_counts, preset


def counts_of(name: str) -> dict[str, int]:
    with torch.device("meta"):  # shapes without memory
        return parameter_counts(UNet(preset(name)))


# Millions as the paper and its released configurations name them; Table 2 calls n = 2, 4, 6 token layers "20-40M".
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("paper-147m", 147),
        ("paper-90m", 90),
        ("paper-40m", 40),
        ("released-18m", 18),
        ("released-32m", 32),
        ("released-73m", 73),
        ("released-130m", 130),
    ],
)
def test_parameter_count_matches_name(name, millions):
    """All parameters, embedding of 320 ids and both byte heads included, lie within 4 % of the name."""
    assert counts_of(name)["total"] / 1e6 == pytest.approx(millions, rel=0.04)


def test_rate_sweep_spans_20_to_40_million():
    totals = [counts_of(name)["total"] / 1e6 for name in ("paper-20m", "paper-30m", "paper-40m")]
    assert 20 <= totals[0] < totals[1] < totals[2] <= 40.5


def test_parts_are_counted_once():
    counts = counts_of("paper-147m")
    model = UNet(preset("tiny"))
    assert parameter_counts(model)["total"] == sum(p.numel() for p in model.parameters())
    width = 768
    assert counts["embedding"] == 320 * width
    assert counts["early_head"] == counts["final_head"] == 256 * width
    assert counts["boundary_head"] == 9 * width
    assert counts["encoder"] == counts["decoder"] == 4 * (7 * width**2 + 4 * width)
    assert counts["token_layers"] == 12 * (16 * width**2 + 4 * width)


def test_rate_sweep_keeps_token_work_per_byte_constant():
    """Appendix B.6: n token layers at rate 1/n cost the same per byte."""
    for name in ("paper-20m", "paper-30m", "paper-40m"):
        config = preset(name)
        assert config.num_token_layers * config.target_rate == pytest.approx(1.0)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_config_survives_a_round_trip(name):
    config = preset(name)
    assert UNetConfig.from_dict(config.to_dict()) == config


def test_small_presets_run():
    for name in ("tiny", "small"):
        assert UNet(preset(name))(torch.zeros(1, 3, dtype=torch.int64)).final_logits.shape == (1, 3, 256)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"unknown preset 'paper-147'.*did you mean 'paper-147m'"):
        preset("paper-147")
    with pytest.raises(ValueError, match=r"unknown keys \['widht'\]"):
        preset("tiny", widht=3)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_heads", 3, "width must be a multiple of 2 \\* num_heads.*width=64, num_heads=3"),
        ("window", 0, "window must be an integer of at least 1, got 0"),
        ("window", 2.5, "window must be an integer of at least 1, got 2.5"),
        ("width", True, "width must be an integer"),
        ("num_lags", -1, "num_lags must be an integer of at least 0, got -1"),
        ("target_rate", 1.0, "target_rate must lie strictly between 0 and 1, got 1.0"),
        ("final_cap", 0.0, "final_cap must be positive and finite, or None"),
        ("boundary_scale", float("nan"), "boundary_scale must be positive and finite"),
        ("pooling", "max", r"pooling must be one of \['select', 'mean', 'attention'\], got 'max'"),
        ("upsampling", "concat", r"upsampling must be one of \['add', 'deviation', 'attention'\], got 'concat'"),
    ],
)
def test_config_refuses_by_name(field, value, message):
    with pytest.raises(ValueError, match=message):
        preset("tiny", **{field: value})

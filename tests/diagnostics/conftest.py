"""A small U-Net with opinions, for the instruments to measure."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.models import UNet, UNetConfig, preset


def opinionated(**overrides: object) -> UNet:
    """Weights that make logits, rewards and lags differ widely, as a trained model's do."""
    options = {"width": 16, "window": 4, "num_lags": 2, "target_rate": 0.4, **overrides}
    config: UNetConfig = preset("tiny", **options)
    model = UNet(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        model.boundary_head.projection.weight.mul_(8.0)
    return model


@pytest.fixture
def model() -> UNet:
    return opinionated()

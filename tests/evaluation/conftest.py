"""Shared models and random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rltok_rl.models import UNet, preset


@pytest.fixture(scope="package")
def model() -> UNet:
    """A policy with rate 0.3 and a random final head, so that predictions depend on boundaries."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).eval()
    torch.nn.init.normal_(model.final_head.projection.weight, std=0.5)
    return model


@pytest.fixture(scope="session")
def seeded() -> Callable[..., torch.Generator]:
    """A generator with a seed."""
    return lambda seed=5: torch.Generator().manual_seed(seed)

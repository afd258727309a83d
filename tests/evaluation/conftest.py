"""Shared models and random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rltok_rl.models import UNet, preset


def small_model(*, head: float | None = None, seed: int = 0, **options: object) -> UNet:
    """A policy of rate 0.3; a final head with large weights (``head``) makes predictions depend on boundaries."""
    torch.manual_seed(seed)
    model = UNet(preset("tiny", **{"boundary_scale": 1.0, "target_rate": 0.3, **options})).eval()
    if head is not None:
        torch.nn.init.normal_(model.final_head.projection.weight, std=head)
    return model


@pytest.fixture(scope="package")
def model() -> UNet:
    return small_model(head=0.5)


@pytest.fixture(scope="package")
def mild_model() -> UNet:
    return small_model()


@pytest.fixture(scope="session")
def seeded() -> Callable[..., torch.Generator]:
    return lambda seed=5: torch.Generator().manual_seed(seed)

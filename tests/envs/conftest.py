"""A small model and texts for the environment tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import TextSource
from rltok_rl.models import UNet, preset

LONG = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. " * 4
)
# Documents that end long before a window does, at different places.
SHORT = ["ab", "a longer one, of words", "middling", "x" * 30, "the end is near", LONG[:45]]


@pytest.fixture
def model() -> UNet:
    """A tiny model whose heads differ and whose policy is neither certain nor flat."""
    torch.manual_seed(0)
    model = UNet(preset("tiny")).eval()
    with torch.no_grad():
        model.early_head.projection.weight.add_(0.1 * torch.randn_like(model.early_head.projection.weight))
        model.boundary_head.projection.weight.mul_(20)
    return model


@pytest.fixture
def make_env(model) -> Callable[..., ByteBoundaryEnv]:
    """Build an environment over long or short documents."""

    def make(*, short: bool = False, num_steps: int = 24, batch_size=(3,), **options) -> ByteBoundaryEnv:
        source = TextSource(SHORT, short_documents="whole") if short else TextSource(LONG)
        return ByteBoundaryEnv(model, source, num_steps=num_steps, batch_size=batch_size, seed=0, **options)

    return make

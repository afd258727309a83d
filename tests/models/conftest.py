"""Small models and boundary strings shared by the model tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rltok_rl.models import UNet, preset


@pytest.fixture
def build() -> Callable[..., UNet]:
    """Build a seeded tiny model in evaluation mode, any field of its configuration replaced.

    Weights of norms and of the early exit are moved off their initial values, so that a test cannot pass because a
    norm is the identity or because both heads agree.
    """

    def make(**overrides) -> UNet:
        torch.manual_seed(0)
        model = UNet(preset("tiny", **overrides)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or "early_head" in name:
                    parameter.add_(0.2 * torch.randn_like(parameter))
        return model

    return make


def mixed_boundaries(num_rows: int, length: int, seed: int = 4) -> Tensor:
    """Boundaries [B, T] of every kind: the first row has one token, the last one per byte, rates grow between."""
    rates = torch.linspace(0, 1.01, num_rows)[:, None] if num_rows > 1 else torch.tensor([[0.3]])
    boundaries = torch.rand(num_rows, length, generator=torch.Generator().manual_seed(seed)) < rates
    boundaries[:, :1] = True
    return boundaries


def hold_for(law: Callable[..., None], members: dict[str, Any]) -> None:
    """Check a law for every member by name, and report all members that break it."""
    broken = {}
    for name, member in members.items():
        try:
            law(member)
        except AssertionError as error:
            broken[name] = str(error).strip()
    assert not broken, "\n".join(f"{name}: {reason}" for name, reason in broken.items())


@pytest.fixture
def text() -> Callable[[int, int], Tensor]:
    """Random bytes [B, T]."""

    def make(num_rows: int, length: int, seed: int = 2) -> Tensor:
        return torch.randint(256, (num_rows, length), generator=torch.Generator().manual_seed(seed))

    return make

"""Small models and boundary strings shared by the model tests."""

from __future__ import annotations

from collections.abc import Callable

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


def boundary_strings(num_rows: int, length: int) -> dict[str, Tensor]:
    """Boundary strings of every kind that begin with a boundary: random, all, none but the first."""
    generator = torch.Generator().manual_seed(1)
    random = torch.rand(num_rows, length, generator=generator) < 0.3
    random[:, :1] = True
    first_only = torch.zeros(num_rows, length, dtype=torch.bool)
    first_only[:, :1] = True
    return {"random": random, "all": torch.ones_like(random), "first only": first_only}


@pytest.fixture(params=["random", "all", "first only"])
def boundaries_of(request) -> Callable[[int, int], Tensor]:
    """Make boundaries [B, T] of one kind; a test that takes this runs for each kind."""
    return lambda num_rows, length: boundary_strings(num_rows, length)[request.param]


@pytest.fixture
def text() -> Callable[[int, int], Tensor]:
    """Random bytes [B, T]."""

    def make(num_rows: int, length: int, seed: int = 2) -> Tensor:
        return torch.randint(256, (num_rows, length), generator=torch.Generator().manual_seed(seed))

    return make

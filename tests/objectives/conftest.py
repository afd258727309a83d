"""Rollouts of a tiny U-Net, and what they are read with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from torch import Tensor

from rltok_rl.models import UNet, preset

LEAVE_ONE_OUT = {"estimator": "discounted_return", "gamma": 0.9, "baseline": "leave_one_out"}
TEXT = "it was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "


def make_model(**overrides: object) -> UNet:
    model = UNet(preset("tiny", **{"width": 16, "window": 6, "num_lags": 3, "target_rate": 0.3, **overrides}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def make_rollout(model: UNet, num_rows: int = 4, num_steps: int = 12, **options):
    env = ByteBoundaryEnv(model, TEXT * 3, num_steps=num_steps, batch_size=(num_rows,), seed=1)
    return env.parallel_rollout(LearnedBoundaryActor(model), generator=torch.Generator().manual_seed(2), **options)


def reader(model: UNet, rollout, price: float) -> Callable[[Tensor], Tensor]:
    """Return a function from boundaries to final log-likelihoods [B, T] minus their price, on the rollout's texts."""
    shape = tuple(rollout.batch_size)
    last = rollout["next", "byte"].view(shape)[:, -1:]
    texts = [bytes(row) for row in torch.cat((rollout["byte"].view(shape), last), 1).tolist()]
    env = ByteBoundaryEnv(model, texts, num_steps=shape[1], batch_size=shape[:1])

    def earned(boundaries: Tensor) -> Tensor:
        seen = env.parallel_rollout(actions=boundaries.long(), text=texts)["next", "final_log_prob"].detach()
        return seen.squeeze(-1) - price * boundaries

    return earned


@pytest.fixture
def model() -> UNet:
    return make_model()


@pytest.fixture
def rollout(model):
    return make_rollout(model)

"""Rollouts of a tiny U-Net, and what they are read with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import Trials

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


def second_rows(trials: Trials) -> list[Tensor]:
    """Record the boundaries [B, T] of an estimator's second rows, as they are drawn."""
    seen: list[Tensor] = []

    def run(*options):
        boundaries, log_probs = type(trials)._run_passes(trials, *options)
        seen.append(boundaries.squeeze(1))
        return boundaries, log_probs

    trials._run_passes = run
    return seen


def pairs_of_strings(model: UNet, text: str) -> tuple[TensorDictBase, TensorDictBase]:
    """Return all pairs of boundary strings of a text: the rows, and the second rows."""
    table = enumerate_rollouts(model, text)[0].detach()
    first, second = torch.cartesian_prod(torch.arange(len(table)), torch.arange(len(table))).unbind(1)
    return table[first], table[second]


def chance_of_pairs(rows: TensorDictBase, others: TensorDictBase, both: Tensor) -> Tensor:
    """Return the probability [N, 1] of each pair, if ``both`` [N, T] draw a boundary with these probabilities."""
    drawn, boundaries = rows["action"].bool(), others["action"].bool()
    p, q = rows["logits"].sigmoid(), others["logits"].sigmoid()
    with_boundary = torch.where(boundaries, both, p - both)
    joint = torch.where(drawn, with_boundary, torch.where(boundaries, q - both, 1 - p - q + both))
    chance = joint.masked_fill(rows["forced"], 1.0).prod(1, keepdim=True)
    assert float(chance.sum()) == pytest.approx(1)
    return chance


def give_second_rows(trials: Trials, others: TensorDictBase) -> None:
    """Let an estimator find these second rows instead of drawing any."""
    passes = others["action"].bool().unsqueeze(1), others["next", "final_log_prob"].squeeze(-1).unsqueeze(1)
    trials._run_passes = lambda *_: passes


@pytest.fixture
def model() -> UNet:
    return make_model()


@pytest.fixture
def rollout(model):
    return make_rollout(model)

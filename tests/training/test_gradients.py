"""Micro-batches give the gradients of the whole batch, batch statistics included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, LearnedBoundaryActor, RolloutPolicy
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.studies.pooled_critic import PooledCriticAdvantage
from rltok_rl.experiments.studies.scaled_return import ScaledReturn

from rltok_rl.models import UNet
from rltok_rl.objectives import (
    BoundaryClipPPOLoss,
    BoundaryReinforceLoss,
    CriticAdvantage,
    EntropyBonus,
    JointLoss,
    LanguageModelLoss,
    LocalFlips,
    RateLoss,
)
from rltok_rl.training import TrainingStep

from ..each import each
from ..named_estimators import NAMES, named_estimator, needed_options
from ..states import seeded
from ..trial_cases import OWN_TEXTS, TRIAL_CASES
from .processes import PROSE, ROWS, STEPS, make


def judged(estimator: Any) -> JointLoss:
    return JointLoss.paper(target_rate=0.2, estimator=estimator)


def named(name: str, model: UNet) -> JointLoss:
    return judged(named_estimator(name, gamma=0.9, **needed_options(name, STEPS, None)))


def with_trials(name: str, model: UNet) -> JointLoss:
    kind, options = TRIAL_CASES[name]
    return judged(kind(model, gamma=0.9, generator=seeded(1), **options))


def with_critic(make_estimator: Callable[..., CriticAdvantage], model: UNet) -> JointLoss:
    torch.manual_seed(2)
    estimator = make_estimator(model)
    for weights in estimator.value_network.parameters():
        torch.nn.init.normal_(weights, std=0.1)
    clipped = BoundaryClipPPOLoss(RolloutPolicy(), estimator.value_network, entropy_bonus=False)
    return JointLoss({"language_model": LanguageModelLoss(), "policy": clipped.make_value_estimator(estimator)})


LOSSES: dict[str, Callable[[UNet], JointLoss]] = {
    "paper": lambda model: JointLoss.paper(target_rate=0.2, gamma=0.9),
    **{name: partial(named, name) for name in NAMES if "critic" not in name and "vtrace" not in name},
    **{name: partial(with_trials, name) for name in OWN_TEXTS},
    "scaled by position": lambda model: judged(ScaledReturn(gamma=0.9)),
    "scaled by row": lambda model: judged(ScaledReturn(gamma=0.9, scale="row")),
    "a critic": partial(
        with_critic, lambda model: CriticAdvantage(gamma=0.9, lmbda=0.9, value_network=BoundaryCritic(model.config))
    ),
    "a critic of tokens": partial(with_critic, partial(PooledCriticAdvantage, gamma=0.9)),
    "leave-one-out, ratio": lambda model: JointLoss.paper(
        target_rate=0.2, baseline="leave_one_out", gamma=0.9, rate={"control": "ratio"}
    ),
    "z-score, with entropy": lambda model: JointLoss(
        {
            "language_model": LanguageModelLoss(),
            "policy": BoundaryReinforceLoss("discounted_return", gamma=0.9, baseline="z_score"),
            "rate": RateLoss(0.2, control="pi"),
            "bonus": EntropyBonus(),
        },
        {"policy": 0.5, "bonus": 0.1},
    ),
    "no policy": lambda model: JointLoss({"language_model": LanguageModelLoss()}),
}


class FixedStep(TrainingStep):
    """A step with given texts and boundaries, in equal micro-batches of the rows."""

    def __init__(
        self, loss: Callable[[UNet], JointLoss], micro_batches: int = 1, rows: slice = slice(None), **options
    ) -> None:
        actions = torch.rand(ROWS, STEPS, generator=torch.Generator().manual_seed(1)) < 0.3
        texts = [PROSE[i : i + STEPS + 1] for i in range(ROWS)][rows]
        size = len(texts) // micro_batches
        env = ByteBoundaryEnv(make().model, PROSE, num_steps=STEPS, batch_size=(size,), seed=0)
        super().__init__(env, loss(env.model), **options)
        self.parts = [(actions[rows][i : i + size].long(), texts[i : i + size]) for i in range(0, len(texts), size)]

    def draw(self, *, warm_start: bool = False):
        actions, texts = self.parts.pop(0)
        return self.env.parallel_rollout(LearnedBoundaryActor(self.model), actions=actions, text=texts)


def gradients(loss: Callable[[UNet], JointLoss], micro_batches: int = 1, rows: slice = slice(None)):
    step = FixedStep(loss, micro_batches, rows)
    metrics = step() if micro_batches == 1 else step.accumulate(micro_batches)
    if micro_batches == 1:
        metrics["loss"].backward()
    critic = step.loss.terms["policy"].named_parameters() if "policy" in step.loss.terms else ()
    return {n: p.grad for n, p in (*step.model.named_parameters(), *critic)}, metrics


@each(name=LOSSES)
def test_micro_batches_are_one_batch(name):
    whole, expected = gradients(LOSSES[name])
    for micro_batches in (2, 4):
        parts, metrics = gradients(LOSSES[name], micro_batches)
        assert set(metrics) == set(expected) and not metrics["loss"].requires_grad
        for key in set(expected) - {"padded_rate"}:  # rows are padded to the longest of their micro-batch
            torch.testing.assert_close(metrics[key], expected[key].detach(), rtol=1e-5, atol=1e-6, msg=key)
        for key, value in whole.items():
            assert (value is None) == (parts[key] is None)
            if value is not None:
                torch.testing.assert_close(parts[key], value, rtol=1e-4, atol=1e-6, msg=key)


def test_naive_accumulation_gives_another_gradient():
    whole, _ = gradients(LOSSES["paper"])
    naive = [gradients(LOSSES["paper"], rows=slice(i, i + 2))[0] for i in range(0, ROWS, 2)]
    name = "boundary_head.projection.weight"
    assert not torch.allclose(torch.stack([g[name] for g in naive]).mean(0), whole[name], rtol=0.1)


@each(case=[(None, ROWS), (2, 2), (ROWS + 1, ROWS)])
def test_flips_run_like_rollouts(case):
    """In passes of at most as many rows, and as precise."""
    rows, expected = case
    flips = LocalFlips(make().model, gamma=0.9, rows_per_pass=rows)
    for precision in (None, torch.bfloat16):
        FixedStep(lambda model: judged(flips), precision=precision)
        assert (flips.rows_per_pass, flips.precision) == (expected, precision)


def test_precision_is_that_of_matrix_products():
    narrow = FixedStep(LOSSES["paper"], precision=torch.bfloat16)()["bits_per_byte"]
    wide = FixedStep(LOSSES["paper"])()["bits_per_byte"]
    assert narrow != wide == pytest.approx(narrow.item(), rel=0.02)

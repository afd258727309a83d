"""Micro-batches give the gradients of the whole batch, batch statistics included."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.models import UNet, preset
from rltok_rl.objectives import BoundaryReinforceLoss, EntropyBonus, JointLoss, LanguageModelLoss, RateLoss
from rltok_rl.training import TrainingStep

TEXT = "call me ishmael. some years ago - never mind how long precisely - having little or no money in my purse " * 2
STEPS, ROWS = 20, 8


def make_model() -> UNet:
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16, window=6, num_lags=3, target_rate=0.3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


LOSSES = {
    "paper": lambda: JointLoss.paper(target_rate=0.2, gamma=0.9),
    "leave-one-out, ratio": lambda: JointLoss.paper(
        target_rate=0.2, baseline="leave_one_out", gamma=0.9, rate={"control": "ratio"}
    ),
    "normalised, with entropy": lambda: JointLoss(
        {
            "language_model": LanguageModelLoss(),
            "policy": BoundaryReinforceLoss("discounted_return", gamma=0.9, baseline="z_score"),
            "rate": RateLoss(0.2, control="pi"),
            "bonus": EntropyBonus(),
        },
        {"policy": 0.5, "bonus": 0.1},
    ),
    "no policy": lambda: JointLoss({"language_model": LanguageModelLoss()}),
}


class FixedStep(TrainingStep):
    """A step whose texts and boundaries are given, B rows at a time."""

    def __init__(self, loss: JointLoss, rows: slice, micro_batches: int, precision: torch.dtype | None = None) -> None:
        actions = torch.rand(ROWS, STEPS, generator=torch.Generator().manual_seed(1)) < 0.3
        texts = [TEXT[i : i + STEPS + 1] for i in range(ROWS)][rows]
        size = len(texts) // micro_batches
        env = ByteBoundaryEnv(make_model(), TEXT, num_steps=STEPS, batch_size=(size,), seed=0)
        super().__init__(env, loss, precision=precision)
        self.parts = iter(
            zip(actions[rows].long().split(size), [texts[i : i + size] for i in range(0, 8, size)], strict=False)
        )

    def draw(self, *, warm_start: bool = False):
        actions, texts = next(self.parts)
        return self.env.parallel_rollout(LearnedBoundaryActor(self.model), actions=actions, text=texts)


def gradients(loss: JointLoss, micro_batches: int, rows: slice = slice(None)):
    step = FixedStep(loss, rows, micro_batches)
    if micro_batches == 1:
        metrics = step()
        metrics["loss"].backward()
    else:
        metrics = step.accumulate(micro_batches)
    return {n: p.grad for n, p in step.model.named_parameters()}, metrics


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_are_one_batch(name):
    whole, expected = gradients(LOSSES[name](), 1)
    for micro_batches in (2, 4):
        parts, metrics = gradients(LOSSES[name](), micro_batches)
        assert set(metrics) == set(expected) and not metrics["loss"].requires_grad
        for key in set(expected) - {"padded_rate"}:  # rows are padded to the longest of their micro-batch
            torch.testing.assert_close(metrics[key], expected[key].detach(), rtol=1e-5, atol=1e-6, msg=key)
        for key, value in whole.items():
            assert (value is None) == (parts[key] is None)
            if value is not None:
                torch.testing.assert_close(parts[key], value, rtol=1e-4, atol=1e-6, msg=key)


def test_batch_means_of_two_rows_give_another_gradient():
    """Naive accumulation, which the test above would find."""
    whole, _ = gradients(LOSSES["paper"](), 1)
    naive = [gradients(LOSSES["paper"](), 1, slice(i, i + 2))[0] for i in range(0, ROWS, 2)]
    name = "boundary_head.projection.weight"
    assert not torch.allclose(torch.stack([g[name] for g in naive]).mean(0), whole[name], rtol=0.1)


def test_precision_is_that_of_matrix_products():
    narrow = FixedStep(LOSSES["paper"](), slice(None), 1, torch.bfloat16)()["bits_per_byte"]
    wide = FixedStep(LOSSES["paper"](), slice(None), 1)()["bits_per_byte"]
    assert narrow != wide
    torch.testing.assert_close(narrow, wide, rtol=0.02, atol=0)

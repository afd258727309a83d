"""Micro-batches give the gradients of the whole batch, batch statistics included."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.models import UNet, preset
from rltok_rl.objectives import BoundaryReinforceLoss, EntropyBonus, JointLoss, LanguageModelLoss, RateLoss
from rltok_rl.training.gradients import joint_gradients

TEXT = (
    "call me ishmael. some years ago - never mind how long precisely - having little or no money in my purse, and " * 2
)
STEPS = 20


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


def gradients(loss, micro_batches, texts, actions):
    model = make_model()
    size = len(texts) // micro_batches
    env = ByteBoundaryEnv(model, TEXT, num_steps=STEPS, batch_size=(size,), seed=0)
    actor = LearnedBoundaryActor(model)
    turns = iter(range(micro_batches))

    def draw():
        rows = slice((start := next(turns) * size), start + size)
        return env.parallel_rollout(actor, actions=actions[rows], text=texts[rows])

    found = joint_gradients(model, draw, loss, micro_batches=micro_batches)
    return {n: p.grad for n, p in model.named_parameters()}, found


@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_micro_batches_are_one_batch(name, micro_batches):
    texts = [TEXT[i : i + STEPS + 1] for i in range(8)]
    actions = (torch.rand(8, STEPS) < 0.3).long()
    whole, expected = gradients(LOSSES[name](), 1, texts, actions)
    parts, found = gradients(LOSSES[name](), micro_batches, texts, actions)
    assert set(found) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")
    for key, value in whole.items():
        if value is None:
            assert parts[key] is None
        else:
            torch.testing.assert_close(parts[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")


def test_naive_accumulation_is_not(monkeypatch):
    """What the care is for: with batch means of two rows each, the policy's gradient is another one."""
    texts = [TEXT[i : i + STEPS + 1] for i in range(8)]
    actions = (torch.rand(8, STEPS) < 0.3).long()
    whole, _ = gradients(LOSSES["paper"](), 1, texts, actions)
    naive = [gradients(LOSSES["paper"](), 1, texts[i : i + 2], actions[i : i + 2])[0] for i in range(0, 8, 2)]
    name = "boundary_head.projection.weight"
    mean = torch.stack([g[name] for g in naive]).mean(0)
    assert not torch.allclose(mean, whole[name], rtol=0.1)


def test_precision_is_that_of_matrix_products():
    texts = [TEXT[i : i + STEPS + 1] for i in range(8)]
    actions = (torch.rand(8, STEPS) < 0.3).long()
    model = make_model()
    env = ByteBoundaryEnv(model, TEXT, num_steps=STEPS, batch_size=(8,), seed=0)
    actor = LearnedBoundaryActor(model)
    found = joint_gradients(
        model,
        lambda: env.parallel_rollout(actor, actions=actions, text=texts),
        LOSSES["paper"](),
        precision=torch.bfloat16,
    )
    _, expected = gradients(LOSSES["paper"](), 1, texts, actions)
    assert found["bits_per_byte"] != expected["bits_per_byte"]
    torch.testing.assert_close(found["bits_per_byte"], expected["bits_per_byte"], rtol=0.02, atol=0)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="micro_batches must be at least 1, got 0"):
        joint_gradients(make_model(), lambda: None, JointLoss.paper(target_rate=0.2), micro_batches=0)

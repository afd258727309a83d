"""Training with a second level: its loss is part of every update, with micro-batches, and its FLOPs are counted."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import matrix_parameters
from rltok_rl.objectives import JointLoss, SecondLevelLoss
from rltok_rl.training import LoopOptions, Trainer


def make(micro_batches: int = 1, **options) -> Trainer:
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16, window=6, num_lags=3, num_token_layers=2, second_level="routing"))
    with torch.no_grad():
        model.second_level.routing.key.weight.normal_(std=0.25)
    env = ByteBoundaryEnv(model, local_prose(20_000), num_steps=24, batch_size=(4,), seed=0)
    terms = {**JointLoss.paper(target_rate=0.3).terms, "second_level": SecondLevelLoss(1 / 3)}
    loss = JointLoss(terms, {"policy": 0.01, "rate": 0.01, "early_exit": 0.1, "second_level": 0.03})
    total = 3 * micro_batches * 4 * 24
    return Trainer(model, env, loss, LoopOptions(total_bytes=total, micro_batches=micro_batches, **options), seed=0)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_updates_train_the_router_and_count_tokens_of_tokens(micro_batches):
    """Six FLOPs for each entry of a matrix that a byte, a token or a token of tokens passes."""
    trainer, found = make(micro_batches), []
    routing = trainer.model.second_level.routing
    before = routing.query.weight.detach().clone()
    trainer.run(lambda figures: found.append(figures))
    assert (routing.query.weight - before).abs().max() > 0
    parts = matrix_parameters(trainer.model)
    second, routing = (parts.pop(f"second_level.{name}") for name in ("layers", "routing"))
    per_token = parts.pop("token_layers") + routing
    spent = 0.0
    for figures in found:
        assert figures["loss_second_level"] > 0 and 0 < figures["second_rate"] < 1
        tokens = (1 + 23 * figures["rate"]) / 24  # the first byte's, and those of the rate
        per_byte = sum(parts.values()) + tokens * (per_token + second * figures["second_rate"])
        spent += 6 * micro_batches * 4 * 24 * per_byte
        assert figures["flops"] == pytest.approx(spent, rel=1e-6)


def test_the_second_levels_loss_trains_below_it_alone():
    """With its term alone, next-byte heads and the policy get no gradient, and with two micro-batches neither."""
    for micro_batches in (1, 2):
        trainer = make(micro_batches)
        trainer.step.loss = JointLoss({"second_level": SecondLevelLoss(1 / 3)})
        trainer.update()
        reached = {n.split(".")[0] for n, p in trainer.model.named_parameters() if p.grad is not None and p.grad.any()}
        assert reached == {"embedding", "encoder", "token_layers", "second_level"}

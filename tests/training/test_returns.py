"""Returns among the metrics of updates and snapshots: of which rollouts, and without an effect on the training."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, UniformActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import TextSource, local_prose
from rltok_rl.data.languages import Recall
from rltok_rl.evaluation import mean_and_error
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import decoding_flops, update_flops
from rltok_rl.objectives import JointLoss, LocalFlips
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.snapshots import Snapshots
from rltok_rl.training.training_step import read_bytes

from ..each import each
from .processes import ROWS, STEPS, UPDATE, make

KINDS = {
    "one batch": {},
    "micro-batches": {"micro_batches": 2},
    "epochs": {"ppo": True, "policy_epochs": 2},
    "language": {"source": Recall(), "micro_batches": 2},
}


@each(kind=KINDS)
def test_returns_of_an_update_are_those_of_its_rollouts(kind, monkeypatch):
    trainer, rollouts = make(**KINDS[kind]), []
    draw = trainer.step.draw
    monkeypatch.setattr(trainer.step, "draw", lambda **options: rollouts.append(draw(**options)) or rollouts[-1])
    metrics = trainer.update()
    assert len(rollouts) == trainer.options.micro_batches
    rewards = torch.cat([rollout["next", "reward"].squeeze(-1) for rollout in rollouts])
    total, error = mean_and_error(rewards.double().sum(-1))
    assert metrics["episode_return"] == pytest.approx(total, rel=1e-5)
    assert metrics["episode_return_standard_error"] == pytest.approx(error, rel=1e-5)
    assert metrics["reward"] == pytest.approx(total / trainer.env.num_steps, rel=1e-5)
    returns = discounted_return(rewards, trainer.step.gamma)[:, 1:]  # the first decision is forced
    assert metrics["return"] == pytest.approx(returns.mean().item(), rel=1e-4)
    assert ("share" in metrics) is (kind == "language")
    if kind == "language":
        byte_ids, log_prob = map(torch.cat, zip(*map(read_bytes, rollouts), strict=True))
        share = trainer.language.share_captured(byte_ids, log_prob)
        assert metrics["share"] == pytest.approx(share, rel=1e-12)


def test_return_is_missing_without_a_policy_that_learns_from_rewards():
    trainer = make()
    del trainer.loss.terms["policy"]
    metrics = trainer.update()
    assert "reward" in metrics and "return" not in metrics and "share" not in metrics


def test_snapshot_compares_with_even_spacing_on_the_same_texts():
    """Against a second environment with the same seed, which reads the same texts."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16, target_rate=0.3, boundary_scale=2.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    held = TextSource(local_prose(20_000))
    options = {"reward": "early_exit", "price": 0.02}
    snapshots = Snapshots(held=held, num_rows=4, num_steps=24, batches=2, num_bytes=50, **options)
    model.eval()
    metrics = snapshots.evaluate(model)

    def totals(actor):
        env = ByteBoundaryEnv(model, held, num_steps=24, batch_size=(4,), seed=snapshots.seed, **options)
        generator = torch.Generator().manual_seed(snapshots.seed) if actor.draws_at_random else None
        rollouts = [env.parallel_rollout(actor, generator=generator) for _ in range(2)]
        return torch.cat([rollout["next", "reward"].double().sum((1, 2)) for rollout in rollouts])

    ours, reference = totals(LearnedBoundaryActor(model)), totals(UniformActor(0.3))
    for name, values in (("episode", ours), ("relative", ours - reference)):
        found = [metrics[f"held_out_{name}_return{end}"] for end in ("", "_standard_error")]
        assert found == pytest.approx(mean_and_error(values), rel=1e-4), name
    relative = replace(snapshots, reward="relative").evaluate(model)
    for end in ("", "_standard_error"):
        name = f"held_out_relative_return{end}"
        assert relative[name] == pytest.approx(metrics[name], rel=1e-4)
    again = Snapshots(held=held, actor=UniformActor(0.3), num_rows=4, num_steps=24, batches=1, num_bytes=50)
    assert again.evaluate(model)["held_out_relative_return"] == 0.0


def test_the_reference_counts_in_a_warm_start_too():
    """Every rollout decodes once more with the reference's boundaries; trials of an estimator begin afterwards."""
    model = UNet(preset("tiny", width=16, target_rate=0.3))
    env = ByteBoundaryEnv(
        model, TextSource(local_prose(9000)), num_steps=STEPS, batch_size=(ROWS,), seed=0, reward="relative"
    )
    loss = JointLoss.paper(target_rate=0.3, estimator=LocalFlips(model, gamma=0.9, num_flips=2, span=7))
    trainer = Trainer(model, env, loss, LoopOptions(total_bytes=2 * UPDATE, warm_start_bytes=UPDATE))
    first, second = trainer.update(), trainer.update()
    tokens = (first["flops"] - update_flops(model, UPDATE, 0)) / update_flops(model, 0, 1)
    decoding = decoding_flops(model, UPDATE, tokens)
    assert first["total_flops"] - first["flops"] == pytest.approx(decoding)
    assert second["total_flops"] - second["flops"] > 3 * decoding


@each(rows=[1, 2, ROWS])
def test_one_row_has_no_error(rows):
    snapshot = Snapshots(held=Recall(), language=Recall(), num_rows=rows, num_steps=24, batches=1, num_bytes=20)
    metrics = snapshot.evaluate(UNet(preset("tiny", width=16)))
    assert ("held_out_episode_return_standard_error" in metrics) is (rows > 1)
    assert not any(map(math.isnan, metrics.values()))

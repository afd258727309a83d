"""A training over an epoch order goes on where it stopped, through a checkpoint on disk."""

from __future__ import annotations

import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import CachedSource, OrderedSource, local_prose, write_cache
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.checkpoint import load_checkpoint, save_checkpoint


def make(folder, seed=0):
    torch.manual_seed(seed)
    model = UNet(preset("tiny", width=16, window=6, num_lags=3))
    source = OrderedSource(CachedSource(folder), length=25, seed=3)  # 12 windows, 3 updates an epoch
    env = ByteBoundaryEnv(model, source, num_steps=24, batch_size=(4,), seed=seed)
    loss = JointLoss.paper(target_rate=0.2, baseline="leave_one_out", gamma=0.9)
    return Trainer(model, env, loss, LoopOptions(total_bytes=7 * 4 * 24), seed=seed)


def losses(trainer, updates=None):
    found = []
    trainer.run(lambda figures: found.append(figures) or (updates is not None and len(found) >= updates))
    return found


def test_resumed_is_uninterrupted(tmp_path):
    prose = local_prose(1000)
    write_cache([prose[at : at + 49] for at in range(0, 600, 100)], tmp_path / "cache")
    whole = losses(make(tmp_path / "cache"))
    first = make(tmp_path / "cache")
    before = losses(first, 2)
    save_checkpoint(tmp_path / "checkpoints", 2, first.state_dict())
    second = make(tmp_path / "cache", seed=5)
    second.load_state_dict(load_checkpoint(tmp_path / "checkpoints")[1])
    assert second.env.source.drawn == 8
    assert before + losses(second) == whole and len(whole) == 7

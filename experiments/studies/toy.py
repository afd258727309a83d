"""Toy model: small enough to learn boundaries within minutes on a CPU, for studies to measure."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.studies.common import StepLines
from rltok_rl.experiments.studies.small_models import train_model
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.data import TextSource
from rltok_rl.models import UNet, UNetConfig, preset
from rltok_rl.objectives import JointLoss

ROWS, STEPS = 32, 256


def toy_config() -> UNetConfig:
    """Return a configuration whose bytes see eight bytes: anything further back has to travel through tokens."""
    return preset("tiny", window=8, num_token_layers=2, target_rate=0.2)


def train_toy(source: TextSource, *, updates: int) -> UNet:
    """Train with the paper's joint loss, leave-one-out advantages and gamma = 0.95; 2,700 updates take ten minutes.

    The learning rate has 100 updates of warm-up, and a cosine decay to a twentieth.
    """
    torch.manual_seed(0)
    model = UNet(toy_config())
    env = ByteBoundaryEnv(model, source, num_steps=STEPS, batch_size=(ROWS,), seed=0)
    joint = JointLoss.paper(target_rate=0.2, baseline="leave_one_out", gamma=0.95)
    joint.coeff_rate = 0.03

    def loss(rollout: TensorDictBase) -> tuple[Tensor, str]:
        losses = joint(rollout)
        note = f": {losses['bits_per_byte']:.3f} bits per byte (early exit {losses['early_bits_per_byte']:.3f}), "
        return joint.total(losses), note + f"rate {losses['rate']:.3f}, entropy {losses['entropy']:.3f}"

    progress = StepLines("toy model, update", lines=max(1, updates // 100))
    actor = LearnedBoundaryActor(model)
    train_model(env, actor, loss, lr=4e-3, updates=updates, warm_up=100, floor=0.05, progress=progress)
    return model


def get_toy(path: Path, source: TextSource, *, updates: int) -> UNet:
    """Load the model of the folder ``path``; train it and save it there first if there is none."""
    if not path.exists():
        print(f"training a toy model of {updates} updates, to be saved as {path}", file=sys.stderr)
        train_toy(source, updates=updates).save_pretrained(path)
    return UNet.from_pretrained(path)

"""The training that benchmarks time: the paper's loss, on prose that every Python brings along."""

from __future__ import annotations

from typing import Any

import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.parallel import Processes


def fresh_model(name: str, device: str = "cpu") -> UNet:
    """A preset with weights that are always the same.

    Args:
        name: of the preset.
        device: where.
    """
    torch.manual_seed(0)
    return UNet(preset(name)).to(device)


def paper_trainer(
    model: UNet,
    num_rows: int,
    num_bytes: int,
    *,
    precision: str = "float32",
    processes: Processes | None = None,
    strategy: str = "none",
    **of_environment: Any,
) -> Trainer:
    """A trainer with the paper's loss; without a baseline of one row, which has no batch to be compared with.

    Args:
        model: what is trained.
        num_rows: of this process.
        num_bytes: decisions in a row.
        precision: of matrix products.
        processes: that train together.
        strategy: of training in several.
        **of_environment: further options of the environment.
    """
    given: dict[str, Any] = {"num_steps": num_bytes, "batch_size": (num_rows,), "seed": 0, **of_environment}
    env = ByteBoundaryEnv(model, local_prose(), **given)
    baseline = "batch_mean" if num_rows > 1 else "none"
    group = None if processes is None else processes.group
    loss = JointLoss.paper(target_rate=model.config.target_rate, baseline=baseline, process_group=group)
    options = LoopOptions(total_bytes=10**12, precision=precision)
    return Trainer(model, env, loss, options, processes=processes, strategy=strategy)

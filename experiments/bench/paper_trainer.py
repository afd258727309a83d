"""The training that is timed: the paper's loss on English prose."""

from __future__ import annotations

from typing import Any

import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.distributed import Processes


def fresh_model(name: str, device: str = "cpu") -> UNet:
    """A preset with the same weights in every call."""
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
    **options: Any,
) -> Trainer:
    """A trainer with the paper's loss; a single row has no batch mean and trains without a baseline.

    Args:
        model: the U-Net.
        num_rows: rows per process.
        num_bytes: decisions per row.
        precision: of matrix products.
        processes: ranks that train together.
        strategy: ``none``, ``ddp`` or ``fsdp``.
        **options: options of the environment.
    """
    options = {"num_steps": num_bytes, "batch_size": (num_rows,), "seed": 0, **options}
    env = ByteBoundaryEnv(model, local_prose(), **options)
    baseline = "batch_mean" if num_rows > 1 else "none"
    group = None if processes is None else processes.group
    loss = JointLoss.paper(target_rate=model.config.target_rate, baseline=baseline, process_group=group)
    loop = LoopOptions(total_bytes=10**12, precision=precision)
    return Trainer(model, env, loss, loop, processes=processes, strategy=strategy)

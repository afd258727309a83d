"""Training loop of small models, which studies measure or package."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.studies.common import StepLines
from tensordict import TensorDictBase
from torch import Tensor


def train_model(
    env: ByteBoundaryEnv,
    actor: Any,
    loss: Callable[[TensorDictBase], tuple[Tensor, str]],
    *,
    lr: float,
    updates: int,
    warm_up: int,
    floor: float,
    progress: StepLines,
) -> None:
    """Train the model of an environment with AdamW, an update per rollout.

    ``loss`` returns the loss of a rollout and a note for its progress line. The learning rate rises for ``warm_up``
    updates, and decays as a cosine to ``floor`` times ``lr``.
    """
    weights = [*env.model.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    for update in range(updates):
        fraction = max(floor, 0.5 * (1 + math.cos(math.pi * update / updates)))
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (update + 1) / warm_up) * fraction
        total, note = loss(env.parallel_rollout(actor))
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        progress(update + 1, updates, note)

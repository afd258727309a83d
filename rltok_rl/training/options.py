"""Learning rates over the course of training, counted in bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rltok_rl.agents.segmenters import split_stages
from rltok_rl.models.unet import UNet
from rltok_rl.utils import check_count


def cosine_schedule(done: float, total: float, *, warm_up: float, floor: float = 0.0) -> float:
    """Share of the peak learning rate: a line up during warm-up, then half a cosine down to the floor.

        s = done / warm_up                                                 before the end of warm-up
        s = floor + (1 - floor) (1 + cos(pi (done - warm_up) / (total - warm_up))) / 2          after

    Args:
        done: bytes trained on so far.
        total: bytes of the whole training; beyond them the floor stays.
        warm_up: bytes of warm-up, less than ``total``.
        floor: what is left at the end, in [0, 1].

    Example:
        >>> [round(cosine_schedule(done, 100, warm_up=20), 2) for done in (10, 20, 60, 100)]
        [0.5, 1.0, 0.5, 0.0]
    """
    if not 0 <= warm_up < total:
        raise ValueError(f"warm_up must lie in [0, total={total}), got {warm_up}")
    if not 0.0 <= floor <= 1.0:
        raise ValueError(f"floor must lie in [0, 1], got {floor}")
    if done < warm_up:
        return done / warm_up
    way = min(1.0, (done - warm_up) / (total - warm_up))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * way))


PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """How a model is trained."""

    total_bytes: int
    """Bytes to train on in all."""
    total_flops: float | None = None
    """End once so many FLOPs are spent instead, an estimator's trials included and padding not; the schedule then goes
    by the FLOPs, as if ``total_bytes`` were the bytes that they suffice for."""
    lr: float = 2e-3
    """Peak learning rate of AdamW."""
    warm_up_bytes: int = 0
    """Bytes of linear warm-up."""
    lr_floor: float = 0.1
    """Share of the learning rate that is left at the end."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    """Of weight matrices; norms and the embedding have none."""
    clip_norm: float = 1.0
    """Largest norm of the gradient.  # released code"""
    micro_batches: int = 1
    """Rollouts per update."""
    precision: str = "float32"
    """Of matrix products: float32 or bfloat16."""
    policy_epochs: int = 1
    """Updates of the policy per batch: the first with all losses, the others without the next-byte losses, on the
    stored batch. More than one needs a policy loss that weighs decisions by how likely they have become."""
    stage_factors: tuple[float, ...] | None = None
    """Factors on the learning rate of everything that reads bytes, of the token layers, and where there is a third, of
    the layers on tokens of tokens (:func:`~rltok_rl.agents.segmenters.split_stages`)."""
    warm_start_bytes: int = 0
    """Bytes to begin with whose boundaries are drawn at random, at the target rate."""
    figures_every: int = 1
    """Updates whose figures are told together: an accelerator waits for the host once in so many updates. Where
    ``total_flops`` is given they are fetched after each all the same, because the schedule goes by them."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run, by name."""
        for name in ("total_bytes", "micro_batches", "policy_epochs", "figures_every"):
            check_count(name, getattr(self, name))
        check_count("warm_start_bytes", self.warm_start_bytes, minimum=0)
        for name in ("lr", "clip_norm", "total_flops"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        factors = self.stage_factors
        if factors is not None and (len(factors) not in (2, 3) or not min(factors) > 0):
            raise ValueError(f"stage_factors must be two or three positive numbers, got {factors}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {list(PRECISIONS)}, got {self.precision!r}")
        if not 0 <= self.warm_up_bytes < self.total_bytes:
            raise ValueError(f"warm_up_bytes must lie in [0, total_bytes={self.total_bytes}), got {self.warm_up_bytes}")
        cosine_schedule(0, self.total_bytes, warm_up=self.warm_up_bytes, floor=self.lr_floor)


def make_optimizer(trained: nn.Module, options: LoopOptions, *, model: UNet | None = None) -> torch.optim.AdamW:
    """AdamW with weight decay on weight matrices alone.

    Args:
        trained: what to train, the loss included where it has parameters of its own (a critic).
        options: learning rate, betas, weight decay, factors of the stages.
        model: the U-Net whose stages have factors.
    """
    embeddings = {id(m.weight) for m in trained.modules() if isinstance(m, nn.Embedding)}
    decayed = [p for p in trained.parameters() if p.dim() >= 2 and id(p) not in embeddings]
    others = [p for p in trained.parameters() if p.dim() < 2 or id(p) in embeddings]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if options.stage_factors is not None:
        if model is None:
            raise ValueError("model must be given with stage_factors, got None")
        groups = [
            {"params": stage, "weight_decay": group["weight_decay"], "lr_factor": factor}
            for group in groups
            for stage, factor in zip(
                split_stages(model, group["params"], len(options.stage_factors)), options.stage_factors, strict=True
            )
        ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, fused=True)

"""Training options, learning-rate schedule, optimizer, compiled and recomputed layers."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from typing import Any

import torch
from torch import nn

from rltok_rl.agents.segmenters import split_stages
from rltok_rl.models.layers import LayerStack, TransformerLayer
from rltok_rl.models.unet import UNet
from rltok_rl.ranges import check_fields, check_number, option

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
RECOMPUTE = ("none", "layers")
"""Layers that run again in the backward pass: none, or every byte and token layer."""
DECAYED = ("matrices", "all")
"""Parameters with weight decay: weight matrices, without norms, biases and the embedding; or all, as in AdamW(lr)."""
LR_AT = ("end", "start")
"""Place of an update in the learning-rate schedule, by its bytes: after its last one, or before its first one."""


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Hyperparameters of the training loop."""

    total_bytes: int = option(MISSING, "[1, inf)", "bytes")
    """Bytes to train on."""
    total_flops: float | None = option(None, "(0, inf)", "FLOPs")
    """Total FLOPs, which replace ``total_bytes`` as the end of training and in the learning-rate schedule. An
    estimator's trials count, padding does not."""
    lr: float = option(2e-3, "(0, 10]")
    """Peak learning rate of AdamW."""
    warm_up_bytes: int = option(0, "[0, inf)", "bytes")
    """Bytes of linear warm-up."""
    warm_up_start: float = option(0.0, "[0, 1]", "share")
    """Share of the learning rate at which warm-up begins. The released code has 0.1."""
    lr_floor: float = option(0.1, "[0, 1]", "share")
    """Share of the learning rate that is left at the end."""
    lr_at: str = "end"
    """``end``: an update takes the learning rate of its end, so that the first of b bytes has b / w of the peak with
    w bytes of warm-up. ``start``: that of its start, as torch's schedulers do, so that the first has ``warm_up_start``.
    Either way the last update is one step of the cosine above the floor."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = option(0.1, "[0, 1e3]")
    """Of the ``decayed`` parameters."""
    decayed: str = "matrices"
    """Parameters with weight decay: ``matrices`` without norms, biases and the embedding, or ``all``."""
    clip_norm: float = option(1.0, "(0, inf]")
    """Largest norm of the gradient.  # released code"""
    micro_batches: int = option(1, "[1, 65_536]", "rollouts")
    """Rollouts per update."""
    precision: str = "float32"
    """Of matrix products: float32 or bfloat16."""
    policy_epochs: int = option(1, "[1, 1e4]", "updates")
    """Policy updates per batch: the first with all losses, the others without the next-byte losses, on the stored
    batch. More than one needs an off-policy loss."""
    stage_factors: tuple[float, ...] | None = None
    """Learning-rate factors of everything that reads bytes, of the token layers, and of the layers on tokens of tokens
    if there are any (:func:`~rltok_rl.agents.segmenters.split_stages`)."""
    warm_start_bytes: int = option(0, "[0, inf)", "bytes")
    """First bytes, on which no advantages reach the policy, so that its decisions stay open until tokens help. An
    off-policy loss learns from random boundaries there; a trainer's ``warm_start_rule`` is imitated."""
    figures_every: int = option(1, "[1, inf)", "updates")
    """Updates whose metrics are fetched together: an accelerator waits for the host once in so many updates. With
    ``total_flops`` they are fetched after each, because the schedule depends on them."""

    def __post_init__(self) -> None:
        """Reject values that cannot be run."""
        check_fields(self)
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, got {self.betas}")
        for beta in self.betas:
            check_number("betas", beta, "[0, 1)")
        factors = () if self.stage_factors is None else self.stage_factors
        if self.stage_factors is not None and len(factors) not in (2, 3):
            raise ValueError(f"stage_factors must be two or three positive numbers, got {factors}")
        for factor in factors:
            check_number("stage_factors", factor, "(0, inf)")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {list(PRECISIONS)}, got {self.precision!r}")
        if self.warm_up_bytes >= self.total_bytes:
            raise ValueError(f"warm_up_bytes must lie in [0, total_bytes={self.total_bytes}), got {self.warm_up_bytes}")
        for name, allowed in (("decayed", DECAYED), ("lr_at", LR_AT)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {list(allowed)}, got {getattr(self, name)!r}")


def cosine_schedule(done: float, total: float, *, warm_up: float, floor: float = 0.0, start: float = 0.0) -> float:
    """Return the share of the peak learning rate: linear warm-up, then half a cosine down to the floor.

        s = start + (1 - start) done / warm_up                             before the end of warm-up
        s = floor + (1 - floor) (1 + cos(pi (done - warm_up) / (total - warm_up))) / 2          after

    Example:
        >>> [round(cosine_schedule(done, 100, warm_up=20), 2) for done in (10, 20, 60, 100)]
        [0.5, 1.0, 0.5, 0.0]
    """
    if done < warm_up:
        return start + (1 - start) * (done / warm_up)
    way = min(1.0, (done - warm_up) / (total - warm_up))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * way))


def make_optimizer(trained: nn.Module, options: LoopOptions, *, model: UNet | None = None) -> torch.optim.AdamW:
    """Return AdamW with weight decay as ``options`` say; ``stage_factors`` are those of the model's stages."""
    embeddings = {id(m.weight) for m in trained.modules() if isinstance(m, nn.Embedding)}
    matrices = [p for p in trained.parameters() if p.dim() >= 2 and id(p) not in embeddings]
    decayed = [*trained.parameters()] if options.decayed == "all" else matrices
    chosen = {id(p) for p in decayed}
    others = [p for p in trained.parameters() if id(p) not in chosen]
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


def compile_layers(model: UNet, *, backend: str = "inductor") -> None:
    """Compile every layer except its attention; names of parameters, and so checkpoints, stay the same.

    Three programs serve all layers and any number of positions: before attention, and after it in byte and in token
    layers, whose MLPs differ in size. Capped scores need three more. The first calls compile them.
    """
    for layer in model.modules():
        if isinstance(layer, TransformerLayer):
            layer.backend = backend


def recompute_layers(model: UNet, what: str = "layers") -> None:
    """Run layers again in the backward pass instead of keeping their activations; results are equal to the last bit.

    Memory for L layers, T bytes and width D: L [T, D] tensors and the activations of one layer, instead of all.
    """
    if what not in RECOMPUTE:
        raise ValueError(f"recompute must be one of {list(RECOMPUTE)}, got {what!r}")
    for module in model.modules():
        if isinstance(module, LayerStack):
            module.recompute = what == "layers"

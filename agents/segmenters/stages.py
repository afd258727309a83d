"""Parameters by H-Net's stages, each with its learning rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from torch import nn

from rltok_rl.models.unet import UNet


def split_stages(model: UNet, parameters: Iterable[nn.Parameter], num_stages: int) -> list[list[nn.Parameter]]:
    """Parameters by the stage that they belong to, outermost first, in the order given.

    With two, everything that reads bytes is the first stage, and token layers and what lies between them the second.
    With three, the layers on tokens of tokens are the third; what routes between tokens belongs to the second.

    Args:
        model: the U-Net.
        parameters: some of the model's, and others, which belong to bytes: a segmenter's, a critic's.
        num_stages: 2, or 3 for a model with a second level.

    Example:
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> [len(stage) for stage in split_stages(model, model.token_layers.parameters(), 2)]
        [0, 8]
    """
    if num_stages not in (2, 3):
        raise ValueError(f"num_stages must be one of [2, 3], got {num_stages}")
    if num_stages == 3 and model.second_level is None:
        raise ValueError("model must have a second level for three stages, got second_level=None")
    second = [] if model.second_level is None else list(model.second_level.parameters())
    stage_of = {id(p): 1 for p in (*model.token_layers.parameters(), *second)}
    if num_stages == 3 and model.second_level is not None:
        stage_of |= {id(p): 2 for p in model.second_level.layers.parameters()}
    stages: list[list[nn.Parameter]] = [[] for _ in range(num_stages)]
    for parameter in parameters:
        stages[stage_of.get(id(parameter), 0)].append(parameter)
    return stages


def stage_groups(model: UNet, segmenter: HNetSegmenter, *, lr: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, outermost stage first, with the learning rates of H-Net's stages.

    Args:
        model: the U-Net.
        segmenter: H-Net's, with the rates that the factors are made of.
        lr: the learning rate that the factors multiply.

    Example:
        >>> import torch
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> from rltok_rl.models import preset
        >>> levels = {"second_level": "routing", "second_residual": "projection", "num_token_layers": 2}
        >>> model = UNet(preset("tiny", **levels))
        >>> optimizer = torch.optim.AdamW(stage_groups(model, make_segmenter("hnet", model, stages=2), lr=1e-3))
        >>> [round(group["lr"] * 1e3, 2) for group in optimizer.param_groups]
        [2.14, 1.24, 0.71]

    Reference: https://arxiv.org/abs/2507.07955
    """
    factors = segmenter.multipliers
    everything = {id(p): p for module in (model, segmenter) for p in module.parameters()}  # some share the model's
    stages = split_stages(model, everything.values(), len(factors))
    return [{"params": stage, "lr": lr * factor} for stage, factor in zip(stages, factors, strict=True)]

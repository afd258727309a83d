"""Parameters by H-Net's stages, each with its learning rate."""

from __future__ import annotations

from typing import Any

from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from torch import nn

from rltok_rl.models.unet import UNet


def stage_groups(model: UNet, segmenter: HNetSegmenter, *, lr: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, outermost stage first, with the learning rates of H-Net's stages.

    Bytes and what draws their boundaries are the first stage, token layers and what routes between tokens the second,
    and with two stages the layers on tokens of tokens the third.

    Args:
        model: the U-Net.
        segmenter: H-Net's, with the rates that the factors are made of.
        lr: the learning rate that the factors multiply.

    Example:
        >>> import torch
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny", second_level="routing", second_residual="projection"))
        >>> optimizer = torch.optim.AdamW(stage_groups(model, make_segmenter("hnet", model, stages=2), lr=1e-3))
        >>> [round(group["lr"] * 1e3, 2) for group in optimizer.param_groups]
        [2.14, 1.24, 0.71]

    Reference: https://arxiv.org/abs/2507.07955
    """
    inner: list[list[nn.Module]] = [[model.token_layers]]
    if model.second_level is not None and segmenter.second_rate is not None:
        inner[0] += [] if model.second_level.routing is None else [model.second_level.routing]
        inner.append([model.second_level.layers])
    elif model.second_level is not None:
        inner[0].append(model.second_level)
    stages = [[p for module in modules for p in module.parameters()] for modules in inner]
    taken = {id(p) for stage in stages for p in stage}
    outer = {id(p): p for module in (model, segmenter) for p in module.parameters() if id(p) not in taken}
    groups = [list(outer.values()), *stages]
    return [{"params": g, "lr": lr * factor} for g, factor in zip(groups, segmenter.multipliers, strict=True)]

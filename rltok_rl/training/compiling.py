"""Compiled layers."""

from __future__ import annotations

from rltok_rl.models.layers import TransformerLayer
from rltok_rl.models.unet import UNet


def compile_layers(model: UNet, *, backend: str = "inductor") -> None:
    """Compile what stands around attention in every layer; names of parameters, and so checkpoints, stay what they are.

    Three programs serve all layers, for any number of positions: what stands before attention, and what stands after it
    in byte layers and in token layers, whose MLPs differ in size. Where scores are capped there are three more, for
    windows of bytes, padded and packed tokens. They are made when they are first called; passes without gradients have
    their own.

    Args:
        model: the U-Net.
        backend: as ``torch.compile`` names it.
    """
    for layer in model.modules():
        if isinstance(layer, TransformerLayer):
            layer.backend = backend

"""Compiled layers."""

from __future__ import annotations

from rltok_rl.models.layers import TransformerLayer
from rltok_rl.models.unet import UNet


def compile_layers(model: UNet) -> None:
    """Compile every layer in place; names of parameters, and so checkpoints, stay what they are.

    Layers are compiled one by one, because between them the sampler draws boundaries, whose number is another in every
    batch: token layers are compiled for any number of tokens.

    Args:
        model: the U-Net.
    """
    for layer in model.modules():
        if isinstance(layer, TransformerLayer):
            layer.compile(dynamic=True)

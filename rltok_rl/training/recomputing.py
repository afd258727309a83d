"""Memory against time: activations that are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from rltok_rl.models.layers import LayerStack
from rltok_rl.models.unet import UNet

RECOMPUTE = ("none", "layers")
"""What is computed again: nothing, or every byte and token layer."""


def recompute_layers(model: UNet, what: str = "layers") -> None:
    """Let every layer keep its input alone for the backward pass, which runs it again (activation checkpointing).

    For L layers, T bytes and width D it keeps L [T, D] tensors and the inside of one layer, instead of the insides of
    all. Results are the same to the last bit. Layers may be compiled and cut in pieces all the same.

    Args:
        model: the U-Net; changed in place, its weights and checkpoints are not.
        what: a key of :data:`RECOMPUTE`.
    """
    if what not in RECOMPUTE:
        raise ValueError(f"recompute must be one of {list(RECOMPUTE)}, got {what!r}")
    for module in model.modules():
        if isinstance(module, LayerStack):
            module.recompute = what == "layers"

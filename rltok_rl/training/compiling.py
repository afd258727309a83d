"""Compiled layers."""

from __future__ import annotations

from rltok_rl.models.layers import LayerStack, TransformerLayer
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

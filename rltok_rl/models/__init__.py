"""The byte-level autoregressive U-Net: layers, pooling, heads, caches and generation."""

from __future__ import annotations

from rltok_rl.models.config import PRESETS, UNetConfig, preset
from rltok_rl.models.flops import parameter_counts
from rltok_rl.models.pretrained import begin_with
from rltok_rl.models.segmentation import Segmentation, segment
from rltok_rl.models.shared import SharedModel
from rltok_rl.models.unet import UNet, UNetOutput

__all__ = [
    "PRESETS",
    "Segmentation",
    "SharedModel",
    "UNet",
    "UNetConfig",
    "UNetOutput",
    "begin_with",
    "parameter_counts",
    "preset",
    "segment",
]

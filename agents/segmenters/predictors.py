"""Whose entropies are asked: any next-byte predictor that reads bytes one after the other.

Shapes: B rows, T bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models.byte_model import ByteModel
from rltok_rl.models.unet import UNet


class Predictor(nn.Module):
    """Says how uncertain the next byte is after each byte, and the same byte by byte."""

    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """Entropies H_t in nats of the byte after x_t: encoder states [B, T, D] and bytes [B, T] to [B, T]."""
        raise NotImplementedError

    def start(self, num_rows: int) -> Any:
        """What it remembers before the first byte."""
        return None

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """Entropies [B] after one more byte per row; ``memory`` is changed in place."""
        raise NotImplementedError

    def loss(self, byte_ids: Tensor) -> Tensor | None:
        """What it learns from, where nothing else trains it."""
        return None


class EarlyExit(Predictor):
    """The early exit of a U-Net, whose parameters it shares; it costs nothing and learns with the model.

    Thresholds on its entropies have to be calibrated again as it learns.

    Args:
        model: the U-Net.
    """

    def __init__(self, model: UNet) -> None:
        super().__init__()
        self.norm, self.head = model.encoder_norm, model.early_head

    @torch.no_grad()
    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """From encoder states alone."""
        return prediction_entropy(self.head(self.norm(states)))

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """The same for one byte."""
        return self(states, byte_ids)


class OwnModel(Predictor):
    """A small byte model of its own, trained on next bytes and by nothing else (BLT).

    Args:
        model: the byte model.
    """

    def __init__(self, model: ByteModel) -> None:
        super().__init__()
        self.model = model

    @torch.no_grad()
    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """From bytes alone."""
        return prediction_entropy(self.model(byte_ids))

    def start(self, num_rows: int) -> Any:
        """Keys and values of the bytes read."""
        return self.model.new_cache(num_rows)

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """Read one more byte."""
        return prediction_entropy(self.model.step(byte_ids, position, memory))

    def loss(self, byte_ids: Tensor) -> Tensor | None:
        """Mean next-byte cost; None where there is no next byte."""
        return self.model.loss(byte_ids) if byte_ids.shape[-1] > 1 else None

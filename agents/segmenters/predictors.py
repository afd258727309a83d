"""Next-byte predictors whose entropies place boundaries: the early exit, or a separate byte model.

Shapes: B rows, T bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from rltok_rl.agents.segmenters.segmenter import check_choice
from torch import Tensor, nn

from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models.byte_model import ByteModel
from rltok_rl.models.unet import UNet

PredictorName = Literal["early_exit", "own"]


class Predictor(nn.Module):
    """Predicts the entropy of the next byte, in whole windows and byte by byte."""

    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """Map encoder states [B, T, D] and bytes [B, T] to entropies H_t [B, T] of the byte after x_t, in nats."""
        raise NotImplementedError

    def start(self, num_rows: int) -> Any:
        """Return the memory before the first byte."""
        return None

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """Return entropies [B] after one more byte per row; changes ``memory`` in place."""
        raise NotImplementedError

    def loss(self, byte_ids: Tensor) -> Tensor | None:
        """Compute the predictor's own loss, if nothing else trains it."""
        return None


class EarlyExit(Predictor):
    """The early exit of a U-Net, sharing its parameters; free, and trained with the model.

    Thresholds must be calibrated again as it learns.
    """

    def __init__(self, model: UNet) -> None:
        super().__init__()
        self.norm, self.head = model.encoder_norm, model.early_head

    @torch.no_grad()
    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """Compute entropies from encoder states."""
        return prediction_entropy(self.head(self.norm(states)))

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """Compute the entropies of one more byte per row."""
        return self(states, byte_ids)


class OwnModel(Predictor):
    """A small separate byte model, trained on next bytes alone (BLT)."""

    def __init__(self, model: ByteModel) -> None:
        super().__init__()
        self.model = model

    @torch.no_grad()
    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """Compute entropies from bytes."""
        return prediction_entropy(self.model(byte_ids))

    def start(self, num_rows: int) -> Any:
        """Return an empty cache of keys and values."""
        return self.model.new_cache(num_rows)

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """Read one more byte per row."""
        return prediction_entropy(self.model.step(byte_ids, position, memory))

    def loss(self, byte_ids: Tensor) -> Tensor | None:
        """Compute the mean next-byte cost; None for windows of one byte."""
        return self.model.loss(byte_ids) if byte_ids.shape[-1] > 1 else None


def make_predictor(
    model: UNet, name: PredictorName, window: int | None = None, num_layers: int | None = None
) -> Predictor:
    """Build a predictor for a model; ``window`` and ``num_layers`` of ``"own"`` default to the encoder's."""
    check_choice("predictor", name, ("early_exit", "own"))
    if name == "early_exit":
        if window is not None or num_layers is not None:
            raise ValueError(f"window and num_layers belong to predictor 'own', got {window} and {num_layers}")
        return EarlyExit(model)
    config = model.config
    window = config.window if window is None else window
    num_layers = config.num_encoder_layers if num_layers is None else num_layers
    return OwnModel(ByteModel(replace(config, window=window, num_encoder_layers=num_layers)))

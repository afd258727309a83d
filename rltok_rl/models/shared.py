"""One set of weights for several processes of a machine.

TorchRL's collectors send workers new weights for the policy alone, but here the environment needs the model too. So
workers map the weights into memory, and see in their next step what an optimizer writes.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

import torch

from rltok_rl.models.config import UNetConfig
from rltok_rl.models.unet import UNet

_MODELS: dict[str, UNet] = {}  # models of this process by the folder of their weights


class SharedModel:
    """Handle of a U-Net on the CPU that other processes can receive; calling it there returns the model.

    The weights move into memory-mapped files (in a temporary folder, deleted with the handle, unless one is given).
    In-place writes, as by optimizers, reach all processes.

    Example:
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> SharedModel(model)() is model
        True
    """

    def __init__(self, model: UNet, folder: str | Path | None = None) -> None:
        device = model.embedding.weight.device
        if device.type != "cpu":
            raise ValueError(f"model must be on the CPU to be shared between processes, got {device}")
        if folder is None:
            memory = Path("/dev/shm")  # never written to a disk; Linux only
            folder = tempfile.mkdtemp(prefix="rltok-", dir=memory if memory.is_dir() else None)
            weakref.finalize(self, _forget, folder)
        self.folder = str(folder)
        self.config, self.training = model.config, model.training
        _map_weights(model, Path(self.folder), fill=True)
        _MODELS[self.folder] = model

    def __call__(self) -> UNet:
        """Return this process's model with the shared weights."""
        if self.folder not in _MODELS:
            model = UNet(UNetConfig.from_dict(self.config.to_dict())).train(self.training)
            _map_weights(model, Path(self.folder), fill=False)
            _MODELS[self.folder] = model
        return _MODELS[self.folder]


def _forget(folder: str) -> None:
    _MODELS.pop(folder, None)
    shutil.rmtree(folder, ignore_errors=True)


def _map_weights(model: UNet, folder: Path, *, fill: bool) -> None:
    """Move a model's weights into files, or (``fill`` False) map them from there."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            path = str(folder / f"{name}.bin")
            mapped = torch.from_file(path, shared=True, size=weight.numel(), dtype=weight.dtype).view_as(weight)
            if fill:
                mapped.copy_(weight)
            weight.data = mapped

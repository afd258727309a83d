"""One set of weights for several processes of a machine.

TorchRL's collectors copy environments and policies to their workers and later update only the policy's weights. Here
the environment needs the model too: its encoder, its predictions, its rewards. So workers map the weights themselves:
they see what an optimizer writes here in their next step, and nothing is sent.
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
    """Handle of a model that other processes can receive; calling it there returns the model.

    The weights move into memory-mapped files, which are deleted with the handle that created them. In-place writes, as
    by optimizers, reach all processes.

    Args:
        model: a U-Net on the CPU.
        folder: of the files; None is a temporary folder.

    Example:
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> shared = SharedModel(model)
        >>> shared() is model
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

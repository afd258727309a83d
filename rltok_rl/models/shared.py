"""One set of weights for several processes of a machine.

TorchRL's collectors send environments and policies to their workers as copies, and afterwards bring only the policy's
weights up to date. Here the environment reads the model too: its encoder, its predictions, its rewards. So workers map
the weights themselves: what an optimizer writes here, they read in their next step, and nothing has to be sent.
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
    """A handle of a model's weights that can be sent to other processes; called there, it gives the model.

    The weights move into memory-mapped files, which go away with the handle that made them. Whoever writes them in
    place, as optimizers do, writes them for all.

    Args:
        model: a U-Net on the CPU.
        folder: where the files lie; None is a temporary folder.

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
            memory = Path("/dev/shm")  # a folder that is never written to a disk, where there is one
            folder = tempfile.mkdtemp(prefix="rltok-", dir=memory if memory.is_dir() else None)
            weakref.finalize(self, _forget, folder)
        self.folder = str(folder)
        self.config, self.training = model.config, model.training
        _map_weights(model, Path(self.folder), fill=True)
        _MODELS[self.folder] = model

    def __call__(self) -> UNet:
        """The model: in each process one, whose weights are those of all."""
        if self.folder not in _MODELS:
            model = UNet(UNetConfig.from_dict(self.config.to_dict())).train(self.training)
            _map_weights(model, Path(self.folder), fill=False)
            _MODELS[self.folder] = model
        return _MODELS[self.folder]


def _forget(folder: str) -> None:
    _MODELS.pop(folder, None)
    shutil.rmtree(folder, ignore_errors=True)


def _map_weights(model: UNet, folder: Path, *, fill: bool) -> None:
    """Put a model's weights into files, or (``fill`` False) take them from there."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            path = str(folder / f"{name}.bin")
            mapped = torch.from_file(path, shared=True, size=weight.numel(), dtype=weight.dtype).view_as(weight)
            if fill:
                mapped.copy_(weight)
            weight.data = mapped

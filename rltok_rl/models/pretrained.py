"""Models in folders and on the Hugging Face hub: ``save_pretrained``, ``from_pretrained``, ``push_to_hub``.

The work is that of huggingface_hub's ``PyTorchModelHubMixin``, through :mod:`rltok_rl.models.hub`. Importing it takes
half a second, several times what this package takes, so that it is left until somebody saves or loads.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import torch

from rltok_rl.models.presets import PRESETS

_Model = TypeVar("_Model", bound="Pretrained")

PACKAGED = {"pocket": Path(__file__).parents[1] / "assets" / "pocket"}
"""Models that come with the package: their names, and where they are."""

SOURCES = f"a folder of save_pretrained, a run's folder, a hub id (user/name) or one of {[*PACKAGED]}"


class Pretrained:
    """What a U-Net inherits to be saved and loaded.

    Example:
        >>> import tempfile
        >>> from rltok_rl.models import UNet, preset
        >>> folder = UNet(preset("tiny")).save_pretrained(Path(tempfile.mkdtemp()) / "model")
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'config.json', 'model.safetensors']
        >>> UNet.from_pretrained(folder).config.width
        64
    """

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``model.safetensors``, ``config.json`` and, where there is none yet, a model card.

        Weights are written as they are, in their dtypes; one that is shared between two places is written once.

        Args:
            folder: made if it is not there; a model in it is replaced, its ``README.md`` is kept.

        Returns:
            The folder.
        """
        from rltok_rl.models.hub import HubModel, saved_config

        HubModel(self).save_pretrained(folder, config=saved_config(self))
        return Path(folder)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        commit_message: str = "Add model",
        branch: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> str:
        """Save the model to a repository of the hub, which is made if it is not there.

        Args:
            repo_id: ``"user/name"``.
            private: whether a new repository is private; None leaves it to the hub.
            commit_message: one line.
            branch: None for the main one.
            token: of the hub; None takes the one that ``hf auth login`` has stored.
            **options: further ones of ``PyTorchModelHubMixin.push_to_hub``.

        Returns:
            The address of the commit.
        """
        from rltok_rl.models.hub import HubModel, saved_config

        return HubModel(self).push_to_hub(
            repo_id,
            config=saved_config(self),
            private=private,
            commit_message=commit_message,
            branch=branch,
            token=token,
            model_card_kwargs={"source": repo_id},
            **options,
        )

    @classmethod
    def from_pretrained(
        cls: type[_Model],
        source: str | Path,
        *,
        device: str | torch.device = "cpu",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> _Model:
        """Load a model, in evaluation mode (``model.train()`` takes it on), weights in the dtypes they were saved in.

        No random numbers are drawn, and nothing is loaded that does not fit.

        Args:
            source: a folder of :meth:`save_pretrained`, the folder of a training run (its ``model`` is taken), the
                id of a repository of the hub, or the name of a model that comes with the package (:data:`PACKAGED`),
                where there is no folder of that name. A folder needs no network.
            device: where to put the weights.
            revision: branch, tag or commit of the repository.
            cache_dir: where files of the hub are kept.
            token: of the hub.
            local_files_only: take what has been downloaded before, and do not ask the hub.
            force_download: download again what has been downloaded before.
        """
        from rltok_rl.models.hub import load

        return load(
            cls,
            source,
            device=torch.device(device),
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            local_files_only=local_files_only,
            force_download=force_download,
        )


def model_folder(source: str | Path) -> Path | None:
    """The folder that holds the model of ``source``; None where there is none, and it may be on the hub.

    Args:
        source: as for :meth:`Pretrained.from_pretrained`.

    Example:
        >>> model_folder("somebody/on-the-hub") is None
        True
    """
    path = Path(source)
    if path.is_file():
        raise NotADirectoryError(
            f"source must be a folder or a hub id, got the file {path}; its folder is {path.parent}"
        )
    if not path.is_dir():
        if str(source) in PACKAGED:
            return PACKAGED[str(source)]
        # A hub id is "user/name". What begins in a folder that is there was meant to be one: the hub is not bothered.
        if len(path.parts) == 2 and not Path(path.parts[0]).is_dir():
            return None
        raise FileNotFoundError(f"source must be {SOURCES}, got {str(source)!r}: there is no such folder")
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return folder
    held = sorted(inside.name for inside in path.iterdir())
    shown = f"{held[:8]}{' and more' if len(held) > 8 else ''}" if held else "nothing"
    unfinished = "; a training run writes model/ at its end, go on with resume=true" if "checkpoints" in held else ""
    raise FileNotFoundError(
        f"{path} must hold config.json (as save_pretrained writes it) or model/config.json (a run), "
        f"got {shown}{unfinished}"
    )


def begin_with(model: torch.nn.Module, source: str | Path, *, replaced: Collection[str] = ()) -> None:
    """Replace a U-Net's weights by those of a trained one, to train it on.

    Args:
        model: the U-Net; keeps its dtypes and its device.
        source: as for :meth:`Pretrained.from_pretrained`.
        replaced: fields of the configuration that may differ; what they decide is then read in another way than it was
            trained in.

    Example:
        >>> from rltok_rl.models import UNet, preset
        >>> begin_with(UNet(preset("pocket", num_lags=1)), "pocket")
        Traceback (most recent call last):
        ValueError: weights of 'pocket' are of another configuration (num_lags: 8 there, 1 here)
    """
    trained = type(model).from_pretrained(source)  # type: ignore[attr-defined] # a U-Net
    mine, theirs = model.config.to_dict(), trained.config.to_dict()  # type: ignore[operator, union-attr]
    differing = [name for name in mine if mine[name] != theirs[name]]
    unasked = [name for name in differing if name not in replaced]
    if unasked:
        shown = "; ".join(f"{name}: {theirs[name]} there, {mine[name]} here" for name in unasked)
        fits = [name for name, sizes in PRESETS.items() if all(theirs[key] == sizes[key] for key in sizes)]
        hint = f"; its sizes are those of the preset {fits[0]!r}" if fits and "width" in unasked else ""
        raise ValueError(f"weights of {str(source)!r} are of another configuration ({shown}){hint}")
    try:
        model.load_state_dict(trained.state_dict())
    except RuntimeError:
        raise ValueError(
            f"weights of {str(source)!r} do not fit another {' or '.join(differing)}: their shapes depend on it"
        ) from None

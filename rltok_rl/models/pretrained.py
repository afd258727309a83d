"""Weights of a model as a safetensors file: each as it is, shared ones once, and nothing taken that does not fit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rltok_rl.models.config import UNetConfig
from rltok_rl.models.presets import PRESETS
from rltok_rl.version import __version__


def write_weights(model: nn.Module, path: Path) -> None:
    """Write all weights; an interrupted write leaves what was there.

    Args:
        model: the model; weights that are one parameter in two places (tied) are written under the first name.
        path: the file.
    """
    tied = _tied_names(model)
    # Copies: what is written must be contiguous, and share memory with nothing.
    tensors = {
        name: weight.detach().to("cpu", copy=True).contiguous()
        for name, weight in model.state_dict().items()
        if name not in tied
    }
    partial = path.with_name(f".{path.name}.partial")
    try:
        save_file(tensors, partial, metadata={"format": "pt", "tied": json.dumps(tied)})
        partial.replace(path)
    except (SafetensorError, OSError) as error:  # a full disk, mostly: what could be written takes room
        partial.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written: {error}") from error


def read_weights(model: nn.Module, path: Path, device: torch.device) -> None:
    """Take all weights from a file, in its dtypes; a parameter that was tied when it was written is tied again.

    Args:
        model: the model that was written, or one of its shape; it may lie on the meta device.
        path: a file of :func:`write_weights`.
        device: where to put them.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; save_pretrained writes it beside config.json")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            tied = json.loads((file.metadata() or {}).get("tied", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} must be a whole safetensors file, got one that cannot be read: {error}") from error
    check_fit(model.state_dict(), tensors, tied, path)
    # Assigned, not copied: a copy would turn them into the dtype of the model.
    model.load_state_dict({**tensors, **{name: tensors[first] for name, first in tied.items()}}, assign=True)
    for name, first in tied.items():
        place, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(place), leaf, model.get_parameter(first))


def check_fit(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], tied: Mapping[str, str], path: Path) -> None:
    """Refuse weights that are not those of the model, naming the first that is not.

    Args:
        wanted: weights of the model by name.
        given: weights of the file.
        tied: names that stand for another one's weights.
        path: the file, for the message.

    Example:
        >>> check_fit({"a": torch.ones(2)}, {"a": torch.ones(3)}, {}, Path("w"))
        Traceback (most recent call last):
        ValueError: w must hold the weights of its config.json, got a of shape [3] instead of [2] (1 of 1 do not fit)
    """
    wrong = []
    for name, weight in wanted.items():
        there = given.get(tied.get(name, name))
        if there is None:
            wrong.append(f"no {name}")
        elif there.shape != weight.shape:
            wrong.append(f"{name} of shape {[*there.shape]} instead of {[*weight.shape]}")
        elif not there.dtype.is_floating_point:
            wrong.append(f"{name} of dtype {there.dtype} instead of a floating-point one")
    wrong += [f"{name}, which is not a weight of the model" for name in (*given, *tied) if name not in wanted]
    if wrong:
        count = f"{len(wrong)} of {len({*wanted, *given, *tied})} do not fit"
        raise ValueError(f"{path} must hold the weights of its config.json, got {wrong[0]} ({count})")


def _tied_names(model: nn.Module) -> dict[str, str]:
    """Further names of parameters that have several, with the first."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}


WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1
"""Raised when what older versions wrote can no longer be read as it is."""
_KIND = "rltok_rl-unet"

CARD = """\
---
{{ card_data }}
---

# A byte-level language model that draws its own token boundaries

A U-Net reads bytes, a policy decides after each of them whether a token ends there, tokens are thought about, and the
next byte is predicted. Where boundaries go was learned with policy gradients, by the method of
[You Can Learn Tokenization End-to-End with Reinforcement Learning](https://arxiv.org/abs/2602.13940).

## Use

```python
from rltok_rl import UNet, generate, text_to_ids

model = UNet.from_pretrained("{{ source | default("this folder, or its id on the hub", true) }}")  # ready to evaluate
out = model(text_to_ids("It is a truth universally acknowledged, ")[None])
print(out.boundaries, out.boundary_logits.sigmoid())  # [1, T] where tokens end, and how likely that was
print(generate(model, "It is ", max_bytes=100).texts)
```

Or from a shell: `rltok segment TEXT --model MODEL`, `rltok generate TEXT --model MODEL` and `rltok eval MODEL TEXT`,
where MODEL is the folder or the id.

`config.json` holds the fields of `UNetConfig`, `model.safetensors` the weights.
"""


class HubModel(
    PyTorchModelHubMixin,
    library_name="rltok_rl",
    pipeline_tag="text-generation",
    tags=["byte-level", "tokenization", "reinforcement-learning"],
    model_card_template=CARD,
):
    """A model as huggingface_hub sees it.

    Args:
        model: the U-Net.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def _save_pretrained(self, save_directory: Path) -> None:
        write_weights(self.model, save_directory / WEIGHTS)

    @classmethod
    def _from_pretrained(  # type: ignore[override] # its signature differs between versions of huggingface_hub
        cls,
        *,
        model_id: str,
        config: dict[str, Any] | None = None,
        model_class: type,
        device: torch.device,
        **where: Any,
    ) -> HubModel:
        made = read_config(config, model_id)
        kept = ("revision", "cache_dir", "force_download", "token", "local_files_only")
        folder = Path(model_id)
        if folder.is_dir():
            path = folder / WEIGHTS
        else:
            path = Path(hf_hub_download(model_id, WEIGHTS, **{name: where[name] for name in kept}))
        # Without memory first: weights that are replaced need not be drawn, and nobody's random numbers change.
        with torch.device("meta"):
            model = model_class(made)
        read_weights(model, path, device)
        return cls(model.eval())


def saved_config(model: Any) -> dict[str, Any]:
    """What ``config.json`` holds: the fields of the configuration, and who wrote them.

    Args:
        model: the U-Net.
    """
    return {"model_type": _KIND, "format": FORMAT, "rltok_rl_version": __version__, **model.config.to_dict()}


def read_config(values: Any, source: str | Path) -> UNetConfig:
    """The configuration that ``config.json`` holds.

    Args:
        values: what was read from it; None where there is none.
        source: where, for messages.

    Example:
        >>> read_config({"model_type": "gpt2"}, "somewhere")
        Traceback (most recent call last):
        ValueError: config.json of somewhere must be of model_type 'rltok_rl-unet', got 'gpt2'
    """
    here = f"{CONFIG} of {source}"
    if not isinstance(values, dict):
        raise ValueError(f"{here} must hold an object with the fields of UNetConfig, got {values!r}")
    fields = dict(values)
    kind = fields.pop("model_type", None)
    if kind != _KIND:
        raise ValueError(f"{here} must be of model_type {_KIND!r}, got {kind!r}")
    number, version = fields.pop("format", None), fields.pop("rltok_rl_version", "unknown")
    written = f"(written by rltok_rl {version}; this is {__version__})"
    if number != FORMAT:
        raise ValueError(f"{here} must be of format {FORMAT}, got {number!r} {written}")
    needed = [f.name for f in dataclasses.fields(UNetConfig) if f.default is dataclasses.MISSING]
    missing = [name for name in needed if name not in fields]
    if missing:
        raise ValueError(f"{here} must hold {needed}, got none for {missing} {written}")
    try:
        return UNetConfig.from_dict(fields)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{here} {written}: {error}") from error


def load(model_class: type, source: str | Path, *, device: torch.device, **where: Any) -> Any:
    """Find and load a model; arguments as for :meth:`rltok_rl.models.pretrained.Pretrained.from_pretrained`."""
    folder = model_folder(source)
    try:
        if folder is not None:
            read_config(json.loads((folder / CONFIG).read_text(encoding="utf-8")), folder)
        place = str(folder or source)
        return HubModel.from_pretrained(place, model_class=model_class, device=device, **where).model
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{CONFIG} of {folder or source} must be JSON, got text that is not: {error}") from None
    except (OSError, EntryNotFoundError, HFValidationError) as error:
        if folder is not None:
            raise
        first = str(error).strip().splitlines()
        raise FileNotFoundError(
            f"source must be {SOURCES}, got {str(source)!r}: there is no such folder, "
            f"and the hub gave nothing ({type(error).__name__}: {first[0] if first else ''})"
        ) from error


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

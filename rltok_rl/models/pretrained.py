"""Saving and loading models: a folder or a repository of the hub with weights, configuration and model card."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from rltok_rl.foreign import read_json
from rltok_rl.models.config import PRESETS, UNetConfig
from rltok_rl.models.weights import CONFIG, WEIGHTS, read_model, replaced_files, write_weights
from rltok_rl.version import __version__

try:
    from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError
except ImportError:  # a GPU machine with torch alone: models compute there, and cannot be saved or loaded

    class PyTorchModelHubMixin:  # type: ignore[no-redef] # noqa: D101
        def __init_subclass__(cls, **_: object) -> None:
            super().__init_subclass__()


CARD_FILE = "README.md"
FORMAT = 1  # increases when older files can no longer be read
_ASSETS = Path(__file__).parents[1] / "assets"
PACKAGED = {name: _ASSETS / name for name in ("pocket", "recall-world", "lexicon-world")}  # come with the package
SOURCES = f"a folder of save_pretrained, a run's folder, a hub id (user/name) or one of {[*PACKAGED]}"
_KIND = "rltok_rl-unet"
_HUB_OPTIONS = ("revision", "cache_dir", "token", "local_files_only", "force_download")
_Model = TypeVar("_Model", bound="Pretrained")

CARD = """\
---
{{ card_data }}
---

# A byte-level language model that draws its own token boundaries

A U-Net reads bytes, a policy decides after each of them whether a token ends there, transformer layers run on tokens,
and the next byte is predicted. The boundaries were learned with policy gradients, by the method of
[You Can Learn Tokenization End-to-End with Reinforcement Learning](https://arxiv.org/abs/2602.13940).

## Use

```python
from rltok_rl import UNet, generate, text_to_ids

model = UNet.from_pretrained("{{ source | default("this folder, or its id on the hub", true) }}")  # ready to evaluate
out = model(model.mark(text_to_ids("It is a truth universally acknowledged, ")[None]))
print(out.boundaries, out.boundary_logits.sigmoid())  # [1, T] where tokens end, and their probabilities
print(generate(model, "It is ", max_bytes=100).texts)
```

Or from a shell: `rltok segment TEXT --model MODEL`, `rltok generate TEXT --model MODEL` and `rltok eval MODEL TEXT`,
where MODEL is the folder or the id.

`config.json` holds the fields of `UNetConfig`, `model.safetensors` the weights.
"""


class Pretrained(
    PyTorchModelHubMixin,
    library_name="rltok_rl",
    pipeline_tag="text-generation",
    tags=["byte-level", "tokenization", "reinforcement-learning"],
    model_card_template=CARD,
):
    """Saving and loading of a U-Net."""

    config: UNetConfig

    def save_pretrained(self, folder: str | Path, **options: Any) -> Path:  # type: ignore[override]
        """Write ``model.safetensors``, ``config.json`` and, if there is none yet, a model card ``README.md``.

        If saving fails, the folder is left as it was. Weights keep their dtypes; a weight that is shared between two
        places is written once. Returns the folder.
        """
        folder = Path(folder)
        # The mixin deletes config.json before it saves, so it saves elsewhere.
        with replaced_files(folder) as partial:
            super().save_pretrained(partial, **{"repo_id": folder.name, **options})
            if (folder / CARD_FILE).exists():
                (partial / CARD_FILE).unlink()
        return folder

    def push_to_hub(self, repo_id: str, *, commit_message: str = "Add model", **options: Any) -> str:
        """Save the model to a repository ``user/name`` of the hub, created if necessary; returns the commit's address.

        Options such as ``private``, ``branch`` and ``token`` are those of ``PyTorchModelHubMixin.push_to_hub``.
        """
        card = {"source": repo_id}
        return super().push_to_hub(repo_id, commit_message=commit_message, model_card_kwargs=card, **options)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls: type[_Model], source: str | Path, *, device: str | torch.device = "cpu", **options: Any
    ) -> _Model:
        """Load a model in evaluation mode, with the dtypes of the saved weights. No random numbers are drawn.

        The source is a folder of :meth:`save_pretrained`, a run's folder, the name of a packaged model
        (:data:`PACKAGED`), or a hub id, with the hub's options ``revision``, ``cache_dir``, ``token``,
        ``local_files_only`` and ``force_download``. Folders come first and need no network.
        """
        if unknown := sorted(set(options) - set(_HUB_OPTIONS)):
            raise TypeError(f"unknown options {unknown} of from_pretrained; allowed are {['device', *_HUB_OPTIONS]}")
        folder = model_folder(source)
        name = folder or source
        try:
            config_file, weights = (_file(folder, str(source), file, options) for file in (CONFIG, WEIGHTS))
        except (OSError, EntryNotFoundError, HFValidationError) as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise FileNotFoundError(
                f"source must be {SOURCES}, got {str(source)!r}: there is no such folder, "
                f"and the hub gave nothing ({type(error).__name__}: {reason})"
            ) from error
        config = read_config(read_json(config_file, name=f"{CONFIG} of {name}"), name)
        return read_model(cls, config, f"{CONFIG} of {name}", weights, torch.device(device)).eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        write_weights(self, save_directory / WEIGHTS)  # type: ignore[arg-type] # a module
        head = {"model_type": _KIND, "format": FORMAT, "rltok_rl_version": __version__}
        text = json.dumps({**head, **self.config.to_dict()}, sort_keys=True, indent=2)
        (save_directory / CONFIG).write_text(text, encoding="utf-8")


def _file(folder: Path | None, hub_id: str, name: str, options: Mapping[str, Any]) -> Path:
    """Return the path of a model's file, downloaded if there is no folder."""
    return folder / name if folder is not None else Path(hf_hub_download(hub_id, name, **options))


def read_config(values: Any, source: str | Path) -> UNetConfig:
    """Return the configuration in the contents of a ``config.json``; ``source`` is named in errors."""
    here = f"{CONFIG} of {source}"
    if not isinstance(values, dict):
        raise ValueError(f"{here} must hold an object with the fields of UNetConfig, got {values!r}")
    head = {"model_type": None, "format": None, "rltok_rl_version": "unknown"}
    fields = {name: value for name, value in values.items() if name not in head}
    kind, number, version = ({**head, **values}[name] for name in head)
    if kind != _KIND:
        raise ValueError(f"{here} must be of model_type {_KIND!r}, got {kind!r}")
    written = f"(written by rltok_rl {version}; this is {__version__})"
    if type(number) is not int or number != FORMAT:
        raise ValueError(f"{here} must be of format {FORMAT}, got {number!r} {written}")
    try:
        return UNetConfig.from_dict(fields)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{here} {written}: {error}") from error


def model_folder(source: str | Path) -> Path | None:
    """Return the folder with the model of a ``source`` of ``from_pretrained``; None if it may be on the hub."""
    path = Path(source)
    if path.is_file():
        raise NotADirectoryError(f"source must be a folder or a hub id, got the file {path}")
    if not path.is_dir():
        if str(source) in PACKAGED:
            return PACKAGED[str(source)]
        # A hub id is "user/name"; a path into an existing folder is no hub id.
        if len(path.parts) == 2 and not Path(path.parts[0]).is_dir():
            return None
        raise FileNotFoundError(f"source must be {SOURCES}, got {str(source)!r}: there is no such folder")
    for folder in (path, path / "model"):
        if (folder / CONFIG).is_file():
            return folder
    names = sorted(inside.name for inside in path.iterdir())
    shown = f"{names[:8]}{' and more' if len(names) > 8 else ''}" if names else "nothing"
    if "checkpoints" in names:
        shown += "; a training run writes model/ at its end, resume it with resume=true"
    expected = "config.json (as save_pretrained writes it) or model/config.json (a run)"
    raise FileNotFoundError(f"{path} must hold {expected}, got {shown}")


def begin_with(model: nn.Module, source: str | Path, *, replaced: Collection[str] = ()) -> None:
    """Replace a U-Net's weights by those of a ``source`` of ``from_pretrained``, to continue training from them.

    The model keeps its dtypes and its device. Fields of the configuration in ``replaced`` may differ.
    """
    trained = type(model).from_pretrained(source)  # type: ignore[attr-defined] # a U-Net
    ours, theirs = model.config.to_dict(), trained.config.to_dict()  # type: ignore[operator, union-attr]
    differing = [name for name in ours if ours[name] != theirs[name]]
    refused = [name for name in differing if name not in replaced]
    if refused:
        shown = "; ".join(f"{name}: {theirs[name]} there, {ours[name]} here" for name in refused)
        fits = [name for name, sizes in PRESETS.items() if all(theirs[key] == sizes[key] for key in sizes)]
        hint = f"; its sizes are those of the preset {fits[0]!r}" if fits and "width" in refused else ""
        raise ValueError(f"weights of {str(source)!r} are of another configuration ({shown}){hint}")
    try:
        model.load_state_dict(trained.state_dict())
    except RuntimeError:
        raise ValueError(
            f"weights of {str(source)!r} do not fit another {' or '.join(differing)}: their shapes depend on it"
        ) from None

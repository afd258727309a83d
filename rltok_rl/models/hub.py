"""Between a U-Net and huggingface_hub: what is written beside the weights, and where models are found.

Imported by :mod:`rltok_rl.models.pretrained` alone, when a model is saved or loaded.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError

from rltok_rl.models.config import UNetConfig
from rltok_rl.models.pretrained import SOURCES, model_folder
from rltok_rl.models.weights import read_weights, write_weights
from rltok_rl.version import __version__

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

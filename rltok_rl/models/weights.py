"""Weights of a model as a safetensors file: each as it is, shared ones once, and nothing taken that does not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


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

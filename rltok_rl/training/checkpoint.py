"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, a checksum of both.

    <folder>/update-00000120/tensors.safetensors, state.json, manifest.json

A checkpoint is written under another name, flushed to disk and then renamed, so that a process that is killed at any
moment leaves either all of it or none. Nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rltok_rl.data.disk import checksum, flush

_PREFIX, _TENSORS, _STATE, _MANIFEST = "update-", "tensors.safetensors", "state.json", "manifest.json"
_GOING = "going-"
_PLAIN = (str, int, float, bool, type(None))


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read.

    Args:
        message: what is wrong with which file.
        previous: an older checkpoint that is whole; None where there is none.
    """

    def __init__(self, message: str, previous: Path | None = None) -> None:
        offer = f"; {previous} is older and whole" if previous else "; there is no older one"
        super().__init__(message + offer)
        self.previous = previous


def save_checkpoint(folder: Path, update: int, state: Mapping[str, Any], *, keep: int = 2) -> Path:
    """Write a state; older checkpoints beyond ``keep`` are removed afterwards.

    Args:
        folder: where checkpoints lie; made if it is not there.
        update: number of the update that the state was taken after.
        state: nested dicts, lists and tuples of tensors, numbers, strings and None.
        keep: how many of the newest to keep, this one included.

    Returns:
        The checkpoint's folder.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    tensors: dict[str, Tensor] = {}
    skeleton = take_apart(state, tensors, "state")
    final = folder / f"{_PREFIX}{update:08d}"
    partial = folder / f".{final.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".{_PREFIX}*.partial"):  # by a process that was killed as it wrote
            shutil.rmtree(left)
        partial.mkdir()
        save_file(tensors, partial / _TENSORS)
        (partial / _STATE).write_text(json.dumps(skeleton))
        sums = {name: checksum(partial / name) for name in (_TENSORS, _STATE)}
        (partial / _MANIFEST).write_text(json.dumps({"update": update, "sha256": sums}, indent=1) + "\n")
        for name in (_TENSORS, _STATE, _MANIFEST):
            flush(partial / name)
        if final.exists():
            _remove(final)
        partial.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"{final} could not be written: {error}", _newest_whole(folder)) from error
    older = [path for path in list_checkpoints(folder) if path.name < final.name]
    for old in older[: len(older) - (keep - 1)]:
        _remove(old)
    return final


def _remove(path: Path) -> None:
    """Take a checkpoint away as a whole: what is deleted file by file does not bear the name of a checkpoint."""
    going = path.with_name(f"{_GOING}{path.name}")
    shutil.rmtree(going, ignore_errors=True)  # of one who was killed here
    path.rename(going)
    shutil.rmtree(going)


def list_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a folder, oldest first; those that were not finished are not among them."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.is_dir())


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Read a checkpoint, after checking that it is what was written.

    Args:
        path: a checkpoint, or a folder of checkpoints of which the newest is taken.

    Returns:
        The number of its update, and the state, tensors on the CPU.
    """
    if not path.name.startswith(_PREFIX):
        found = list_checkpoints(path)
        if not found:
            raise FileNotFoundError(f"{path} holds no checkpoint")
        path = found[-1]
    wrong = _what_is_wrong(path)
    if wrong:
        previous = _newest_whole(path.parent, before=path)
        how = f"; remove {path} to go on without it" if previous else ""
        raise CheckpointError(f"{path / wrong[0]} {wrong[1]}{how}", previous)
    manifest = json.loads((path / _MANIFEST).read_text())
    tensors = load_file(path / _TENSORS)
    return int(manifest["update"]), put_together(json.loads((path / _STATE).read_text()), tensors)


def _what_is_wrong(path: Path) -> tuple[str, str] | None:
    """Name of a file and what is wrong with it; None if all is as written."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        sums, update = dict(manifest["sha256"]), int(manifest["update"])
    except (OSError, ValueError, KeyError, TypeError):
        return _MANIFEST, "is missing or cannot be read"
    if path.name != f"{_PREFIX}{update:08d}":
        return _MANIFEST, f"belongs to update {update}"
    for name in (_TENSORS, _STATE):
        if not (path / name).exists():
            return name, "is missing"
        if checksum(path / name) != sums.get(name):
            return name, "is not what was written (its checksum differs)"
    return None


def _newest_whole(folder: Path, before: Path | None = None) -> Path | None:
    older = [path for path in list_checkpoints(folder) if before is None or path.name < before.name]
    return next((path for path in reversed(older) if _what_is_wrong(path) is None), None)


def take_apart(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """What JSON can hold, with a name in the place of every tensor.

    Args:
        value: nested dicts, lists and tuples of tensors, numbers, strings and None.
        tensors: filled with copies on the CPU, by these names.
        where: what the value is called, for the message where it cannot be taken apart.

    Example:
        >>> tensors = {}
        >>> put_together(take_apart({"a": (torch.ones(1), 2)}, tensors, "state"), tensors)
        {'a': (tensor([1.]), 2)}
    """
    if isinstance(value, Tensor):
        name = str(len(tensors))
        # A copy of its own: views and shared memory are not for files.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        pairs = [[take_apart(k, tensors, where), take_apart(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [take_apart(v, tensors, f"{where}[{n}]") for n, v in enumerate(value)]}
    if type(value) in _PLAIN:
        return value
    raise TypeError(
        f"{where} must be made of tensors, numbers, strings, None, dicts, lists, got {type(value).__name__}"
    )


def put_together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What :func:`take_apart` took apart.

    Args:
        value: what it returned.
        tensors: what it filled.
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {put_together(k, tensors): put_together(v, tensors) for k, v in content}
    parts = [put_together(v, tensors) for v in content]
    return parts if kind == "list" else tuple(parts)


def same(one: Any, two: Any) -> bool:
    """Whether two states are equal to the last bit, types included.

    Example:
        >>> same({"a": torch.ones(2), 1: (None, 0.1)}, {"a": torch.ones(2), 1: (None, 0.1)})
        True
    """
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bool(torch.equal(one.cpu(), two.cpu()))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two or one != one and two != two)

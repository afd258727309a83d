"""Checkpoints, which hold the states of random generators too: tensors in safetensors, the rest in JSON, checksums.

A checkpoint, ``update-00000120``, is written under another name, flushed to disk and then renamed: a process that is
killed at any moment leaves all of it or none. Its manifest records the length and the SHA-256 of the run's other files
at that moment, which are on disk before it. Nothing is pickled.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rltok_rl.data.disk import checksum, flush
from rltok_rl.foreign import MOST_STATE, read_json
from rltok_rl.utils import check_count, is_gpu

_PREFIX, _TENSORS, _STATE, _MANIFEST = "update-", "tensors.safetensors", "state.json", "manifest.json"
CHECKPOINT = re.compile(rf"{_PREFIX}[0-9]{{8,}}")
"""Names of the folders of checkpoints."""
_REMOVED = "going-"
_LEFTOVER = re.compile(rf"\.{_PREFIX}[0-9]{{8,}}\.partial|{_REMOVED}{_PREFIX}[0-9]{{8,}}")
FORMAT = 1
"""Manifest version."""
_MOST_SHOWN = 2000  # characters of what does not fit
_PLAIN = (str, int, float, bool, type(None))


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read or written; ``previous`` is the newest older one that is intact, if any."""

    def __init__(self, message: str, previous: Path | None = None) -> None:
        offer = f"; {previous} is older and intact" if previous else "; there is no older one"
        super().__init__(message + offer)
        self.previous = previous


def save_checkpoint(folder: Path, update: int, state: Mapping[str, Any], *, files: Sequence[str] = ()) -> Path:
    """Write a checkpoint into ``folder``, then remove all but this one and the one before it; returns its own folder.

    The state is made of nested dicts, lists and tuples of tensors, numbers, strings and None. ``files`` are names in
    the folder above, of files that may be missing: they are flushed to disk, and their lengths and hashes recorded.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = take_apart(state, tensors, "state")
    final = folder / f"{_PREFIX}{update:08d}"
    partial = folder / f".{final.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        partial.mkdir()
        save_file(tensors, partial / _TENSORS)
        (partial / _STATE).write_text(json.dumps(skeleton))
        sums = {name: checksum(partial / name) for name in (_TENSORS, _STATE)}
        recorded = {name: _record(folder.parent / name) for name in files}
        flush(folder.parent)  # the names of these files
        manifest = {"format": FORMAT, "update": update, "sha256": sums, "files": recorded}
        (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        for name in (_TENSORS, _STATE, _MANIFEST):
            flush(partial / name)
        flush(partial)
        if final.exists():
            _remove(final)
        partial.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"{final} could not be written: {error}", _newest_intact(folder)) from error
    checkpoints = list_checkpoints(folder)
    number = checkpoints.index(final)  # later ones are damaged: the run has resumed from an earlier one
    for other in (*checkpoints[: max(0, number - 1)], *checkpoints[number + 1 :]):
        _remove(other)
    return final


def _record(path: Path) -> dict[str, Any]:
    """Length and hash of a file that is on disk; of a missing one as of an empty one."""
    if path.exists():
        flush(path)
    num_bytes = path.stat().st_size if path.exists() else 0
    return {"bytes": num_bytes, "sha256": checksum(path, num_bytes)}


def _remove(path: Path) -> None:
    """Rename a checkpoint before deleting its files, so that a crash leaves no half of it under its name."""
    renamed = path.with_name(f"{_REMOVED}{path.name}")
    path.rename(renamed)
    flush(path.parent)
    shutil.rmtree(renamed)


def list_leftovers(folder: Path) -> list[Path]:
    """Return checkpoints that a killed process had not finished writing or removing."""
    return sorted(path for path in folder.glob(f"*{_PREFIX}*") if _LEFTOVER.fullmatch(path.name))


def remove_leftovers(folder: Path) -> None:
    """Remove the checkpoints that a killed process had not finished writing or removing."""
    for path in list_leftovers(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all complete checkpoints of a folder, oldest first; other files and folders are ignored."""
    paths = [path for path in folder.glob(f"{_PREFIX}*") if CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=_update)


def _update(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Read a checkpoint, or the newest of a folder; returns its update, and the state on the CPU."""
    if not CHECKPOINT.fullmatch(path.name):
        checkpoints = list_checkpoints(path)
        if not checkpoints:
            raise FileNotFoundError(f"{path} holds no checkpoint")
        path = checkpoints[-1]
    damage = find_damage(path)
    if damage:
        previous = _newest_intact(path.parent, before=path)
        hint = f"; remove {path} to resume without it" if previous else ""
        raise CheckpointError(f"{damage}{hint}", previous)
    return _update(path), read_state(path)


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint that :func:`find_damage` has found intact, on the CPU."""
    try:
        state = put_together(read_json(path / _STATE, MOST_STATE), load_file(path / _TENSORS))
        if not isinstance(state, dict):
            raise TypeError(f"its state must be a dict, got {type(state).__name__}")
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} cannot be read ({reason})", _newest_intact(path.parent, before=path)) from None
    return state


def find_damage(path: Path) -> str | None:
    """Name the damaged file of a checkpoint and its damage; None if it is intact.

    A checkpoint of a later format is an error: it may be intact, and nothing may replace it.
    """
    manifest, update = path / _MANIFEST, -1
    try:
        content = dict(read_json(manifest))
        version = check_count("format", content["format"])
        if version <= FORMAT:
            sums, update = dict(content["sha256"]), check_count("update", content["update"], minimum=0)
            recorded_files(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"it must hold {error}, got none" if isinstance(error, KeyError) else str(error)
        return f"{manifest} {f'cannot be read: {reason}' if manifest.exists() else 'is missing'}"
    if version > FORMAT:
        raise ValueError(
            f"{manifest} must have a format of at most {FORMAT}, got {version}: a later version of rltok_rl wrote it; "
            f"install that version, or choose another folder"
        )
    if update != _update(path):
        return f"{manifest} belongs to update {update}"
    for name in (_TENSORS, _STATE):
        if not (path / name).is_file():  # reading a pipe would block
            return f"{path / name} is missing"
        if name == _STATE and (path / name).stat().st_size > MOST_STATE:
            return f"{path / name} must have at most {MOST_STATE:,} bytes, has more"
        if checksum(path / name) != sums.get(name):
            return f"{path / name} is damaged (its checksum differs)"
    return None


def recorded_files(path: Path) -> dict[Path, tuple[int, str]]:
    """Return length and hash of the files that a checkpoint has recorded."""
    manifest, run = dict(read_json(path / _MANIFEST)), path.parent.parent
    files = dict(manifest["files"])
    if other := [n for n in files if Path(n).name != n or ((run / n).exists() and not (run / n).is_file())]:
        raise ValueError(f"{path / _MANIFEST} must record files of the run's folder, got {other}")
    return {
        run / name: (check_count(f"bytes of {name}", file["bytes"], minimum=0), str(file["sha256"]))
        for name, file in files.items()
    }


def find_lost(path: Path) -> dict[Path, str]:
    """Describe the recorded files of a checkpoint that no longer begin with what they held; they may have grown."""
    problems = {}
    for file, (num_bytes, digest) in recorded_files(path).items():
        size = file.stat().st_size if file.exists() else 0
        what = f"of the {num_bytes:,} bytes that it had at {path.name}"
        if size < num_bytes:
            problems[file] = f"{file} has lost {num_bytes - size:,} {what}"
        elif checksum(file, num_bytes) != digest:
            problems[file] = f"{file} was changed in some {what}"
    return problems


def _newest_intact(folder: Path, before: Path | None = None) -> Path | None:
    older = [path for path in list_checkpoints(folder) if before is None or _update(path) < _update(before)]
    return next((path for path in reversed(older) if find_damage(path) is None), None)


def take_apart(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """Return a JSON value with names in place of tensors, whose copies on the CPU are added to ``tensors``.

    Example:
        >>> tensors = {}
        >>> put_together(take_apart({"a": (torch.ones(1), 2)}, tensors, "state"), tensors)
        {'a': (tensor([1.]), 2)}
    """
    if isinstance(value, Tensor):
        name = str(len(tensors))
        # A copy, because safetensors refuses views and shared memory.
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
    """Return the value that :func:`take_apart` took apart."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {put_together(k, tensors): put_together(v, tensors) for k, v in content}
    parts = [put_together(v, tensors) for v in content]
    return parts if kind == "list" else tuple(parts)


@contextmanager
def part_of(state: Mapping[str, Any], name: str) -> Iterator[Any]:
    """Yield a part of a trainer's state; an error in the block becomes one sentence that names the part."""
    if name not in state:
        raise ValueError(
            f"state must be that of a trainer of this version, got one without {name!r}; resume with the version "
            f"that wrote it, or train anew in another folder"
        )
    try:
        yield state[name]
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removeprefix("ValueError: ")
        raise ValueError(
            f"{name} of the state must be that of a trainer with the same model, loss and options, got another "
            f"({reason:.{_MOST_SHOWN}})"
        ) from None


def seed_everything(seed: int) -> None:
    """Seed torch, Python and NumPy; with the same integer in all processes that train together."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of torch's, Python's and NumPy's generators, and of the device's if it is a GPU."""
    name, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
    }
    if is_gpu(device):
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Restore the states of :func:`random_states`; without one of a GPU, its generator keeps its own."""
    torch.set_rng_state(as_state(states["torch"]))
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(as_state(states["cuda"]), device)


def as_state(state: Tensor) -> Tensor:
    """Return a generator's state as a uint8 tensor on the CPU."""
    if not isinstance(state, Tensor):
        raise TypeError(f"state of a generator must be a tensor, got {type(state).__name__}")
    return state.to("cpu", torch.uint8)

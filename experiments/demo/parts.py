"""Plan of the demo: its two parts, the options of their runs, a training size that fits the time, saved progress."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.runs.build import make_trainer

from rltok_rl.training.atomic_files import replace_text

SYSTEMS = {"learned": (), "uniform": ("actor=uniform",)}
"""Overrides of the two systems that each part trains side by side."""
_SNAPSHOTS = ("snapshots.count=16", "snapshots.spacing=linear", "snapshots.batches=6")
_QUICK = ("data.num_rows=4", "data.num_steps=64", "snapshots.num_bytes=80")
_QUICK_BYTES = 1024
_UNTIMED, _TIMED = 2, 4  # updates of the speed measurement


@dataclass(frozen=True)
class Part:
    """Two runs with equal initial weights on equal bytes: one learns its boundaries, one spaces them evenly."""

    name: str
    overrides: tuple[str, ...]
    """Options of both runs, as ``rltok train`` takes them."""
    least_bytes: int
    most_bytes: int
    share: float
    """Share of the remaining time."""
    policy: tuple[str, ...] = ()
    """Further options of the learned run."""

    def quick(self) -> Part:
        """Return the part with a few small updates."""
        overrides = (*self.overrides, *_QUICK)
        return replace(self, overrides=overrides, least_bytes=_QUICK_BYTES, most_bytes=_QUICK_BYTES)


# Small batches, few tokens and a fast policy: most of the answer within a minute.
RECALL = Part(
    "recall",
    (
        "experiment=recall",
        "data.num_rows=16",
        "model.overrides.target_rate=0.15",
        "model.overrides.boundary_scale=0.125",
    ),
    least_bytes=1_228_800,
    most_bytes=1_740_800,
    share=0.5,
)
# The recipe of books, with small batches and a stronger rate pressure: words within a minute.
ENGLISH = Part(
    "english",
    (
        *("experiment=books", "data=python-docs", "data.source=python-docs", "data.min_bytes=2", "data.split_by=null"),
        *("data.held_out=0.05", "data.num_rows=16", "data.num_steps=128"),
    ),
    least_bytes=409_600,
    most_bytes=4_096_000,
    share=1.0,
    policy=("rate.coefficient=0.06",),
)


def run_overrides(part: Part, system: str, *, total_bytes: int, out: Path) -> list[str]:
    """Return the command line of a run.

    Example:
        >>> part = Part("recall", ("experiment=recall",), 1, 2, 0.5)
        >>> run_overrides(part, "uniform", total_bytes=5000, out=Path("runs/a"))[:3]
        ['experiment=recall', 'actor=uniform', 'optim.total_bytes=5000']
    """
    quoted = str(out).replace("\\", "\\\\").replace("'", "\\'")
    size = (f"optim.total_bytes={total_bytes}", "optim.warm_up=0.0714286", "compute.threads=1")
    return [*part.overrides, *(SYSTEMS[system] or part.policy), *size, *_SNAPSHOTS, f"out='{quoted}'"]


def measure_speed(overrides: list[str]) -> tuple[float, int]:
    """Time a few updates of a run that is not kept; return bytes per second, and bytes per update."""
    config = compose_config(overrides)
    torch.set_num_threads(config.compute.threads or torch.get_num_threads())
    trainer, _ = make_trainer(config)
    for _ in range(_UNTIMED):
        trainer.update()
    start = time.perf_counter()
    for _ in range(_TIMED):
        trainer.update()
    return _TIMED * trainer.bytes_per_update / (time.perf_counter() - start), trainer.bytes_per_update


def fitting_bytes(part: Part, *, speed: float, seconds: float, update: int) -> int:
    """Return the bytes to train on in a time: whole updates of ``update`` bytes, within the part's limits.

    Example:
        >>> part = Part("recall", (), least_bytes=4096, most_bytes=1_000_000, share=0.5)
        >>> [fitting_bytes(part, speed=1e4, seconds=seconds, update=4096) for seconds in (10.0, 0.0)]
        [98304, 4096]
    """
    num_bytes = min(max(speed * seconds, part.least_bytes), part.most_bytes)
    return max(1, int(num_bytes // update)) * update


class Progress(dict[str, Any]):
    """Decisions and findings so far, in ``demo.json``: a demo that is started again resumes with the same bytes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "demo.json"
        super().__init__(json.loads(self.path.read_text()) if self.path.exists() else {})

    def save(self, **content: Any) -> None:
        """Add content, and write the file."""
        self.update(content)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self.path, json.dumps(self, indent=1) + "\n")


def free_folder(folder: Path) -> Path:
    """Return the folder itself unless it has a finished demo, else the first free one of ``demo-2``, ``demo-3``, ..."""
    number, free = 1, folder
    while Progress(free).get("finished"):
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free

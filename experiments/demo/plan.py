"""What the demo trains, how long each part may take, and a folder that remembers both."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer

CONF = Path(__file__).resolve().parent.parent / "conf"
_WARM_UP, _TIMED = 2, 4  # updates that tell how fast a machine is


@dataclass(frozen=True)
class Part:
    """Two trainings from one beginning, on the same bytes: one learns its boundaries, one spaces them evenly."""

    name: str
    """Of its folders."""
    overrides: tuple[str, ...]
    """What both have in common, as ``rltok train`` takes it."""
    least_bytes: int
    """Fewer are not worth training on."""
    most_bytes: int
    """More than these change little."""
    share: float
    """Of the time that is left when it begins."""
    policy: tuple[str, ...] = ()
    """What is asked of the learned policy besides; even spacing has none."""


@dataclass(frozen=True)
class Actor:
    """Who draws the boundaries of a training."""

    name: str
    overrides: tuple[str, ...] = ()


ACTORS = (Actor("learned"), Actor("uniform", ("actor=uniform",)))
LOOKS = ("snapshots.count=16", "snapshots.spacing=linear", "snapshots.batches=6")


def configured(overrides: list[str]) -> TrainConfig:
    """The configuration of a training.

    Args:
        overrides: as ``rltok train`` takes them.

    Example:
        >>> configured(["experiment=recall", "seed=3"]).data.source
        'recall'
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        made = OmegaConf.to_object(compose("train", overrides))
    assert isinstance(made, TrainConfig)
    return made


def overrides_of(part: Part, actor: Actor, *, total_bytes: int, out: Path, threads: int = 1) -> list[str]:
    """The options of a training, a word each.

    Args:
        part: of the demo.
        actor: who draws its boundaries.
        total_bytes: to train on.
        out: folder of the run.
        threads: of torch.

    Example:
        >>> part = Part("recall", ("experiment=recall",), 1, 2, 0.5)
        >>> overrides_of(part, ACTORS[1], total_bytes=5000, out=Path("runs/a"))[:3]
        ['experiment=recall', 'actor=uniform', 'optim.total_bytes=5000']
    """
    return [
        *part.overrides,
        *(actor.overrides or part.policy),
        f"optim.total_bytes={total_bytes}",
        "optim.warm_up=0.0714286",
        f"compute.threads={threads}",
        *LOOKS,
        f"out='{_quoted(out)}'",
    ]


def measured_speed(overrides: list[str]) -> float:
    """Bytes per second of a few updates, which are thrown away.

    Args:
        overrides: of the training.
    """
    config = configured(overrides)
    torch.set_num_threads(config.compute.threads or torch.get_num_threads())
    trainer, _ = make_trainer(config)
    for _ in range(_WARM_UP):
        trainer.update()
    start = time.perf_counter()
    for _ in range(_TIMED):
        trainer.update()
    return _TIMED * trainer.bytes_per_update / (time.perf_counter() - start)


def bytes_that_fit(part: Part, *, speed: float, seconds: float, update: int) -> int:
    """How much to train on: what fits into the time, in whole updates, within the limits of the part.

    Args:
        part: of the demo.
        speed: bytes per second.
        seconds: for this training.
        update: bytes of an update.

    Example:
        >>> part = Part("recall", (), least_bytes=4096, most_bytes=1_000_000, share=0.5)
        >>> bytes_that_fit(part, speed=1e4, seconds=10.0, update=4096)
        98304
        >>> bytes_that_fit(part, speed=1e4, seconds=0.0, update=4096)
        4096
    """
    wanted = min(max(speed * seconds, part.least_bytes), part.most_bytes)
    return max(1, int(wanted // update)) * update


class Memory:
    """What the demo has decided and found so far, in ``demo.json`` of its folder.

    A second start goes on where the first one was stopped, with the same bytes, whatever the machine is doing now.

    Args:
        folder: of the demo.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "demo.json"
        self.found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def note(self, **content: Any) -> None:
        """Remember something.

        Args:
            **content: what JSON can hold.
        """
        self.found |= content
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.found, indent=1) + "\n")
        partial.replace(self.path)


def folder_for(wanted: Path) -> Path:
    """The folder itself where nothing finished lies in it, or else the next one that is free: ``demo-2``, ``demo-3``.

    Args:
        wanted: folder of the demo.
    """
    number, folder = 1, wanted
    while Memory(folder).found.get("finished"):
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _quoted(path: Path) -> str:
    """A path between single quotes, as Hydra reads it."""
    return str(path).replace("\\", "\\\\").replace("'", "\\'")

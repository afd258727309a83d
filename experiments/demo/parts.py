"""The two parts of the demo: options and size of their runs, saved progress, and two training processes side by side.

Each process is ``python -m rltok_rl.experiments.train``, so everything the demo shows can be had without it. On a
single core they take turns, which doubles the time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.commands.option_errors import quoted
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies.parallel_jobs import ONE_THREAD

from rltok_rl.data.disk import replace_text
from rltok_rl.training.metrics import read_lines, read_table

SYSTEMS = {"learned": (), "uniform": ("actor=uniform",)}
"""Overrides of the two systems that each part trains side by side."""
_SNAPSHOTS = ("snapshots.count=16", "snapshots.spacing=linear", "snapshots.batches=6")
_QUICK = ("data.num_rows=4", "data.num_steps=64", "snapshots.num_bytes=80")
_QUICK_BYTES = 1024
_UNTIMED, _TIMED = 2, 4  # updates of the speed measurement
_POLL = 0.2  # seconds
_PATIENCE = 20.0  # seconds to finish an update and save, before a process is killed
# Statuses of a run that goes on, is done, or was ended by this process; one that has saved exits with 128 + SIGTERM.
_ENDED = (0, None, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)


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
# Small batches and a fast policy: words within a minute. It learns from returns, so that both runs cost the same.
ENGLISH = Part(
    "english",
    (
        *("model=toy", "optim=language", "data=python-docs", "data.held_out=0.05"),
        *("data.num_rows=16", "data.num_steps=128"),
    ),
    least_bytes=409_600,
    most_bytes=4_096_000,
    share=1.0,
    policy=(
        *("estimator=short_return", "estimator.gamma=0.9", "baseline=batch_mean", "loss.policy=0.1"),
        *("rate=pi", "rate.coefficient=0.03", "model.overrides.boundary_scale=0.25"),
    ),
)


def run_overrides(part: Part, system: str, *, total_bytes: int, out: Path) -> list[str]:
    """Return the command line of a run.

    Example:
        >>> part = Part("recall", ("experiment=recall",), 1, 2, 0.5)
        >>> run_overrides(part, "uniform", total_bytes=5000, out=Path("runs/a"))[:3]
        ['experiment=recall', 'actor=uniform', 'optim.total_bytes=5000']
    """
    size = (f"optim.total_bytes={total_bytes}", "optim.warm_up=0.0714286", "compute.threads=1")
    return [*part.overrides, *(SYSTEMS[system] or part.policy), *size, *_SNAPSHOTS, f"out={quoted(str(out))}"]


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


class DemoState(dict[str, Any]):
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
    while DemoState(free).get("finished"):
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


@dataclass(frozen=True)
class RunState:
    """Progress of a run."""

    name: str
    bytes_done: int
    snapshots: list[dict[str, Any]]
    finished: bool


class RunFailed(RuntimeError):
    """The process of a run ended with an error; the message has the end of its log."""


class Race:
    """Runs that train at the same time, given by command line and folder, until all are finished or stopped."""

    def __init__(self, runs: Mapping[str, Sequence[str]], folders: Mapping[str, Path]) -> None:
        self.runs, self.folders = runs, folders
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Race:
        for name, overrides in self.runs.items():
            folder = self.folders[name]
            if (folder / "summary.json").exists():
                continue  # finished before the demo was stopped
            folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-W", "ignore", "-m", "rltok_rl.experiments.train", *overrides, "resume=true"]
            # A new session: Ctrl-C reaches the demo alone, which lets its runs save.
            options: Any = {
                "env": {**os.environ, **ONE_THREAD},
                "stdin": subprocess.DEVNULL,
                "start_new_session": True,
            }
            with (folder / "log.txt").open("ab") as log:
                self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, **options)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def states(self) -> list[RunState]:
        """Return the progress of all runs."""
        states = []
        for name, folder in self.folders.items():
            num_bytes = read_table(folder / "metrics.csv").get("bytes", [0])
            finished = (folder / "summary.json").exists()
            states.append(RunState(name, int(num_bytes[-1]), read_lines(folder / "samples.jsonl"), finished))
        return states

    def follow(self, show: Callable[[list[RunState]], None], *, deadline: float, stop: Callable[[], bool]) -> str:
        """Call ``show`` with the progress several times a second until the end.

        Returns:
            ``"done"``, ``"late"`` (``perf_counter`` passed the deadline) or ``"stopped"`` (``stop`` returned True).
        """
        while any(process.poll() is None for process in self.processes.values()):
            show(self.states())
            if stop():
                self.end()
                return "stopped"
            if time.perf_counter() > deadline:
                self.end()
                self.check()
                return "late"
            time.sleep(_POLL)
        self.check()
        show(self.states())
        return "done"

    def check(self) -> None:
        """Raise RunFailed if a process ended with an error, except by the signals of :meth:`end`."""
        for name, process in self.processes.items():
            if process.poll() not in _ENDED:
                log = self.folders[name] / "log.txt"
                lines = log.read_text(errors="replace").strip().splitlines()[-12:]
                message = f"the training {name!r} ended with status {process.returncode}; {log} ends with"
                raise RunFailed("\n  ".join([message, *lines]))

    def end(self) -> None:
        """Ask all processes to save and exit; kill those that do not."""
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            process.terminate()  # once: a second signal would end it before it has saved
        latest = time.perf_counter() + _PATIENCE
        for process in running:
            try:
                process.wait(max(0.1, latest - time.perf_counter()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

"""Two training processes side by side, followed through the files of their run folders.

Each is ``python -m rltok_rl.experiments.train``, so everything the demo shows can be had without it. On a single core
they take turns, which doubles the time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltok_rl.training.metrics import read_lines, read_table

_POLL = 0.2  # seconds
_PATIENCE = 20.0  # seconds to finish an update and save, before a process is killed
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}


@dataclass(frozen=True)
class RunState:
    """Progress of a run."""

    name: str
    bytes_done: int
    snapshots: list[dict[str, Any]]
    finished: bool


class TrainingFailed(RuntimeError):
    """A training process ended with an error; the message has the end of its log."""


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
                "env": {**os.environ, **_ONE_THREAD},
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
            ``"done"``, ``"late"`` (``time.perf_counter`` passed the deadline) or ``"stopped"`` (``stop`` said so).
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
        """Raise TrainingFailed if a process ended with an error; signals sent by :meth:`end` are none."""
        for name, process in self.processes.items():
            if process.poll() not in (0, None, -signal.SIGTERM, -signal.SIGKILL):
                log = self.folders[name] / "log.txt"
                lines = log.read_text(errors="replace").strip().splitlines()[-12:]
                message = f"the training {name!r} ended with status {process.returncode}; {log} ends with"
                raise TrainingFailed("\n  ".join([message, *lines]))

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

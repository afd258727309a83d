"""Two trainings side by side, each a process of its own, watched through the folders that they write.

They are the command that anybody would type, ``python -m rltok_rl.experiments.train``, so that what the demo shows can
be had without it. Where there is one core they take turns on it, which takes twice as long.
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
from types import TracebackType
from typing import Any

from rltok_rl.training.metrics import read_lines, read_table

_POLL = 0.2  # seconds
_PATIENCE = 20.0  # seconds to finish an update and save, before a training is ended
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}


@dataclass(frozen=True)
class Standing:
    """How far a training came."""

    name: str
    bytes_done: int
    total_bytes: int
    looks: list[dict[str, Any]]
    """At held-out text, the earliest first."""
    finished: bool

    @property
    def share_done(self) -> float:
        """Of all bytes, in [0, 1]."""
        return min(1.0, self.bytes_done / self.total_bytes)


class TrainingFailed(RuntimeError):
    """A training ended with an error; the message has the end of what it said."""


class Race:
    """Trainings that run at the same time, until all are done, the time is up, or somebody asks them to stop.

    Args:
        runs: the options of each training, by name.
        folders: where each writes, by name.
        total_bytes: that each trains on.
    """

    def __init__(self, runs: Mapping[str, Sequence[str]], folders: Mapping[str, Path], total_bytes: int) -> None:
        self.runs, self.folders, self.total_bytes = runs, folders, total_bytes
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Race:
        environment = {**os.environ, **_ONE_THREAD}
        for name, overrides in self.runs.items():
            folder = self.folders[name]
            if (folder / "summary.json").exists():
                continue  # done when the demo was stopped
            folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-W", "ignore", "-m", "rltok_rl.experiments.train", *overrides, "resume=true"]
            with (folder / "log.txt").open("ab") as log:
                # A session of its own: Ctrl-C is for the demo, which asks its trainings to save.
                self.processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def running(self) -> bool:
        """Whether any training goes on."""
        return any(process.poll() is None for process in self.processes.values())

    def standings(self) -> list[Standing]:
        """How far each training came."""
        found = []
        for name, folder in self.folders.items():
            done = read_table(folder / "metrics.csv").get("bytes", [])
            finished = (folder / "summary.json").exists()
            looks = read_lines(folder / "samples.jsonl")
            found.append(Standing(name, int(done[-1]) if done else 0, self.total_bytes, looks, finished))
        return found

    def follow(
        self, show: Callable[[list[Standing], float, bool], None], *, deadline: float, stop: Callable[[], bool]
    ) -> str:
        """Watch until the end.

        Args:
            show: called several times a second with all standings, the seconds so far, and whether that is the end.
            deadline: on ``time.perf_counter``, when trainings have to save and leave.
            stop: whether somebody asked to.

        Returns:
            ``"done"``, ``"late"`` (the time was up) or ``"stopped"`` (somebody asked).
        """
        start = time.perf_counter()
        while self.running:
            show(self.standings(), time.perf_counter() - start, False)
            if stop():
                self.end()
                return "stopped"
            if time.perf_counter() > deadline:
                self.end()
                self.check()
                return "late"
            time.sleep(_POLL)
        self.check()
        show(self.standings(), time.perf_counter() - start, True)
        return "done"

    def check(self) -> None:
        """Raise where a training ended with an error; to have been ended by us is none."""
        for name, process in self.processes.items():
            if process.poll() not in (0, None, -signal.SIGTERM, -signal.SIGKILL):
                log = self.folders[name] / "log.txt"
                said = log.read_text(errors="replace").strip().splitlines()[-12:]
                raise TrainingFailed(
                    f"the training {name!r} ended with status {process.returncode}; {log} ends with\n"
                    + "\n".join(f"  {text}" for text in said)
                )

    def end(self) -> None:
        """Ask all trainings to save and leave, once; end those that do not."""
        asked = [process for process in self.processes.values() if process.poll() is None]
        for process in asked:
            process.terminate()  # a second signal would end it before it has saved
        latest = time.perf_counter() + _PATIENCE
        for process in asked:
            try:
                process.wait(max(0.1, latest - time.perf_counter()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

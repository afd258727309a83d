"""The first look: train boundary policies on this machine, in a few minutes, and see what they learned.

    make demo
    python -m rltok_rl.experiments.demo --seconds 200 --out runs/mine

Two parts, each a race of two trainings from the same weights over the same bytes: one learns where tokens end, one
spaces them evenly. First a language whose answer is known, then English. Ctrl-C saves; the same command goes on. Where
a finished demo lies already, the next one gets a folder of its own. The exit status is 0 if learning happened.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltok_rl.experiments.commands import parsers
from rltok_rl.experiments.commands.arguments import command, use_colour
from rltok_rl.experiments.demo import ending, findings, pages, record
from rltok_rl.experiments.demo.plan import (
    ACTORS,
    Memory,
    Part,
    bytes_that_fit,
    configured,
    folder_for,
    measured_speed,
    overrides_of,
)
from rltok_rl.experiments.demo.race import Race, TrainingFailed
from rltok_rl.experiments.demo.screen import Screen
from rltok_rl.experiments.reports.run_report import write_report

from rltok_rl.training.record import environment
from rltok_rl.training.signals import StopRequest

_LATE = 1.2  # of the budget: trainings have to stop then, whatever they have reached
_FIRST = 0.7  # of that time: the first part has to stop then
_REPORTING = 12.0  # seconds for findings and pictures, at the end
_COMPANY = 0.85  # of its speed alone is what a training has beside another one, if nothing is known

# Small batches, few tokens and a policy that moves fast: most of the answer within a minute.
RECALL = Part(
    "recall",
    (
        "experiment=recall",
        "data.num_rows=16",
        "model.overrides.target_rate=0.15",
        "++model.overrides.boundary_scale=0.125",
    ),
    least_bytes=1_228_800,
    most_bytes=1_740_800,
    share=0.5,
)
# The recipe of books, in small batches and with a firmer hold on the rate: words within a minute.
ENGLISH = Part(
    "english",
    (
        "experiment=books",
        "data=python-docs",
        "data.source=python-docs",
        "data.min_bytes=2",
        "data.split_by=null",
        "data.held_out=0.05",
        "data.num_rows=16",
        "data.num_steps=128",
    ),
    least_bytes=409_600,
    most_bytes=4_096_000,
    share=1.0,
    policy=("rate.coefficient=0.06",),
)
_QUICK = ("data.num_rows=4", "data.num_steps=64", "snapshots.num_bytes=80")


class Demo:
    """One run of the demo.

    Args:
        screen: where it writes.
        folder: where everything goes.
        seconds: for all of it.
        started: on ``time.perf_counter``.
        quick: a few updates of each training, to see that all parts work.
    """

    def __init__(self, screen: Screen, folder: Path, *, seconds: float, started: float, quick: bool) -> None:
        self.screen, self.folder, self.memory = screen, folder, Memory(folder)
        self.seconds, self.started, self.quick = seconds, started, quick
        self.starting_up = min(30.0, 1.0 + 1.5 * (time.perf_counter() - started))
        """Seconds that a training takes to begin: imports, twice at the same time."""

    @property
    def spent(self) -> float:
        """Seconds since the demo was started."""
        return time.perf_counter() - self.started

    def run(self, stop: StopRequest) -> int:
        """All parts; returns the exit status."""
        pages.welcome(
            self.screen, self.folder, seconds=self.seconds, machine=_machine(), resumed=bool(self.memory.found)
        )
        for part in (RECALL, ENGLISH):
            if f"{part.name}_findings" not in self.memory and not self.train(part, stop):
                ending.stopped(self.screen, self.folder, self.spent)
                return 130
        self.memory.note(seconds=self.memory.found.get("seconds", 0.0) + self.spent, finished=True)
        paths = record.leave(self.folder, self.memory.found, machine=_machine())
        return ending.summary(self.screen, self.folder, self.memory.found, paths)

    def train(self, part: Part, stop: StopRequest) -> bool:
        """One part; False where somebody asked to stop."""
        if stop:
            return False
        pages.introduce(self.screen, part.name, self.decided(part))
        folders = {actor.name: self.folder / f"{part.name}-{actor.name}" for actor in ACTORS}
        total = self.memory[part.name]["total_bytes"]
        runs = {a.name: overrides_of(self.sized(part), a, total_bytes=total, out=folders[a.name]) for a in ACTORS}
        begun = self.spent
        latest = _LATE * self.seconds - _REPORTING
        deadline = self.started + (latest if part.share == 1.0 else _FIRST * latest)
        with Race(runs, folders, total) as race:
            show = functools.partial(pages.watch, self.screen, part.name)
            ended = race.follow(show, deadline=deadline, stop=lambda: bool(stop))
        if ended == "stopped":
            self.memory.note(seconds=self.memory.found.get("seconds", 0.0) + self.spent)
            return False
        if ended == "late":
            for folder in folders.values():
                write_report(folder)  # trainings that were ended have not written it
            if all(one.finished for one in race.standings()):
                ended = "done"  # all bytes were read
        found = self.judged(part, folders) | {"ended": ended, "seconds": self.spent - begun}
        self.memory.note(**{f"{part.name}_findings": found})
        pages.result(self.screen, part.name, found)
        return True

    def sized(self, part: Part) -> Part:
        """The part as it is trained."""
        if not self.quick:
            return part
        return replace(part, overrides=(*part.overrides, *_QUICK), least_bytes=1024, most_bytes=1024)

    def decided(self, part: Part) -> dict[str, Any]:
        """How much to train on: noted the first time, and kept."""
        if part.name not in self.memory:
            sized = self.sized(part)
            overrides = overrides_of(sized, ACTORS[0], total_bytes=sized.most_bytes, out=self.folder)
            speed = measured_speed(overrides)
            cores = _cores()
            together = speed * self.company(cores)
            left = self.seconds - self.spent - _REPORTING
            seconds = max(5.0, part.share * left - self.starting_up)
            data = configured(overrides).data
            update = data.num_rows * data.num_steps
            total = bytes_that_fit(sized, speed=together, seconds=seconds, update=update)
            self.memory.note(
                **{
                    part.name: {
                        "total_bytes": total,
                        "updates": total // update,
                        "seconds": min(total / together + self.starting_up, _LATE * self.seconds - self.spent),
                        "bytes_per_second": speed,
                        "cores": cores,
                    }
                }
            )
        return self.memory[part.name]

    def company(self, cores: int) -> float:
        """The share of its speed alone that a training has beside another one: as it was in the part before this one.

        Args:
            cores: that this process may use.
        """
        summary = self.folder / f"{RECALL.name}-learned" / "summary.json"
        if RECALL.name not in self.memory or not summary.exists():
            return _COMPANY if cores > 1 else _COMPANY / 2
        had = json.loads(summary.read_text())["bytes_per_second"]
        if had is None:  # gone on with for a moment only
            return _COMPANY
        return min(max(had / self.memory[RECALL.name]["bytes_per_second"], _COMPANY / 4), 1.0)

    def judged(self, part: Part, folders: dict[str, Path]) -> dict[str, Any]:
        """What the part found, ready for JSON."""
        found: dict[str, Any] = {name: findings.judge(folder) for name, folder in folders.items()}
        found["curves"] = {name: findings.curve(folder) for name, folder in folders.items()}
        if part is not RECALL:
            found["paired"] = findings.paired_windows(folders)
        return found | findings.details(folders["learned"], text_bytes=2_000 if self.quick else 12_000)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine() -> str:
    """Processor, cores, torch."""
    found, cores = environment(), _cores()
    number = f"{cores} core{'s' * (cores > 1)}"
    return f"{found['processor']}, {number}; torch {found['packages']['torch']}, Python {found['python']}"


@command
def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 if the learned boundaries earned more than evenly spaced ones."""
    started = time.perf_counter() - min(30.0, time.process_time())  # importing took time as well
    parser = parsers.demo()
    options = parser.parse_args(arguments)
    screen = Screen(colour=use_colour("auto"))
    folder = folder_for(options.out)
    with StopRequest() as stop:
        demo = Demo(screen, folder, seconds=options.seconds, started=started, quick=options.quick)
        try:
            return demo.run(stop)
        except (TrainingFailed, FileNotFoundError) as error:
            screen.say(screen.paint(f"\n{error}", "bad"))
            return 1


if __name__ == "__main__":
    sys.exit(main())

"""Run the demo: train both parts, measure what they learned, and write its report."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rich.markup import escape
from rltok_rl.experiments import demo as package
from rltok_rl.experiments.commands.parsers import make_parser, quiet
from rltok_rl.experiments.demo import parts, screen
from rltok_rl.experiments.demo.findings import part_findings
from rltok_rl.experiments.demo.parts import ENGLISH, RECALL, SYSTEMS, DemoState, Part, Race, RunFailed
from rltok_rl.experiments.demo.verdicts import learned_something, write_record
from rltok_rl.experiments.reports.run_report import write_report
from rltok_rl.experiments.studies.parallel_jobs import num_cores

from rltok_rl.training.environment import environment
from rltok_rl.training.signals import StopRequest

_LATE = 1.2  # of the budget: runs have to stop then
_FIRST = 0.7  # of that time: the first part has to stop then
_REPORTING = 12.0  # seconds for findings and pictures, at the end
_SHARED_SPEED = 0.85  # expected speed of a run next to another one, as a share of its speed alone


class Demo:
    """The demo in one folder, in ``seconds`` since ``started`` on ``time.perf_counter``."""

    def __init__(self, folder: Path, *, seconds: float, started: float, quick: bool) -> None:
        self.console, self.folder, self.progress = screen.make_console(), folder, DemoState(folder)
        self.seconds, self.started, self.quick = seconds, started, quick
        self.run_start = min(30.0, 1.0 + 1.5 * (time.perf_counter() - started))
        """Seconds until a run's first update: imports, of two processes at the same time."""

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def run(self, stop: StopRequest) -> int:
        """Run all parts; return the exit status."""
        resumed = bool(self.progress)
        screen.show_start(self.console, self.folder, seconds=self.seconds, machine=_machine(), resumed=resumed)
        for part in (RECALL, ENGLISH):
            if f"{part.name}_findings" not in self.progress and (stop or not self.train(part, stop)):
                screen.show_stop(self.console, self.folder, self.spent)
                return 130
        self.progress.save(seconds=self.progress.get("seconds", 0.0) + self.spent, finished=True)
        paths = write_record(self.folder, self.progress, machine=_machine())
        screen.show_end(self.console, self.folder, self.progress, paths)
        return 0 if learned_something(self.progress) else 1

    def train(self, part: Part, stop: StopRequest) -> bool:
        """Run a part; return False if the user stopped it."""
        part = part.quick() if self.quick else part
        plan = self.plan(part)
        screen.show_part(self.console, part.name, plan)
        folders = {system: self.folder / f"{part.name}-{system}" for system in SYSTEMS}
        total, start, english = plan["total_bytes"], self.spent, part.name == ENGLISH.name
        runs = {name: parts.run_overrides(part, name, total_bytes=total, out=folders[name]) for name in SYSTEMS}
        deadline = self.started + (_LATE * self.seconds - _REPORTING) * (1.0 if english else _FIRST)
        with Race(runs, folders) as race, screen.PartProgress(self.console, part.name, total) as progress:
            ended = race.follow(progress.show, deadline=deadline, stop=lambda: bool(stop))
        if ended == "stopped":
            self.progress.save(seconds=self.progress.get("seconds", 0.0) + self.spent)
            return False
        if ended == "late":
            for folder in folders.values():
                write_report(folder)  # a run that is ended early has not written it
            ended = "done" if all(state.finished for state in race.states()) else ended
        findings = part_findings(folders, paired=english, num_bytes=2_000 if self.quick else 12_000)
        findings |= {"ended": ended, "seconds": self.spent - start}
        self.progress.save(**{f"{part.name}_findings": findings})
        screen.show_findings(self.console, part.name, findings)
        return True

    def plan(self, part: Part) -> dict[str, Any]:
        """Return the training size of a part; decided once and saved, so that a resumed demo reads the same bytes."""
        if part.name not in self.progress:
            overrides = parts.run_overrides(part, "learned", total_bytes=part.most_bytes, out=self.folder)
            speed, update = parts.measure_speed(overrides)
            together = speed * _SHARED_SPEED / (1 if num_cores() > 1 else 2)
            seconds = max(5.0, part.share * (self.seconds - self.spent - _REPORTING) - self.run_start)
            total = parts.fitting_bytes(part, speed=together, seconds=seconds, update=update)
            plan = {
                "total_bytes": total,
                "updates": total // update,
                "seconds": min(total / together + self.run_start, _LATE * self.seconds - self.spent),
                "bytes_per_second": speed,
                "cores": num_cores(),
            }
            self.progress.save(**{part.name: plan})
        return self.progress[part.name]


def _machine() -> str:
    """Processor, cores and versions."""
    facts, cores = environment(), num_cores()
    versions = f"torch {facts['packages']['torch']}, Python {facts['python']}"
    return f"{facts['processor']}, {cores} core{'s' * (cores > 1)}; {versions}"


@quiet
def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 if learned boundaries earned more than evenly spaced ones."""
    started = time.perf_counter() - min(30.0, time.process_time())  # imports count
    options = make_parser("demo", package.__doc__).parse_args(arguments)
    demo = Demo(parts.free_folder(options.out), seconds=options.seconds, started=started, quick=options.quick)
    with StopRequest() as stop:
        try:
            return demo.run(stop)
        except (RunFailed, FileNotFoundError) as error:
            demo.console.print(f"\n[bad]{escape(str(error))}[/]", soft_wrap=True)
            return 1


if __name__ == "__main__":
    sys.exit(main())

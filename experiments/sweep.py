"""Train every combination of comma-separated options over several seeds, several at a time, and compare the runs.

    rltok sweep experiment=recall estimator.gamma=0.9,0.99 seeds=5

Each run has a folder and one thread. The same command continues after an interruption: finished runs are kept, others
resume from their checkpoints. A run that fails is reported, and the others go on.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rltok_rl.experiments.commands.option_errors import quoted
from rltok_rl.experiments.commands.overrides import typed
from rltok_rl.experiments.commands.run_checks import read_run_options
from rltok_rl.experiments.reports.comparison import runs_below, write_comparison
from rltok_rl.experiments.run_config import TrainConfig, check_out
from rltok_rl.experiments.runs.resume import check_same_run
from rltok_rl.experiments.studies.common import check_minimums, read_options
from rltok_rl.experiments.studies.parallel_jobs import run_jobs
from rltok_rl.experiments.train import check_sweep, run


@dataclass
class SweepOptions:
    """Options of a sweep; all others are those of its runs."""

    seeds: int = 1
    """Seeds of each combination: 0, 1, ..."""
    workers: int = 0
    """Processes, with one thread each; 0 is one per core."""
    out: str = "runs/sweep"
    """Folder of the runs, which are named after their options, and of the comparison."""


class RunJob(NamedTuple):
    """A run of a sweep."""

    config: TrainConfig
    command: str

    def __str__(self) -> str:
        """Name the run."""
        return Path(self.config.out).name


def read_sweep(arguments: Sequence[str]) -> tuple[SweepOptions, list[RunJob]]:
    """Read and check a command line; the runs are ordered by seed."""
    names = SweepOptions.__dataclass_fields__
    mine = [text for text in arguments if text.partition("=")[0] in names]
    options = read_options(SweepOptions, mine)
    check_minimums(options, {"seeds": 1, "workers": 0})
    check_out(options.out)
    others = [text for text in arguments if text not in mine]
    if not others:
        raise ValueError("a sweep needs options of its runs, as experiment=recall estimator.gamma=0.9,0.99, got none")
    if any(text.startswith("seed=") for text in others):
        raise ValueError("seed must be left out, got seed=...; seeds=N are seeds 0 to N - 1")
    shared = ["compute.threads=1", "resume=true", f"out={quoted(f'{options.out}/${{hydra:job.num}}')}"]
    seeds = ",".join(map(str, range(options.seeds)))
    line = read_run_options("train", ["--multirun", *shared, *others, f"seed={seeds}"])
    configs = check_sweep(line)
    if any(config.compare.systems for config in configs):
        raise ValueError("a sweep trains single runs, got compare.systems; use rltok train --multirun")
    run_folders, jobs = run_names(line.runs), []
    swept = [str(override.key_or_group) for override in line.overrides if override.is_sweep_override()]
    if repeated := next((name for name in run_folders if run_folders.count(name) > 1), None):
        alike = [texts for name, texts in zip(run_folders, line.runs, strict=True) if name == repeated]
        got = " and ".join(" ".join(text for text in texts if text.partition("=")[0] in swept) for texts in alike)
        raise ValueError(
            f"values of a sweep must differ in letters, digits or _.@-, which the names of its runs are made of, got "
            f"runs {repeated} with {got}"
        )
    for name, config, texts in zip(run_folders, configs, line.runs, strict=True):
        config = replace(config, out=str(Path(options.out, name)))
        kept = [text for text in texts if not text.startswith("out=")]
        out = config.out if re.fullmatch(r"[\w ./@:-]+", config.out, re.ASCII) else quoted(config.out)
        jobs.append(RunJob(config, typed(["rltok train", *kept, f"out={out}"])))
    return options, sorted(jobs, key=lambda job: job.config.seed)


def run_names(runs: Sequence[Sequence[str]]) -> list[str]:
    """Name runs after the values in which their overrides differ, and their seeds.

    Example:
        >>> run_names([["baseline=none", "seed=0"], ["baseline=batch_mean", "seed=0"]])
        ['none-seed-0', 'batch_mean-seed-0']
    """
    columns = [column for column in zip(*runs, strict=True) if len(set(column)) > 1 or column[0].startswith("seed=")]
    rows = zip(*columns, strict=True)
    names = ["-".join(text.replace("seed=", "=seed-").partition("=")[2] for text in row) for row in rows]
    return [re.sub(r"[^\w.@-]+", "_", name) for name in names]


def train(job: RunJob) -> str:
    """Train a run without its lines of progress, and return what it reached."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        summary = run(job.config, job.command)
    if "stopped" in summary:
        raise SystemExit(128 + summary["stopped"])  # no other run follows
    return f"{summary['held_out_bits_per_byte']:.3f} bits per byte, held out"


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; return 1 if a run failed."""
    try:
        options, jobs = read_sweep(sys.argv[1:] if arguments is None else arguments)
        for job in jobs:
            if (file := Path(job.config.out) / "config.yaml").exists():
                check_same_run(job.config, file)
    except (ValueError, TypeError) as error:
        print(f"rltok sweep: {error}", file=sys.stderr)
        return 2
    missing = [job for job in jobs if not (Path(job.config.out) / "summary.json").exists()]
    failed = run_jobs("sweep", train, missing, total=len(jobs), workers=options.workers, noun="runs")
    if runs := runs_below(Path(options.out)):
        print(write_comparison(runs, Path(options.out)))
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

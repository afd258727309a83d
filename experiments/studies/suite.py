"""The boundary suite: ten tasks with known optima, one score per estimator, with intervals and paired tests.

Each cell (task, grade, entry, seed) trains language model and policy together from random weights, with equal total
FLOPs. Finished cells are kept as files: the same command trains the missing ones, several at a time, and draws the page
of all of them.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.studies.learn_runs import fingerprint, train_and_evaluate
from rltok_rl.experiments.studies.parallel_jobs import run_jobs
from rltok_rl.experiments.studies.suite_entries import cell_config
from rltok_rl.experiments.studies.suite_options import SuiteOptions, grades_of, read_suite_options, suite_entries
from rltok_rl.experiments.studies.suite_page import write_page
from rltok_rl.experiments.studies.suite_scores import best_by_iqm, score_cells

from rltok_rl.data.disk import replace_text
from rltok_rl.training.environment import git_state, machine
from rltok_rl.utils import keep_memory

TRACK = "scratch2"
"""Language model and policy are trained together, and evaluated at equal rates. Cells of other tracks, and of
``scratch``, without equal rates, have other names."""
EVALUATIONS, EVALUATION_BYTES, FINAL_BATCHES, SIGNAL_BATCHES = 8, 8192, 16, 8
"""Evaluations during training, bytes of an evaluation's batch, batches of the last evaluation, and batches of each
measurement of the policy gradient's signal to noise."""


class Cell(NamedTuple):
    """A run of the suite."""

    task: str
    grade: int
    entry: str
    seed: int

    def __str__(self) -> str:
        """Name the cell."""
        return f"{self.task}-{self.grade} {self.entry} seed {self.seed}"


class CellJob(NamedTuple):
    """A cell with its configuration and its file."""

    cell: Cell
    config: TrainConfig
    file: Path

    def __str__(self) -> str:
        """Name the job."""
        return str(self.cell)


def suite_jobs(
    options: SuiteOptions, *, entries: Sequence[str] | None = None, seeds: Sequence[int] | None = None
) -> list[CellJob]:
    """Return the jobs of all entries and seeds, or of some, seed by seed; ``seeds`` are counted from ``first_seed``.

    A file's name has a hash of its options.
    """
    folder, prints = Path(options.out, "cells"), dict[tuple[str, int, str], tuple[TrainConfig, str]]()
    places = [(task, grade) for task in options.tasks for grade in grades_of(task, options)]
    for (task, grade), entry in itertools.product(places, suite_entries(options) if entries is None else entries):
        config = cell_config(task, grade, entry, flops=options.flops, overrides=options.overrides)
        prints[task, grade, entry] = config, fingerprint(config)
    jobs = []
    numbers = range(options.seeds) if seeds is None else seeds
    for number, (key, (config, digest)) in itertools.product(numbers, prints.items()):
        seed = options.first_seed + number
        cell = Cell(*key, seed)
        name = re.sub(r"[^\w.@-]", "_", "-".join(map(str, (TRACK, *cell, digest))))
        jobs.append(CellJob(cell, replace(config, seed=seed), folder / f"{name}.json"))
    return jobs


def further_jobs(options: SuiteOptions, jobs: Sequence[CellJob]) -> list[CellJob]:
    """Return the jobs of ``best_seeds``, once all others are done."""
    if not options.best_seeds:
        return []
    if missing := sum(not job.file.exists() for job in jobs):
        print(f"further seeds wait for missing cells: {missing}", file=sys.stderr)
        return []
    best = best_by_iqm(score_cells(_finished(jobs)), options.best)
    return suite_jobs(options, entries=best, seeds=range(options.seeds, options.best_seeds))


def train_cell(job: CellJob) -> dict[str, Any]:
    """Train and evaluate a cell, write its file, and return its content."""
    keep_memory()
    torch.set_num_threads(1)
    rows = max(1, EVALUATION_BYTES // job.config.data.num_steps)
    counts: Any = {"num_evaluations": EVALUATIONS, "num_batches": FINAL_BATCHES, "signal_batches": SIGNAL_BATCHES}
    result = train_and_evaluate(job.config, num_rows=rows, equal_rates=True, **counts)
    result.pop("sample", None)
    job.file.parent.mkdir(parents=True, exist_ok=True)
    place = {"track": TRACK, "machine": machine("cpu"), "git": git_state(Path(__file__).resolve().parent)}
    target = job.config.model.overrides["target_rate"]
    content: dict[str, Any] = without_nan({**job.cell._asdict(), "target_rate": target, **place, **result})
    replace_text(job.file, json.dumps(content) + "\n")
    return content


def _train(job: CellJob) -> str:
    final = train_cell(job)["final"]
    return f"share {final['share']:.3f}, rate {final['rate']:.3f}"


def _train_missing(jobs: Sequence[CellJob], options: SuiteOptions) -> list[str]:
    """Train the jobs without a file; return those that failed."""
    missing = [job for job in jobs if not job.file.exists()]
    return run_jobs("suite", _train, missing, total=len(jobs), workers=options.workers)


def _finished(jobs: Sequence[CellJob]) -> list[dict[str, Any]]:
    return [json.loads(job.file.read_text()) for job in jobs if job.file.exists()]


def main(arguments: list[str] | None = None) -> int:
    """Run the suite; return 1 if a cell failed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if importlib.util.find_spec("scipy") is None:
            raise ValueError("statistics need scipy: pip install 'rltok_rl[suite]'")
        options = read_suite_options(arguments)
        jobs = suite_jobs(options)
    except (ValueError, TypeError, ImportError) as error:
        print(f"rltok suite: {error}", file=sys.stderr)
        return 2
    failed = _train_missing(jobs, options)
    if further := further_jobs(options, jobs):
        failed += _train_missing(further, options)
    results, more = _finished(jobs), _finished(further)
    if results:
        command, missing = shlex.join(["rltok", "suite", *arguments]), len(jobs + further) - len(results + more)
        print(write_page(results, Path(options.out), command, further=more, missing=missing, failed=len(failed)))
        print(Path(options.out) / "suite.md")
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

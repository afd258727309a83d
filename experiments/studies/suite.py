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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.run_config import TrainConfig, check_out
from rltok_rl.experiments.studies.common import check_choices, check_minimums, read_options
from rltok_rl.experiments.studies.learn_runs import fingerprint, train_and_evaluate
from rltok_rl.experiments.studies.parallel_jobs import run_jobs
from rltok_rl.experiments.studies.suite_entries import (
    ESTIMATORS,
    FIXED,
    GAMMA,
    cell_config,
    entry_overrides,
    override_names,
)
from rltok_rl.experiments.studies.suite_page import write_page
from rltok_rl.experiments.studies.suite_scores import ORACLE, UNIFORM, best_by_iqm, score_cells

from rltok_rl.data.disk import replace_text
from rltok_rl.data.languages import TASKS
from rltok_rl.training.environment import git_state, machine
from rltok_rl.utils import did_you_mean, is_import_path, keep_memory

GRADES: dict[str, list[int]] = {"small": [1, 3], "full": [1, 2, 3, 4]}
"""Grades of each budget."""
REPEATED = {("noise", 1): 2}
"""``noise`` 1 is ``delay`` 1: the small budget has ``noise`` 2 in its place, the full one leaves it out."""
CELL_FLOPS = 7.5e11
"""Total FLOPs of a cell of either budget."""
TRACK = "scratch2"
"""Language model and policy are trained together, and evaluated at equal rates. Cells of other tracks, and of
``scratch``, without equal rates, have other names."""
EVALUATIONS, EVALUATION_BYTES, FINAL_BATCHES, SIGNAL_BATCHES = 8, 8192, 16, 8
"""Evaluations during training, bytes of an evaluation's batch, batches of the last evaluation, and batches of each
measurement of the policy gradient's signal to noise."""


@dataclass
class SuiteOptions:
    """Options of the suite."""

    budget: str = "small"
    """``small``, an easy and a hard grade of each task, or ``full``, all four."""
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    """Tasks."""
    grades: list[int] = field(default_factory=list)
    """Grades of each task, 1 to 4; default: those of the budget."""
    entries: list[str] = field(default_factory=list)
    """Entries in addition to ``oracle`` and ``uniform``: rules, recipes, or ``ESTIMATOR@GAMMA``; default: all."""
    estimator: list[str] = field(default_factory=list)
    """Estimators, baselines of the discounted return, or ``module:Class``, each with every ``gamma``."""
    gamma: list[float] = field(default_factory=list)
    """Discounts of ``estimator``; default: 0.9. Without ``estimator`` and ``entries``, of all estimators."""
    seeds: int = 5
    """Seeds of each entry."""
    first_seed: int = 0
    """The first of them. Choose options in seeds that no table has, for example from 100 on."""
    best: int = 2
    """Number of entries that ``best_seeds`` trains with further seeds."""
    best_seeds: int = 0
    """Seeds of the entries with the highest interquartile means over ``seeds``; 0 trains no further ones."""
    flops: float = CELL_FLOPS
    """Total FLOPs of a cell, trials of the estimator included."""
    overrides: list[str] = field(default_factory=list)
    """Options of every run, as on the command line of ``rltok train``."""
    workers: int = 0
    """Processes, with one thread each; 0 is one per core."""
    out: str = "runs/suite"
    """Folder of cells and page."""


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


def read_suite_options(arguments: Sequence[str]) -> SuiteOptions:
    """Read and check the options of a command line; lists may be written without brackets, ``gamma=0.9,0.99``."""
    lists = {option.name for option in fields(SuiteOptions) if str(option.type).startswith("list")}
    parts = [argument.partition("=") for argument in arguments]
    texts = [
        f"{name}=[{value}]" if equals and name in lists and not value.startswith("[") else f"{name}{equals}{value}"
        for name, equals, value in parts
    ]
    options = read_options(SuiteOptions, texts)
    check_choices(options, tasks=TASKS)
    if options.budget not in GRADES:
        raise ValueError(f"budget must be one of {[*GRADES]}, got {options.budget!r}")
    if set(options.grades) - {1, 2, 3, 4}:
        raise ValueError(f"grades must be among [1, 2, 3, 4], got {options.grades}")
    check_minimums(options, {"seeds": 1, "first_seed": 0, "best": 1, "best_seeds": 0, "workers": 0})
    if 0 < options.best_seeds <= options.seeds:
        raise ValueError(f"best_seeds must be 0 or above seeds={options.seeds}, got {options.best_seeds}")
    if not 0 < options.flops < float("inf"):
        raise ValueError(f"flops must be positive, got {options.flops}")
    if options.gamma and options.entries and not options.estimator:
        raise ValueError(f"gamma belongs to estimator, got {options.gamma} with entries={options.entries}")
    check_out(options.out)
    check_estimators(options.estimator)
    override_names(options.overrides)
    for name in suite_entries(options):
        entry_overrides(name)  # rejects unknown names
    return options


def check_estimators(names: Sequence[str]) -> None:
    """Raise ValueError for a name that is neither an estimator of the suite nor ``module:Class``."""
    for name in names:
        if name not in ESTIMATORS and not is_import_path(name):
            near = did_you_mean(name, ESTIMATORS)
            raise ValueError(f"estimator must be among {[*ESTIMATORS]}, or module:Class, got {name!r}{near}")


def suite_entries(options: SuiteOptions) -> list[str]:
    """Return the names of the entries in the order of tables."""
    everything = not options.estimator and not options.entries
    estimators = list(ESTIMATORS) if everything else options.estimator
    product = [f"{name}@{gamma:g}" for name, gamma in itertools.product(estimators, options.gamma or [GAMMA])]
    return list(dict.fromkeys([ORACLE, UNIFORM, *(FIXED if everything else options.entries), *product]))


def _grades(task: str, options: SuiteOptions) -> list[int]:
    """Return the grades of a task: those that are asked for, or those of the budget without a repeated one."""
    return options.grades or [*dict.fromkeys(REPEATED.get((task, grade), grade) for grade in GRADES[options.budget])]


def suite_jobs(
    options: SuiteOptions, *, entries: Sequence[str] | None = None, seeds: Sequence[int] | None = None
) -> list[CellJob]:
    """Return the jobs of all entries and seeds, or of some, seed by seed; ``seeds`` are counted from ``first_seed``.

    A file's name has a hash of its options.
    """
    folder, prints = Path(options.out, "cells"), dict[tuple[str, int, str], tuple[TrainConfig, str]]()
    places = [(task, grade) for task in options.tasks for grade in _grades(task, options)]
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
    """Return the jobs of ``best_seeds``, once all others are done; scores need the same seeds of both references."""
    if not options.best_seeds:
        return []
    if missing := sum(not job.file.exists() for job in jobs):
        print(f"best_seeds waits for the {missing} cells that are missing", file=sys.stderr)
        return []
    best = best_by_iqm(score_cells(_finished(jobs)), options.best)
    return suite_jobs(options, entries=[ORACLE, UNIFORM, *best], seeds=range(options.seeds, options.best_seeds))


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

"""Options of the boundary suite, and the entries and grades that they name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from rltok_rl.experiments.run_config import check_out
from rltok_rl.experiments.studies.common import check_choices, check_minimums, read_options
from rltok_rl.experiments.studies.suite_entries import (
    ESTIMATORS,
    FIXED,
    GAMMA,
    NOT_DEFAULT,
    check_estimators,
    entry_overrides,
    override_names,
)
from rltok_rl.experiments.studies.suite_scores import ORACLE, UNIFORM

from rltok_rl.data.languages import TASKS

GRADES: dict[str, list[int]] = {"small": [1, 3], "full": [1, 2, 3, 4]}
"""Grades of each budget."""
REPEATED = {("noise", 1): 2}
"""``noise`` 1 is ``delay`` 1: the small budget has ``noise`` 2 in its place, the full one leaves it out."""
PAPER_DISCOUNT = "batch_mean@0.99"
"""The paper's estimator and discount at the speed of all estimators, in addition to the others at 0.9."""
CELL_FLOPS = 7.5e11
"""Total FLOPs of a cell of either budget."""


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
    """Beside ``oracle`` and ``uniform``: rules, recipes, ``RECIPE@GAMMA`` or ``ESTIMATOR@GAMMA``; default: all."""
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


def suite_entries(options: SuiteOptions) -> list[str]:
    """Return the names of the entries in the order of tables."""
    everything = not options.estimator and not options.entries
    estimators = [name for name in ESTIMATORS if name not in NOT_DEFAULT] if everything else options.estimator
    product = [f"{name}@{gamma:g}" for name, gamma in itertools.product(estimators, options.gamma or [GAMMA])]
    product += [PAPER_DISCOUNT] if everything and not options.gamma else []
    return list(dict.fromkeys([ORACLE, UNIFORM, *(FIXED if everything else options.entries), *product]))


def grades_of(task: str, options: SuiteOptions) -> list[int]:
    """Return the grades of a task: those that are asked for, or those of the budget without a repeated one."""
    return options.grades or [*dict.fromkeys(REPEATED.get((task, grade), grade) for grade in GRADES[options.budget])]

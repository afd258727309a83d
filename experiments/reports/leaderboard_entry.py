"""Entries of the leaderboard: what runs have to fulfil before they are added."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.leaderboard import comparable, results_rows
from rltok_rl.experiments.reports.table import (
    RATE_TOLERANCE,
    off_target,
    option_table,
    run_row,
    seed_groups,
    total_flops,
)
from rltok_rl.experiments.runs.folder import read_run

SEEDS = 5
"""Least seeds of an entry."""
BUDGET_TOLERANCE = 0.02
"""Relative distance of the total FLOPs that were spent from the budget above which a run is refused."""
_LEFT_OUT = ("checkpoints", "model")


def add_runs(folders: Sequence[Path], results: Path, *, new_table: bool = False) -> list[Path]:
    """Check runs and copy them, without weights, into the folder of results; return the copies.

    Raises ValueError with a line per problem: see :func:`entry_problems`.
    """
    targets = [results / (path := folder.resolve()).parent.name / path.name for folder in folders]
    if repeated := sorted({str(target) for target in targets if targets.count(target) > 1}):
        raise ValueError(f"runs must be different folders of different names, got several for {', '.join(repeated)}")
    problems = entry_problems(folders, results, new_table=new_table)
    problems += [f"{target} exists already" for target in targets if target.exists()]
    if problems:
        raise ValueError("\n  ".join(["runs cannot be added:", *problems]))
    for folder, target in zip(folders, targets, strict=True):
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*_LEFT_OUT, ".*"))
    return targets


def entry_problems(folders: Sequence[Path], results: Path, *, new_table: bool = False) -> list[str]:
    """Return what keeps runs off the leaderboard, a line each.

    Runs must be finished, of one commit without changes, of one configuration with at least :data:`SEEDS` seeds, have
    spent the total FLOPs of their budget, hold their target rate, and share text and budget with a table of the
    leaderboard, unless ``new_table`` starts one.
    """
    runs = [read_run(folder) for folder in folders]
    rows = {str(run.path): run_row(run) for run in runs}
    unfinished = [f"{name}: not finished" for name, row in rows.items() if not row["finished"]]
    if unfinished:
        return unfinished
    problems = [problem for name, row in rows.items() for problem in _run_problems(name, row)]
    groups = seed_groups(option_table({str(run.path): run for run in runs}))
    if groups.nunique() > 1 or len(runs) < SEEDS:
        problems.append(
            f"{SEEDS} seeds of one configuration are needed, got {len(runs)} runs of {groups.nunique()} configurations "
            f"(a repeated seed counts as a further one)"
        )
    commits = {start.get("git", {}).get("revision") for run in runs for start in run.starts if start.get("git")}
    if len(commits) > 1:
        problems.append(f"all runs must be of one commit, got {', '.join(sorted(commits))}")
    if not new_table:
        table = results_rows(results)
        problems += [
            f"{name}: no table of the leaderboard has this text and budget; --new-table starts one"
            for name, row in rows.items()
            if not any(comparable(row, other) for other in table)
        ]
    return problems


def _run_problems(name: str, row: dict[str, Any]) -> list[str]:
    """What is wrong with a finished run alone."""
    run, problems = row["run"], []
    states = [start.get("git") for start in run.starts]
    if not states or not all(states):
        problems.append(f"{name}: no commit is recorded")
    elif any(state["dirty"] for state in states):
        problems.append(f"{name}: trained from a checkout with changes")
    elif any(state["dirty"] is None for state in states):
        problems.append(f"{name}: trained from a checkout with unknown changes, because git status failed")
    budget = run.option("optim.total_flops")
    if budget is None or row["tried_flops"] is None:
        problems.append(f"{name}: the budget must be total FLOPs, trials included (optim.total_flops)")
    elif abs(total_flops(row) / budget - 1) > BUDGET_TOLERANCE:
        problems.append(f"{name}: spent {total_flops(row):.4g} total FLOPs of {budget:.4g}")
    target = row["target_rate"]
    if target and not row["target_rates"] and off_target(row["rate"], target):
        limit = f"{100 * RATE_TOLERANCE:g} %"
        problems.append(f"{name}: rate {row['rate']:.4f} is more than {limit} off the target {target:g}")
    return problems

"""Find damage in the folder of a run: files that cannot be read, damaged checkpoints, lost or changed lines.

    rltok check runs/mine

Prints a line per finding and exits with 1 if there is any, else with 0. Nothing is changed: ``resume=true`` repairs
what it can. Lines after the newest checkpoint are normal, and so is a run that is unfinished.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from rltok_rl.experiments.commands.parsers import command
from rltok_rl.experiments.runs.folder import RunFolder, find_misfit, find_unrecorded, read_run
from rltok_rl.experiments.runs.run_files import PARTIAL, check_places, find_changed
from rltok_rl.experiments.runs.saved_options import find_missing_options, read_options

from rltok_rl.foreign import check_place
from rltok_rl.models import UNet
from rltok_rl.training.checkpoint import find_damage, find_lost, list_checkpoints, list_leftovers
from rltok_rl.utils import printable

_WRITTEN_FIRST = ("model.json", "environment.json")
"""Files that every run writes before its first update, besides those without which it cannot be read."""
_COUNTED = ("bytes", "flops", "padded_flops", "total_flops")
"""Columns of ``metrics.csv`` that a summary repeats."""


def find_problems(folder: Path) -> list[str]:
    """Describe everything that is wrong with a run's folder, a line each."""
    try:
        check_places(folder)
        run = read_run(folder)
        read_options(folder / "config.yaml")
    except (OSError, ValueError) as error:
        return [str(error)]
    problems = []
    updates = run.history.get("update", [])
    if updates != [*range(1, len(updates) + 1)]:
        problems.append(f"{folder / 'metrics.csv'} must have a line for every update, got {len(updates)} lines")
    if missing := find_missing_options(folder / "config.yaml"):
        problems.append(missing)
    checkpoints = list_checkpoints(folder / "checkpoints")
    if checkpoints and run.summary is not None and "updates" in run.summary:
        last = folder / "checkpoints" / f"update-{run.summary['updates']:08d}"
        problems += [] if last in checkpoints else [f"{last}, the last of a finished run, is missing"]
    for path in checkpoints:
        try:
            damage = find_damage(path) or find_unrecorded(path)
        except ValueError as error:
            damage = str(error)
        problems += filter(None, [damage] if damage else [*find_lost(path).values(), find_misfit(run, path)])
    problems += [f"{path} was left by a process that was killed" for path in _leftovers(folder)]
    whole = bool(checkpoints) or (folder / "model").exists()  # published runs leave models out
    problems += [f"{folder / name} is missing" for name in _WRITTEN_FIRST if whole and not (folder / name).exists()]
    problems += _find_other_metrics(run)
    if run.summary is not None and whole:
        try:
            problems += [found for found in find_changed(folder, run.summary).values() if found not in problems]
            for path in (folder / "model").glob("[!.]*"):
                check_place(path)
            UNet.from_pretrained(folder / "model")
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            problems.append(f"{folder / 'model'} cannot be read: {error}")
    return problems


def _find_other_metrics(run: RunFolder) -> list[str]:
    """Describe numbers of a summary that are not those of the last lines of ``samples.jsonl`` and ``metrics.csv``."""
    if run.summary is None:
        return []
    ends = {name: run.last_value(name) for name in _COUNTED}
    last = {name: value for name, value in ends.items() if value is not None and not math.isnan(value)}  # NaN: unknown
    snapshot = run.snapshots[-1] if run.snapshots else {}
    last |= {name: value for name, value in snapshot.items() if name.startswith("held_out_")}
    where, summary = run.path / "summary.json", run.summary
    return [
        f"{where} must have the {name} of the last line of the run's logs, {value}, got {summary.get(name, 'none')}"
        for name, value in last.items()
        if summary.get(name) != value
    ]


def _leftovers(folder: Path) -> list[Path]:
    """Files that a killed process had not finished writing."""
    unfinished = [*folder.glob(PARTIAL), *folder.glob("model/.partial")]
    return [*sorted(unfinished), *list_leftovers(folder / "checkpoints")]


@command("check", __doc__)
def main(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Command line."""
    problems = [problem for folder in options.runs for problem in find_problems(folder)]
    for problem in problems:
        print(printable(problem))
    if not problems:
        print(f"{printable(', '.join(map(str, options.runs)))}: no damage found", file=sys.stderr)
    return 1 if problems else 0

"""Provenance of a comparison's runs: CPU seconds, vector instructions, revisions and uncommitted changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.markdown import plain
from rltok_rl.experiments.runs.folder import RunFolder

from rltok_rl.training.environment import CHANGES, cpu_seconds

_UNKNOWN = "no recorded revision"


def provenance(run: RunFolder) -> dict[str, Any]:
    """Return a run's CPU seconds (None if a start has none), and the CPU capabilities and revisions of its starts."""
    states = [start.get("git") for start in run.starts] or [None]
    return {
        "cpu_seconds": cpu_seconds(run.starts),
        "cpu_capabilities": sorted({start["cpu_capability"] for start in run.starts if "cpu_capability" in start}),
        "revisions": sorted({_revision(state) for state in states}),
    }


def _revision(state: Mapping[str, Any] | None) -> str:
    if state is None:
        return _UNKNOWN
    return state["revision"][:10] + (" with uncommitted changes" if state["dirty"] else CHANGES[state["dirty"]])


def provenance_notes(rows: pd.DataFrame) -> list[str]:
    """Return lines on what keeps the runs from being equal but for system and seed: CPUs, revisions, changes.

    Args:
        rows: a row per run with its ``system``, ``seed`` and :func:`provenance`; rows of earlier versions, which lack
            it, are passed over.
    """
    notes = []
    if len(capabilities := _runs_by_value(rows, "cpu_capabilities")) > 1:
        notes.append(f"CPU capabilities (vector instructions) differ: {_listed(capabilities)}.")
    revisions = _runs_by_value(rows, "revisions")
    if len(revisions) > 1 or any(" " in revision for revision in revisions):  # a clean one is a single word
        notes.append(f"Not all runs come from one revision without changes: {_listed(revisions)}.")
    return notes


def _runs_by_value(rows: pd.DataFrame, column: str) -> dict[str, str]:
    """Systems and seeds by what a column lists for them; empty lists and rows without the column are left out."""
    if column not in rows:
        return {}
    values = rows[column].map(lambda listed: " and ".join(listed) if isinstance(listed, list) else "")
    groups = {}
    for value, group in rows.groupby(values, sort=True):
        seeds_by_system = group.groupby("system", sort=False)["seed"]
        groups[str(value)] = ", ".join(
            str(system)
            if len(seeds) == (rows["system"] == system).sum()
            else f"{system} (seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})"
            for system, seeds in seeds_by_system
        )
    groups.pop("", None)
    return groups


def _listed(groups: Mapping[str, str]) -> str:
    return "; ".join(f"{plain(value)}: {runs}" for value, runs in groups.items())

"""Tables of the boundary suite's page, and the statistics of entries that they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.markdown import markdown, score_text
from rltok_rl.experiments.studies.suite_figures import cell_text
from rltok_rl.experiments.studies.suite_scores import (
    ORACLE,
    UNIFORM,
    best_entries,
    contestants,
    improvement_interval,
    interval,
    pooled_iqm,
    probability_of_improvement,
    strata,
)

PAIRS = ["task", "grade"]
"""Entries are compared over all tasks by their means in each task and grade."""
SEED_PAIRS = ["seed"]
"""Within a task they are compared seed by seed, by their means over grades: cells of a seed fail together."""
MOST_COMPARED = 12
"""Entries in the table of all pairs."""


def summarise(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the statistics of every entry, the highest interquartile mean first, wholly forfeited ones last."""
    summary: dict[str, dict[str, Any]] = {}
    for entry, cells in rows.groupby("entry", sort=False):
        scores = strata(rows, entry)
        pooled = [score for group in scores.values() for score in group]
        summary[entry] = {
            "iqm": pooled_iqm(scores),
            "interval": interval(scores),
            "mean": float(pd.Series(pooled, dtype=float).mean()),
            "cells": len(cells),
            "scored": len(pooled),
            "forfeited": int((cells.forfeited & cells.learnable).sum()),
            "cpu_seconds": float(cells.cpu_seconds.mean()),
        }
    ranked = {ORACLE, *contestants(rows)}
    return dict(sorted(summary.items(), key=lambda item: (item[0] not in ranked, -item[1]["iqm"])))


def entry_table(rows: pd.DataFrame, summary: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table with a row per entry."""
    header = ["entry", "IQM [95 %]", "mean", "better than `uniform` [95 %]", "cells", "forfeited", "CPU seconds a cell"]
    bold, reference = best_entries(rows, contestants(rows), PAIRS), strata(rows, UNIFORM)
    body = []
    for entry, scores in summary.items():
        compared = strata(rows, entry), reference
        chance, limits = probability_of_improvement(*compared), improvement_interval(*compared)
        mean = score_text(scores["mean"])
        body.append(
            [
                f"`{entry}`",
                score_text(scores["iqm"], scores["interval"]),
                f"**{mean}**" if entry in bold else mean,
                "" if entry == UNIFORM else _chance(chance, limits),
                str(scores["cells"]),
                str(scores["forfeited"]),
                f"{scores['cpu_seconds']:.0f}",
            ]
        )
    return markdown(header, body)


def task_table(rows: pd.DataFrame, entries: Sequence[str]) -> str:
    """Return a Markdown table of mean scores, a row per entry and a column per task; ``×`` marks forfeited cells."""
    tasks, rows, body = list(dict.fromkeys(rows.task)), rows[rows.learnable], []
    of_task = {task: rows[rows.task == task] for task in tasks}
    bold = {task: best_entries(cells, contestants(cells), SEED_PAIRS) for task, cells in of_task.items()}
    for entry in entries:
        texts = []
        for task in tasks:
            cells = of_task[task][of_task[task].entry == entry]
            text = cell_text(cells.score.mean(), bool(cells.forfeited.any())) or "-"
            texts.append(f"**{text}**" if entry in bold[task] else text)
        body.append([f"`{entry}`", *texts])
    return markdown(["entry", *tasks], body)


def improvement_table(rows: pd.DataFrame, entries: Sequence[str]) -> str:
    """Return a Markdown table of the probability that a row's entry scores higher than a column's: the first ones."""
    entries = entries[:MOST_COMPARED]
    scores = {entry: strata(rows, entry) for entry in entries}
    body = [
        [
            f"`{entry}`",
            *(
                "" if entry == other else _chance(probability_of_improvement(scores[entry], scores[other]))
                for other in entries
            ),
        ]
        for entry in entries
    ]
    return markdown(["", *(f"`{entry}`" for entry in entries)], body)


def _chance(value: float, limits: tuple[float, float] | None = None) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.2f}" + (f" [{limits[0]:.2f}, {limits[1]:.2f}]" if limits else "")

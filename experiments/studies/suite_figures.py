"""Figures of the boundary suite: scores by task, intervals, performance profiles, learning curves, cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rltok_rl.experiments.studies.suite_scores import ORACLE, UNIFORM, profile, profile_band, relative_score, strata

from rltok_rl.viz.axes import mean_line
from rltok_rl.viz.style import (
    INK,
    MOST_RUNS,
    OURS,
    PALE,
    QUIET,
    RunStyle,
    plain_figures,
    run_style,
    save_figure,
    shades,
)

COLUMNS = 5
"""Panels in a row of learning curves."""
MOST_PLACES = 20
"""Columns of the heat map: with more tasks and grades it has a column per task."""
DRAWN = 7
"""Number of entries in figures of lines, in addition to references and the paper's recipe."""
BANDS = 3
"""Number of entries with bands in the figure of learning curves, in addition to references."""
LEGEND_LINE = 4.0
"""Length of a legend's lines in font sizes, so that dashes differ."""
LEAST_SCORE = -1.0
"""Scores below this are drawn as this in the figure of costs."""


def draw_all(
    results: Sequence[Mapping[str, Any]], rows: pd.DataFrame, summary: Mapping[str, Mapping[str, Any]], out: Path
) -> None:
    """Draw all figures into a folder; ``summary`` has the statistics of entries in the order of the figures."""
    with plain_figures() as plt:
        styles = entry_styles(drawn_entries(list(summary)))
        figures = {
            "tasks": draw_tasks(plt, rows, list(summary)),
            "intervals": draw_intervals(plt, summary),
            "profiles": draw_profiles(plt, rows, styles),
            "curves": draw_curves(plt, results, rows, styles),
            "cost": draw_cost(plt, results, rows, styles),
        }
        for name, figure in figures.items():
            save_figure(figure, out / f"{name}.png", dpi=90 if name == "curves" else 125)


def drawn_entries(entries: Sequence[str]) -> list[str]:
    """Return the references, the first ``DRAWN`` of the others, and the paper's recipe."""
    others = [entry for entry in entries if entry not in (ORACLE, UNIFORM)]
    return [entry for entry in entries if entry not in others[DRAWN:] or entry == "paper"]


def entry_styles(entries: Sequence[str]) -> dict[str, RunStyle]:
    """Return a style for each entry: references are two greys, the others have colours, which the 29th repeats."""
    references = {UNIFORM: RunStyle(PALE, "o", (0, (4, 2))), ORACLE: RunStyle(QUIET, "s", "-")}
    others = [entry for entry in entries if entry not in references]
    return {entry: references.get(entry) or run_style(others.index(entry) % MOST_RUNS) for entry in entries}


def short_name(entry: str) -> str:
    """Return the name of an entry in figures: that of a custom estimator without its module.

    Example:
        >>> short_name("my_package.estimators:MyEstimator@0.9"), short_name("ours")
        ('MyEstimator@0.9', 'ours')
    """
    return entry.rpartition(":")[2]


def legend_height(styles: Mapping[str, RunStyle]) -> float:
    """Return the height in inches of a figure whose legend lists all entries."""
    return max(3.3, 0.16 * len(styles))


def cell_text(mean: float, forfeited: bool) -> str:
    """Return a mean score, marked if cells were forfeited; empty without a score."""
    return "" if pd.isna(mean) else f"{round(mean, 2) + 0.0:.2f}" + "×" * forfeited


def draw_tasks(plt: Any, rows: pd.DataFrame, entries: Sequence[str]) -> Any:
    """Draw the mean scores, a row per entry and a column per task and grade, or per task if there are many.

    Crosses mark forfeited cells.
    """
    grades = rows.task + " " + rows.grade.astype(str)
    rows = rows.assign(place=grades if grades.nunique() <= MOST_PLACES else rows.task)
    places, rows = list(dict.fromkeys(rows.place)), rows[rows.learnable]
    means = rows.pivot_table("score", "entry", "place").reindex(index=entries, columns=places)
    lost = rows.pivot_table("forfeited", "entry", "place").reindex(index=entries, columns=places)
    size = (max(4.2, 1.9 + (0.46 if len(places) > 10 else 0.62) * len(places)), 1.0 + 0.27 * len(entries))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    axes.imshow(means.to_numpy(float), cmap=shades(signed=True), vmin=-1, vmax=1, aspect="auto")
    for y, entry in enumerate(entries):
        for x, place in enumerate(places):
            value = means.loc[entry, place]
            text = cell_text(value, bool(lost.loc[entry, place] > 0))
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white" if abs(value) > 0.7 else INK)
    axes.set_xticks(range(len(places)), places, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(entries)), [short_name(entry) for entry in entries])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("score: 0 evenly spaced, 1 oracle; × forfeited cells", x=0, fontsize=7.5, color=QUIET)
    return figure


def draw_intervals(plt: Any, summary: Mapping[str, Mapping[str, Any]]) -> Any:
    """Draw interquartile means with their intervals, the best on top."""
    figure, axes = plt.subplots(figsize=(6, 0.9 + 0.24 * len(summary)), layout="constrained")
    for y, (entry, scores) in enumerate(summary.items()):
        colour = QUIET if entry == ORACLE else PALE if entry == UNIFORM else OURS
        if scores["interval"]:
            axes.plot(scores["interval"], [y, y], color=colour, lw=5, alpha=0.35, solid_capstyle="butt")
        axes.plot([scores["iqm"]], [y], "|", color=colour, ms=9, mew=2)
    names = [short_name(entry) + " ×" * (row["forfeited"] == row["cells"]) for entry, row in summary.items()]
    axes.set_yticks(range(len(summary)), names)
    axes.set_ylim(len(summary) - 0.4, -0.6)
    axes.axvline(0, color=PALE, lw=0.6, zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("interquartile mean of scores, 95 % interval; × all cells forfeited")
    return figure


def draw_profiles(plt: Any, rows: pd.DataFrame, styles: Mapping[str, RunStyle]) -> Any:
    """Draw the share of runs that score at least each level, with 95 % bands."""
    scores = rows[rows.learnable].score
    low = max(-1.0, math.floor(10 * scores.min()) / 10) if len(scores) else -1.0
    levels = np.linspace(low, 1.1, 111).tolist()
    figure, axes = plt.subplots(figsize=(7, legend_height(styles)), layout="constrained")
    for entry, style in styles.items():
        if entry != ORACLE:
            of_entry = strata(rows, entry)
            if (band := profile_band(of_entry, levels)) is not None:
                axes.fill_between(levels, *band, color=style.colour, alpha=0.12, lw=0)
            axes.plot(
                levels, profile(of_entry, levels), color=style.colour, ls=style.dashes, lw=1.3, label=short_name(entry)
            )
    axes.set(xlabel="score", ylabel="share of runs that score at least this", ylim=(-0.02, 1.02))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5, handlelength=LEGEND_LINE)
    return figure


def draw_curves(
    plt: Any, results: Sequence[Mapping[str, Any]], rows: pd.DataFrame, styles: Mapping[str, RunStyle]
) -> Any:
    """Draw a panel per task and grade: the share of the optimal return against FLOPs.

    References and the first ``BANDS`` other entries of ``styles`` have bands over seeds.
    """
    banded = {ORACLE, UNIFORM, *[entry for entry in styles if entry not in (ORACLE, UNIFORM)][:BANDS]}
    places = list(rows.drop_duplicates(["task", "grade"])[["task", "grade"]].itertuples(index=False, name=None))
    columns = min(COLUMNS, len(places))
    lines = -(-len(places) // columns)
    size = (2.3 * columns + 0.5, 1.9 * lines + 0.55 + 0.16 * -(-len(styles) // 6))
    figure, panels = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axes, (task, grade) in zip(panels.flat, places, strict=False):
        for entry, style in styles.items():
            curves = [
                (
                    [snapshot["total_flops"] / 1e9 for snapshot in cell["looks"]],
                    [snapshot["share"] for snapshot in cell["looks"]],
                )
                for cell in results
                if (cell["task"], cell["grade"], cell["entry"]) == (task, grade, entry)
            ]
            mean = mean_line(curves)
            axes.plot(mean.x, mean.y, color=style.colour, ls=style.dashes, lw=1.2 if entry in banded else 0.7)
            if entry in banded:
                low, high = (np.add(mean.y, np.multiply(sign, mean.spread)) for sign in (-1, 1))
                axes.fill_between(mean.x, low, high, color=style.colour, alpha=0.15, lw=0)
        lowest = rows[(rows.task == task) & (rows.grade == grade)].share.min()
        axes.set_ylim(min(lowest, 0.0) - 0.05, 1.05)  # shares before training are far below
        axes.set_title(f"{task}, grade {grade}", fontsize=7.5)
        axes.tick_params(labelsize=6.5)
    for axes in [*panels.flat][len(places) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("share of optimum", fontsize=7)
    for axes in panels[-1]:
        axes.set_xlabel("GFLOPs", fontsize=7)
    handles = [plt.Line2D([], [], color=style.colour, ls=style.dashes) for style in styles.values()]
    figure.legend(
        handles,
        [short_name(entry) for entry in styles],
        loc="outside lower center",
        ncols=6,
        fontsize=6.5,
        handlelength=LEGEND_LINE,
    )
    return figure


def draw_cost(
    plt: Any, results: Sequence[Mapping[str, Any]], rows: pd.DataFrame, styles: Mapping[str, RunStyle]
) -> Any:
    """Draw the mean score of all learnable cells during training, against total FLOPs and CPU seconds.

    Scores are cut to at least ``LEAST_SCORE``; untrained models, and ``switch`` before its language changes, score far
    less.
    """
    ends = {
        (task, grade): (uniform, oracle)
        for task, grade, uniform, oracle in rows[rows.learnable][["task", "grade", UNIFORM, ORACLE]].itertuples(
            index=False, name=None
        )
    }
    figure, panels = plt.subplots(1, 2, figsize=(9, legend_height(styles)), sharey=True, layout="constrained")
    for entry, style in styles.items():
        runs = [cell for cell in results if cell["entry"] == entry and (cell["task"], cell["grade"]) in ends]
        for axes, unit, scale in zip(panels, ("total_flops", "cpu_seconds"), (1e-9, 1.0), strict=True):
            mean = mean_line(
                [
                    (
                        [scale * snapshot[unit] for snapshot in cell["looks"]],
                        [
                            np.maximum(LEAST_SCORE, relative_score(snap["share"], *ends[cell["task"], cell["grade"]]))
                            for snap in cell["looks"]
                        ],
                    )
                    for cell in runs
                ]
            )
            axes.plot(mean.x, mean.y, color=style.colour, ls=style.dashes, lw=1.3, label=short_name(entry))
    panels[0].set(
        xlabel="total GFLOPs", ylabel=f"mean score, each at least {LEAST_SCORE:g}; rates ignored", ylim=(None, 1.05)
    )
    panels[1].set(xlabel="CPU seconds of training")
    panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5, handlelength=LEGEND_LINE)
    return figure

"""Page of the boundary suite: tables, what they show task by task, and figures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.markdown import bullets, markdown, score_text, with_unit, without_nan
from rltok_rl.experiments.reports.table import RATE_TOLERANCE
from rltok_rl.experiments.studies import suite_figures
from rltok_rl.experiments.studies.suite_scores import (
    LEAST_GAIN,
    ORACLE,
    UNIFORM,
    best_entries,
    improvement_interval,
    interval,
    paired_difference,
    pooled_iqm,
    probability_of_improvement,
    score_cells,
    signal_correlations,
    strata,
)

from rltok_rl.data.disk import replace_text
from rltok_rl.data.languages import TASKS

PAIRS = ["task", "grade"]
"""Entries are compared over all tasks by their means in each task and grade, and within a task seed by seed."""
SEED_PAIRS = ["grade", "seed"]
SAVED = ("task", "grade", "entry", "seed", "cpu_seconds", "share", "rate", "signal", "forfeited", "score")
"""Columns of the table of cells in ``suite.json``."""
_MOST_NAMED = 3  # of entries between which no test decides; the table has them all in bold


def summarise(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the statistics of every entry, the highest interquartile mean first."""
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
    return dict(sorted(summary.items(), key=lambda item: (pd.isna(item[1]["iqm"]), -item[1]["iqm"])))


def entry_table(rows: pd.DataFrame, summary: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table with a row per entry."""
    header = ["entry", "IQM [95 %]", "mean", "better than `uniform` [95 %]", "cells", "forfeited", "CPU seconds a cell"]
    bold, reference = best_entries(rows, _contestants(summary), PAIRS), strata(rows, UNIFORM)
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
    bold = {task: best_entries(rows[rows.task == task], _contestants(entries), SEED_PAIRS) for task in tasks}
    for entry in entries:
        texts = []
        for task in tasks:
            cells = rows[(rows.entry == entry) & (rows.task == task)]
            text = suite_figures.cell_text(cells.score.mean(), bool(cells.forfeited.any())) or "-"
            texts.append(f"**{text}**" if entry in bold[task] else text)
        body.append([f"`{entry}`", *texts])
    return markdown(["entry", *tasks], body)


def improvement_table(rows: pd.DataFrame, entries: Sequence[str]) -> str:
    """Return a Markdown table of the probability that a row's entry scores higher than a column's."""
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


def read_task(rows: pd.DataFrame, task: str, entries: Sequence[str]) -> str:
    """Say which entries win a task, and which beat evenly spaced boundaries, as far as tests decide."""
    rows = rows[(rows.task == task) & rows.learnable]
    start, means = f"`{task}` ({TASKS[task].isolates}): ", rows.groupby("entry").score.mean()
    ranked = sorted((entry for entry in entries if entry in means.index), key=lambda entry: -means[entry])
    if not ranked:
        return start + "not learnable at this budget."
    best = best_entries(rows, ranked, SEED_PAIRS)
    if not best:
        return start + "too few seeds for a test."
    leaders = [f"`{entry}` {means[entry]:.2f}" for entry in ranked if entry in best]
    winners, others = ", ".join(leaders[:_MOST_NAMED]), len(leaders) - _MOST_NAMED
    if len(best) > 1:
        more = f", and {others} more" if others > 0 else ""
        text = f"no significant difference between the best, {winners}{more}."
    elif len(ranked) > 1 and (gap := paired_difference(rows, ranked[0], ranked[1], SEED_PAIRS)) is not None:
        second = f"`{ranked[1]}` by {gap.mean:.2f} ± {gap.half_width:.2f}"
        text = f"{winners} is best, ahead of {second}."
    else:
        text = f"{winners} is best."
    tests = {entry: paired_difference(rows, entry, UNIFORM, SEED_PAIRS) for entry in ranked if entry != UNIFORM}
    known = {entry: test for entry, test in tests.items() if test is not None and test.error is not None}
    better = [f"`{entry}`" for entry, test in known.items() if test.significant and test.mean > 0]
    return start + text + (f" Better than evenly spaced: {', '.join(better) or 'none'}." if known else "")


def read_signal(rows: pd.DataFrame) -> list[str]:
    """Say how well the signal to noise of policy gradients ranks cells; nothing if it was not measured."""
    correlations = signal_correlations(rows)
    if not correlations:
        return []
    each = ", ".join(f"`{task}` {grade} {value:.2f}" for (task, grade), value in correlations.items())
    mean = sum(correlations.values()) / len(correlations)
    return [
        "The policy gradient's signal to noise, measured during training, ranks cells as their scores do with a "
        f"Spearman correlation of {mean:.2f} (mean over tasks and grades: {each})."
    ]


def further_table(rows: pd.DataFrame, num_seeds: int) -> str:
    """Return a Markdown table of entries with further seeds: the first ``num_seeds``, which chose them, and all."""
    entries = [entry for entry in summarise(rows) if entry not in (ORACLE, UNIFORM)]
    seeds = sorted(rows.seed.unique())
    first, others = rows[rows.seed.isin(seeds[:num_seeds])], rows[~rows.seed.isin(seeds[:num_seeds])]
    parts = {_span(seeds[:num_seeds]): first, _span(seeds[num_seeds:]): others, "all": rows}
    body = []
    for entry in entries:
        by_seed = rows[(rows.entry == entry) & rows.learnable].groupby("seed").score.mean()
        scores = [strata(part, entry) for part in parts.values()]
        iqms = [score_text(pooled_iqm(part), interval(part)) for part in scores]
        body.append([f"`{entry}`", *iqms, score_text(by_seed.mean()), f"{by_seed.min():.2f} to {by_seed.max():.2f}"])
    header = ["entry", *(f"IQM, {name} seeds" if name == "all" else f"IQM, seeds {name}" for name in parts)]
    return markdown([*header, "mean", "means of single seeds"], body)


def read_further(rows: pd.DataFrame) -> str:
    """Compare the entries with further seeds, pair by pair."""
    entries = [entry for entry in summarise(rows) if entry not in (ORACLE, UNIFORM)]
    texts = []
    for entry, other in itertools.combinations(entries, 2):
        gap = paired_difference(rows, entry, other, PAIRS)
        if gap is not None and gap.error is not None:
            texts.append(f"`{entry}` minus `{other}`: {gap.mean:.2f} ± {gap.half_width:.2f}.")
    return bullets(texts)


def _further_section(rows: pd.DataFrame, num_seeds: int) -> list[str]:
    text = (
        "The first seeds chose these entries, so that their means there are slightly too high; further seeds are free "
        "of this. Scores are relative to references of all seeds. Differences are means over tasks and grades, with a "
        "95 % interval of a paired t-test."
    )
    return ["## Further seeds", text, further_table(rows, num_seeds), read_further(rows)]


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])


def page_lines(
    results: Sequence[dict[str, Any]], rows: pd.DataFrame, summary: dict[str, dict[str, Any]], warnings: Sequence[str]
) -> list[str]:
    """Return the paragraphs of the page, without its command."""
    entries, tasks = list(summary), list(dict.fromkeys(rows.task))
    skipped = rows[~rows.learnable].drop_duplicates(["task", "grade"])
    flops, num_seeds = rows.total_flops.median(), int(rows.groupby("entry").seed.nunique().max())
    lines = [
        "; ".join([*dict.fromkeys(cell["machine"] for cell in results), *_revisions(results)]),
        f"Language model and policy are trained together, with {with_unit(flops, 'FLOPs')} a cell, trials included, "
        f"and {num_seeds} seed{'s' * (num_seeds > 1)}. A score is 0 for evenly spaced boundaries (`uniform`) and 1 for "
        f"the oracle's, in each task and grade. CPU seconds are those of training on one thread. Without evaluations, "
        f"{3600 / rows.cpu_seconds.mean():.0f} cells would be trained per core-hour.",
        f"A cell whose realised rate is more than {100 * RATE_TOLERANCE:g} % off the target is forfeited: it scores 0. "
        "IQM is the mean of the middle half of all cells; intervals are stratified bootstraps over seeds. Bold means "
        "are not significantly worse than the best (95 %, paired t-test over tasks and grades, within a task over "
        "seeds; the oracle is no contestant).",
        *warnings,
    ]
    if len(skipped):
        names = ", ".join(f"`{task}` grade {grade}" for task, grade in zip(skipped.task, skipped.grade, strict=True))
        lines.append(
            f"Not learnable at this budget, and left out of all scores: {names}. There the oracle gains less than "
            f"{LEAST_GAIN:g} of the optimal return over evenly spaced boundaries, has a negative share, or is missing."
        )
    return [
        *lines,
        "## Entries",
        entry_table(rows, summary),
        "![Interquartile means](intervals.png)",
        "![Performance profiles](profiles.png)",
        "![Score against FLOPs and CPU seconds](cost.png)",
        "## Tasks",
        "Mean scores; `×` marks entries with forfeited cells.",
        task_table(rows, entries),
        "![Scores by task](tasks.png)",
        bullets([read_task(rows, task, _contestants(entries)) for task in tasks]),
        "Each statement is a 95 % paired t-test, without a correction for their number.",
        *read_signal(rows),
        "## Probability of improvement",
        "Of the row's entry over the column's.",
        improvement_table(rows, entries),
        "## Learning curves",
        f"Bands, of references and the best {suite_figures.BANDS} entries, are standard deviations over seeds.",
        "![Learning curves](curves.png)",
    ]


def write_page(
    results: Sequence[dict[str, Any]],
    out: Path,
    command: str,
    *,
    further: Sequence[dict[str, Any]] = (),
    missing: int = 0,
    failed: int = 0,
) -> str:
    """Write ``suite.md``, ``suite.json`` and the figures; return the page.

    ``further`` are the cells of some entries and both references with further seeds: they have a section of their own,
    so that all other statistics compare entries with equal seeds. ``suite.json`` has the statistics of entries, over
    equal seeds, and columns and rows of a table of all cells. Of ``missing`` cells, ``failed`` ones failed.
    """
    rows = score_cells(results)
    summary = summarise(rows)
    warnings = []
    if missing:
        reason = f", {failed} of which failed" if failed else ""
        warnings = [f"**Cells of this command that are missing: {missing}{reason}.** The same command trains them."]
    lines = [f"`{command}`", *page_lines([*results, *further], rows, summary, warnings)]
    saved, content = rows, {"command": command, "summary": summary}
    if further:
        entries = {cell["entry"] for cell in further}
        compared = score_cells([*(cell for cell in results if cell["entry"] in entries), *further])
        lines += _further_section(compared, rows.seed.nunique())
        saved = pd.concat([rows, compared[~compared.seed.isin(rows.seed)]])
        content["further"] = summarise(compared)
    page = "\n\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    content["cells"] = saved[list(SAVED)].round(4).to_dict("split", index=False)
    replace_text(out / "suite.json", json.dumps(without_nan(content), default=list, separators=(",", ":")) + "\n")
    suite_figures.draw_all(results, rows, summary, out)
    replace_text(out / "suite.md", page)
    return page


def _chance(value: float, limits: tuple[float, float] | None = None) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.2f}" + (f" [{limits[0]:.2f}, {limits[1]:.2f}]" if limits else "")


def _contestants(entries: Any) -> list[str]:
    return [entry for entry in entries if entry != ORACLE]


def _revisions(results: Sequence[dict[str, Any]]) -> list[str]:
    """Name the commits that trained the cells."""
    known = dict.fromkeys((cell["git"]["revision"][:12], cell["git"]["dirty"]) for cell in results if cell.get("git"))
    return [f"commit {revision}{' with changes' if dirty else ''}" for revision, dirty in known]

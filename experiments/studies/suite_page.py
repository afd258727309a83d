"""Page of the boundary suite: tables, what they show task by task, and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.markdown import bullets, with_unit, without_nan
from rltok_rl.experiments.reports.table import RATE_TOLERANCE
from rltok_rl.experiments.studies import suite_figures
from rltok_rl.experiments.studies.suite_further import compare_further, further_section
from rltok_rl.experiments.studies.suite_scores import (
    LEAST_GAIN,
    UNIFORM,
    best_entries,
    paired_difference,
    score_cells,
    signal_correlations,
)
from rltok_rl.experiments.studies.suite_tables import (
    SEED_PAIRS,
    contestants,
    entry_table,
    improvement_table,
    summarise,
    task_table,
)

from rltok_rl.data.disk import replace_text
from rltok_rl.data.languages import TASKS

SAVED = ("task", "grade", "entry", "seed", "cpu_seconds", "share", "rate", "signal", "forfeited", "score")
"""Columns of the table of cells in ``suite.json``."""
_MOST_NAMED = 3  # of entries between which no test decides; the table has them all in bold


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
        bullets([read_task(rows, task, contestants(entries)) for task in tasks]),
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

    ``further`` are cells of some entries with further seeds: they have a section of their own, so that all other
    statistics compare entries with equal seeds. ``suite.json`` has the statistics of entries, over equal seeds, those
    of further ones, and columns and rows of a table of all cells. Of ``missing`` cells, ``failed`` ones failed.
    """
    rows = score_cells(results)
    summary = summarise(rows)
    warnings = []
    if missing:
        reason = f", of which {failed} failed" if failed else ""
        warnings = [f"**Missing cells of this command: {missing}{reason}.** The same command trains them."]
    lines = [f"`{command}`", *page_lines([*results, *further], rows, summary, warnings)]
    saved, content = rows, {"command": command, "summary": summary}
    if further:
        more = score_cells(further, references=results)
        compared = compare_further(rows, more)
        lines += further_section(rows, more, compared)
        saved, content["further"] = pd.concat([rows, more]), compared
    page = "\n\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    content["cells"] = saved[list(SAVED)].round(4).to_dict("split", index=False)
    replace_text(out / "suite.json", json.dumps(without_nan(content), default=list, separators=(",", ":")) + "\n")
    suite_figures.draw_all(results, rows, summary, out)
    replace_text(out / "suite.md", page)
    return page


def _revisions(results: Sequence[dict[str, Any]]) -> list[str]:
    """Name the commits that trained the cells."""
    known = dict.fromkeys((cell["git"]["revision"][:12], cell["git"]["dirty"]) for cell in results if cell.get("git"))
    return [f"commit {revision}{' with changes' if dirty else ''}" for revision, dirty in known]

"""Page of the boundary suite: tables, what they show task by task, and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.markdown import bullets, with_unit, without_nan
from rltok_rl.experiments.reports.table import RATE_TOLERANCE
from rltok_rl.experiments.studies import suite_figures
from rltok_rl.experiments.studies.suite_further import compare_further, further_section
from rltok_rl.experiments.studies.suite_scores import (
    LEAST_GAIN,
    ORACLE,
    UNIFORM,
    best_entries,
    contestants,
    paired_difference,
    score_cells,
    signal_correlations,
)
from rltok_rl.experiments.studies.suite_tables import (
    MOST_COMPARED,
    SEED_PAIRS,
    entry_table,
    improvement_table,
    summarise,
    task_table,
)

from rltok_rl.data.disk import replace_text
from rltok_rl.data.languages import TASKS
from rltok_rl.training.environment import CHANGES

SAVED = ("task", "grade", "entry", "seed", "cpu_seconds", "share", "rate", "signal", "forfeited", "score")
"""Columns of the table of cells in ``suite.json``."""
_MOST_NAMED = 3  # of entries between which no test decides; the table has them all in bold


def read_task(rows: pd.DataFrame, task: str) -> str:
    """Say which entries win a task, and which beat evenly spaced boundaries, as far as tests decide."""
    rows = rows[(rows.task == task) & rows.learnable]
    start, means = f"`{task}` ({TASKS[task].isolates}): ", rows.groupby("entry").score.mean()
    ranked = sorted(contestants(rows), key=lambda entry: -means[entry])
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
    better = {entry: test.significant and test.mean > 0 for entry, test in known.items()}
    return start + text + (f" Better than evenly spaced: {_named(better)}." if known else "")


def _named(chosen: Mapping[str, bool]) -> str:
    """Name the chosen entries, or if there are many and fewer others, those."""
    names, others = ([f"`{entry}`" for entry, kept in chosen.items() if kept == wanted] for wanted in (True, False))
    if len(names) > max(_MOST_NAMED, len(others)):
        return f"all but {', '.join(others)}" if others else "all"
    return ", ".join(names) or "none"


def read_signal(rows: pd.DataFrame) -> list[str]:
    """Say how well the signal to noise of policy gradients ranks cells; nothing if it was not measured."""
    correlations = signal_correlations(rows)
    if not correlations:
        return []
    each = ", ".join(f"`{task}` {grade} {value:.2f}" for (task, grade), value in correlations.items())
    means = (_mean(signal_correlations(rows, evaluation=place)) for place in range(rows.signals.map(len).max()))
    by_evaluation = ", ".join("-" if mean is None else f"{mean:.2f}" for mean in means)
    return [
        "Spearman's correlation of scores with the policy gradient's signal to noise, averaged over evaluations during "
        f"training, is {_mean(correlations):.2f} (mean over tasks and grades: {each}). With the signal of one "
        f"evaluation, from the first, before training, to the last, it is {by_evaluation}."
    ]


def _mean(correlations: Mapping[Any, float]) -> float | None:
    return sum(correlations.values()) / len(correlations) if correlations else None


def page_lines(
    results: Sequence[dict[str, Any]], rows: pd.DataFrame, summary: dict[str, dict[str, Any]], warnings: Sequence[str]
) -> list[str]:
    """Return the paragraphs of the page, without its command."""
    entries, tasks = list(summary), list(dict.fromkeys(rows.task))
    skipped = rows[~rows.learnable].drop_duplicates(["task", "grade"])
    flops, num_seeds = rows.total_flops.median(), int(rows.groupby("entry").seed.nunique().max())
    lines = [
        "; ".join([*dict.fromkeys(cell["machine"] for cell in results), *_revisions(results, len(rows))]),
        f"Language model and policy are trained together, with {with_unit(flops, 'FLOPs')} a cell, trials included, "
        f"and {num_seeds} seed{'s' * (num_seeds > 1)}. A score is 0 for evenly spaced boundaries (`uniform`) and 1 for "
        f"the oracle's, in each task and grade. CPU seconds are those of training on one thread, without evaluations: "
        f"{rows.cpu_seconds.sum() / 3600:.1f} hours for {len(rows)} cells, {3600 / rows.cpu_seconds.mean():.0f} cells "
        "per core-hour. Commits may differ in speed.",
        f"A cell whose realised rate is more than {100 * RATE_TOLERANCE:g} % off the target is forfeited: it scores 0. "
        "IQM is the mean of the middle half of all cells; intervals are stratified bootstraps over seeds. Bold means "
        "are not significantly worse than the best (95 %, paired t-test over tasks and grades, within a task over "
        "seeds); the oracle is no contestant, nor are entries that forfeit all cells.",
        *warnings,
    ]
    if len(skipped):
        names = ", ".join(
            f"`{task}` grade {grade} ({oracle:.2f} and {uniform:.2f})"
            for task, grade, oracle, uniform in skipped[["task", "grade", ORACLE, UNIFORM]].itertuples(index=False)
        )
        lines.append(
            f"Not learnable at this budget, and left out of all scores: {names}. In brackets are the shares of the "
            f"oracle, which must be positive and {LEAST_GAIN:g} above the other, and of evenly spaced boundaries "
            "(nan: not trained)."
        )
    more = f", for the first {MOST_COMPARED} entries" if len(entries) > MOST_COMPARED else ""
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
        bullets([read_task(rows, task) for task in tasks]),
        "Each statement is a 95 % t-test, paired over seeds by means over grades, without a correction for their "
        "number. So is bold: an entry whose seeds differ much may be bold with a lower mean than one that is not.",
        *read_signal(rows),
        "## Probability of improvement",
        f"Of the row's entry over the column's{more}.",
        improvement_table(rows, entries),
        "## Learning curves",
        f"Bands, of references and the best {suite_figures.BANDS} entries, are standard deviations over seeds. Figures "
        f"with lines have the references, the best {suite_figures.DRAWN} entries, and `paper`.",
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


def _revisions(results: Sequence[dict[str, Any]], num_equal: int) -> list[str]:
    """Name the commits that trained the cells, and how many each."""
    known = Counter((cell["git"]["revision"][:12], cell["git"]["dirty"]) for cell in results if cell.get("git"))
    texts = [f"{revision}{CHANGES[dirty]} ({count})" for (revision, dirty), count in known.most_common()]
    words = "cells by commit" + ", further seeds included" * (len(results) > num_equal)
    return [f"{words}: {', '.join(texts)}"] if texts else []

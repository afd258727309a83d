"""Cost and learning of all estimators beside the signal, bias and variance of their gradients.

Everything is read from a folder of results: ``moments``, the boundary suite and ``compare-grid``.
``docs/rltok_docs/estimator_page.py`` writes the tables into a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.earlier_seeds import read_earlier
from rltok_rl.experiments.reports.markdown import markdown, number, percent, score_text
from rltok_rl.experiments.reports.paired import Difference, interval, paired_over_seeds
from rltok_rl.experiments.reports.seed_table import SeedTable
from rltok_rl.experiments.reports.seeds_page import TABLE
from rltok_rl.experiments.studies import suite_scores
from rltok_rl.experiments.studies.measured_estimators import ESTIMATORS, Estimator
from rltok_rl.experiments.studies.pages import is_clear

from rltok_rl.foreign import MOST_STATE, read_json
from rltok_rl.viz.style import ALERT, OURS, PALE, plain_figures, save_figure

MODELS = {"recall": "`Recall`", "books": "books"}
"""Folders of ``moments`` and their names in tables."""
REFERENCE = "unscaled"
"""System that losses on books are relative to."""
SEEDS = 5
"""Seeds of the suite, from 0 on, that scores are over."""


@dataclass(frozen=True)
class Row:
    """An estimator with its numbers; None where it was not run."""

    estimator: Estimator
    moments: dict[str, list[dict[str, Any]]]
    """Its measurements in each model, one per moment of the training."""
    score: float | None
    limits: tuple[float, float] | None
    """95 % limits of ``score``, resampling seeds within each task and grade."""
    suite_trials: float | None
    """Share of trials in the FLOPs of the suite, over cells that have recorded it; None if none has."""
    suite_seconds: float | None
    """CPU seconds of training a cell of the suite."""
    loss: Difference | None
    """Bits per byte on books minus those of the reference, over seeds."""
    books_trials: float | None
    books_seconds: float | None
    """CPU seconds of training on books; None without files, as ``books_trials`` and ``rate``."""
    rate: float | None
    """Boundaries per byte on books."""


def read_rows(results: Path) -> list[Row]:
    """Return all estimators, those with a score in the suite first and the best of them first."""
    measured = {model: _moments(results / "moments" / model) for model in MODELS}
    books = SeedTable(read_earlier(results / "compare-grid" / TABLE))
    summary = read_json(results / "suite" / "suite.json", MOST_STATE)["summary"]
    cells = suite_scores.read_archive(results / "suite") + suite_scores.read_other_entries(results / "suite")
    cells = [cell for cell in cells if cell["seed"] < SEEDS]
    scored = suite_scores.score_cells(cells)
    rows = []
    for estimator in ESTIMATORS:
        score, limits, tried, seconds = None, None, None, None
        if estimator.entry is not None:
            if estimator.entry in summary:
                score, limits = (summary[estimator.entry][name] for name in ("iqm", "interval"))
            else:
                scores = suite_scores.strata(scored, estimator.entry)
                score, limits = suite_scores.pooled_iqm(scores), suite_scores.interval(scores)
            own = [cell for cell in cells if cell["entry"] == estimator.entry]
            if not own:
                raise ValueError(f"entry must have cells in {results / 'suite'}, got {estimator.entry!r}")
            recorded = [share for share in map(_trials, own) if not math.isnan(share)]
            tried = sum(recorded) / len(recorded) if recorded else None
            seconds = sum(cell["cpu_seconds"] for cell in own) / len(own)
        loss, trials, books_seconds, rate = _on_books(books, estimator)
        moments = {model: [moment[estimator.candidate] for moment in measured[model]] for model in MODELS}
        rows.append(Row(estimator, moments, score, limits, tried, seconds, loss, trials, books_seconds, rate))
    return sorted(rows, key=lambda row: (row.score is None, -(row.score or 0), row.loss.mean if row.loss else math.inf))


def _trials(cell: dict[str, Any]) -> float:
    """Return the share of trials in a cell's FLOPs; NaN if it was not recorded."""
    return cell["trials"] if "trials" in cell else 1 - cell["flops"] / cell["total_flops"]


def _moments(folder: Path) -> list[dict[str, dict[str, Any]]]:
    """Return the measurements of all candidates at each moment."""
    content = read_json(folder / "moments.json", MOST_STATE)
    return [{row["name"]: row for row in moment["rows"]} for moment in content["moments"]]


def _on_books(
    books: SeedTable, estimator: Estimator
) -> tuple[Difference | None, float | None, float | None, float | None]:
    """Return the difference of losses from the reference, the share of trials in a run, CPU seconds and the rate."""
    if estimator.losses:
        reference = books.losses[REFERENCE].dropna().to_dict()
        return paired_over_seeds(dict(enumerate(estimator.losses)), reference), None, None, None
    if estimator.system is None:
        return None, None, None, None
    runs = books.rows[books.rows["system"] == estimator.system]
    seconds, rate = (float(runs[name].astype(float).mean()) for name in ("cpu_seconds", "rate"))
    return books.over_seeds(estimator.system, REFERENCE), books.trials(estimator.system), seconds, rate


def learning_table(rows: Sequence[Row]) -> str:
    """Return scores, shares of trials and CPU times."""
    suite, books = ("suite", "suite trials", "suite CPU s"), ("books", "books rate", "books trials", "books CPU min")
    header = ["estimator", *suite, *books, "runs differ in"]
    lines = []
    for row in rows:
        if row.score is None and row.loss is None:
            continue  # its gradient alone was measured
        score = score_text(row.score, row.limits)
        loss = "0" if row.estimator.system == REFERENCE else interval(row.loss)
        in_suite = [_or_dash(row.suite_trials, _share), _or_dash(row.suite_seconds, "{:.0f}".format)]
        minutes = None if row.books_seconds is None else row.books_seconds / 60
        on_books = [_or_dash(row.rate, "{:.3f}".format), _or_dash(row.books_trials, _share)]
        on_books.append(_or_dash(minutes, "{:.1f}".format))
        lines.append([row.estimator.label, score, *in_suite, loss, *on_books, row.estimator.differing or "-"])
    return markdown(header, lines) + "\n"


def gradient_table(rows: Sequence[Row]) -> str:
    """Return cost, signal, bias and variance of the gradient; cells list the moments."""
    parts = ("cost", "signal", "bias", "variance")
    header = ["estimator", *(f"{name} {part}" for name in MODELS.values() for part in parts)]
    lines = []
    for row in rows:
        cells = [row.estimator.label]
        for model in MODELS:
            moments = row.moments[model]
            biases = [bias_text(moment) for moment in moments]
            if row.estimator.own_gradient:
                biases = ["-"]
            variances = [number(moment["variance"], 2) for moment in moments]
            signals = [signal_text(moment) for moment in moments]
            cells += [number(moments[0]["cost"], 3), *(", ".join(texts) for texts in (signals, biases, variances))]
        lines.append(cells)
    return markdown(header, lines) + "\n"


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _share(share: float) -> str:
    return percent(share) if share > 1e-4 else "0"


def signal_text(moment: dict[str, Any]) -> str:
    """Format signal to noise at equal cost; ``lost`` below two standard errors."""
    return number(moment["per_cost"], 2) if is_clear(moment) else "lost"


def bias_text(moment: dict[str, Any]) -> str:
    """Format the bias if its square exceeds two standard errors; a dash if not.

    Example:
        >>> bias_text({"bias": 0.6, "bias_limit": 0.7}), bias_text({"bias": 0.1, "bias_limit": 0.3})
        ('0.60', '-')
    """
    return number(moment["bias"], 2) if 2 * moment["bias"] ** 2 > moment["bias_limit"] ** 2 else "-"


def draw(rows: Sequence[Row], path: Path) -> Path:
    """Draw a line per estimator: what it learned in the suite and on books, and its early signal in both models."""
    titles = ("suite, interquartile mean", "books, bits per byte gained", "signal, `Recall`", "signal, books")
    with plain_figures() as plt:
        figure, panels = plt.subplots(1, 4, figsize=(9, 0.19 * len(rows) + 0.8), sharey=True, layout="constrained")
        for place, row in enumerate(reversed(rows)):
            style: Any = {"marker": "o", "ms": 4, "color": ALERT if row.estimator.papers else OURS}
            if row.score is not None and row.limits is not None:
                panels[0].plot(row.limits, [place, place], color=PALE, lw=1.2)
                panels[0].plot(row.score, place, **style)
            if row.loss is not None:
                half = 0.0 if row.estimator.system == REFERENCE else row.loss.half_width
                panels[1].plot([-row.loss.mean - half, -row.loss.mean + half], [place, place], color=PALE, lw=1.2)
                panels[1].plot(-row.loss.mean, place, **style)
            for axes, model in zip(panels[2:], MODELS, strict=True):
                moment = row.moments[model][0]
                if is_clear(moment):
                    value, error = moment["per_cost"], 1.96 * moment["error"] / moment["cost"]
                    axes.plot([value - error, value + error], [place, place], color=PALE, lw=1.2)
                    axes.plot(value, place, **style)
        labels = [row.estimator.label.replace("`", "") for row in reversed(rows)]
        panels[0].set_yticks(range(len(rows)), labels)
        panels[0].set_xlabel("0: evenly spaced, 1: best boundaries")
        panels[1].set_xlabel("over unscaled")
        panels[1].axvline(0.0, color=PALE, lw=0.8, zorder=0)
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title.replace("`", ""))
            axes.grid(axis="y", color=PALE, alpha=0.25, lw=0.5)
        for axes in panels[2:]:
            axes.set_xscale("log")
            axes.set_xlabel("signal / noise after 5 %")
        return save_figure(figure, path)

"""The table and figure of estimators: cost, signal, bias and variance beside learning, from committed results.

``python docs/rltok_docs/estimator_table.py`` writes the table into docs/results/estimators.md, and the figure.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.markdown import markdown, number, percent
from rltok_rl.experiments.reports.paired import Difference, interval, paired_over_seeds
from rltok_rl.experiments.reports.seed_table import SeedTable
from rltok_rl.experiments.studies import suite_scores

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, plain_figures, save_figure

DOCS = Path(__file__).resolve().parent.parent
PAGE, FIGURE = DOCS / "results" / "estimators.md", DOCS / "figures" / "estimators.png"
RESULTS = DOCS.parent / "experiments" / "results"
MODELS = ("recall", "books")
_START, _END = "<!-- table: docs/rltok_docs/estimator_table.py -->\n", "<!-- end of table -->\n"


@dataclass(frozen=True)
class Estimator:
    """A row of the table, and where its numbers are."""

    label: str
    candidate: str
    """Its name in the study of moments."""
    entry: str | None = None
    """Its entry in the boundary suite, among the files of the suite or in ``other-entries.csv``."""
    system: str | None = None
    """Its system on the page of ``compare-grid``."""
    other: str = ""
    """Options of the runs of suite and books that differ from those of the study."""


FEW, ONE = "one row in four until settled", "one update of the critic per batch"
ESTIMATORS = (
    Estimator("batch mean (the paper's)", "paper@0.9", "batch_mean@0.9", "unscaled"),
    Estimator("batch mean, gamma 0.95", "paper@0.95", "batch_mean@0.95", "gamma-0.95"),
    Estimator("batch mean, gamma 0.99", "paper@0.99", "batch_mean@0.99", "gamma-0.99"),
    Estimator("batch mean, gamma 1", "paper"),
    Estimator("leave-one-out", "leave_one_out@0.9", "leave_one_out@0.9", "leave-one-out"),
    Estimator("running mean", "running_mean@0.9", "running_mean@0.9", "running-mean"),
    Estimator("z-score", "z_score@0.9", "z_score@0.9", "z-score"),
    Estimator("control variate", "control_variate@0.9", "control_variate@0.9", "control-variate"),
    Estimator("regression on states", "regression@0.9"),
    Estimator("critic, lambda 0.95", "critic_td@0.9", "critic_advantage@0.9", "critic", ONE),
    Estimator("critic, lambda 1", "critic@0.9", None, "critic-1", ONE),
    Estimator("critic that pools tokens, lambda 0.95", "pooled_critic_td@0.9", None, "pooled-critic", ONE),
    Estimator("critic that pools tokens, lambda 1", "pooled_critic@0.9", None, "pooled-critic-1", ONE),
    Estimator("natural gradients", "natural@0.9", None, "natural-gradient"),
    Estimator("natural gradients, gamma 0.95 (`ours`)", "natural@0.95", "ours", "ours", "norm, warm start"),
    Estimator("two rows per text", "group_mean_2@0.9", "group_mean@0.9"),
    Estimator("four rows per text", "group_mean_4@0.9"),
    Estimator("second row", "sibling_trial@0.9", "sibling_trial@0.9", "sibling-trial", FEW),
    Estimator("second row, in blocks", "sibling_trial_blocks@0.9"),
    Estimator("second row, antithetic", "sibling_trial_antithetic@0.9"),
    Estimator(
        "second row, DisARM's weights",
        "sibling_trial_disarm@0.9",
        "disarm@0.99, warm start",
        "disarm",
        f"gamma 0.99, warm start, {FEW}",
    ),
    Estimator("local flips", "local_flips@0.9", "local_flips@0.9", "flips", "2 per 16 bytes"),
    Estimator("doubly robust flips", "doubly_robust@0.9", "doubly_robust@0.9", "doubly-robust", f"2, {FEW}"),
    Estimator("token gains", "token_gain@0.9", "token_gain@0.9"),
    Estimator("token gains, gamma 1", "token_gain", None, "token-gain", FEW),
    Estimator("token gains of four rows, gamma 1", "shared_gain_4"),
)


def moments(model: str) -> list[dict[str, dict[str, Any]]]:
    """Return the study's rows by candidate, for each moment of a model's training."""
    content = json.loads((RESULTS / "moments" / model / "moments.json").read_text(encoding="utf-8"))
    return [{row["name"]: row for row in moment["rows"]} for moment in content["moments"]]


def signal(row: dict[str, Any]) -> str:
    """Format signal to noise at equal cost; ``lost`` below two standard errors."""
    return number(row["per_cost"], 2) if row["ratio"] >= 2 * row["error"] else "lost"


def bias(row: dict[str, Any]) -> str:
    """Format a bias that is significant, the square over two of its standard errors, or the bound of one that is not.

    A bound of 0, where noise made the estimated square negative, bounds nothing.
    """
    bias, limit = row["bias"], row["bias_limit"]
    if 2 * bias**2 > limit**2:
        return number(bias, 2)
    return f"< {number(limit, 2)}" if limit else "-"


class Learning:
    """Scores in the suite, and bits per byte on books, by estimator."""

    def __init__(self) -> None:
        suite = json.loads((RESULTS / "suite" / "suite.json").read_text(encoding="utf-8"))
        self.summary = suite["summary"]
        cells = pd.DataFrame(suite["cells"]["data"], columns=suite["cells"]["columns"])
        self.references = [_cell(row) for row in cells.to_dict("records") if row["seed"] < 5]
        self.others = pd.read_csv(RESULTS / "suite" / "other-entries.csv")
        page = json.loads((RESULTS / "compare-grid" / "compare-seeds.json").read_text(encoding="utf-8"))
        self.books = SeedTable(page)

    def score(self, entry: str) -> tuple[float, tuple[float, float], float]:
        """Return the interquartile mean in seeds 0 to 4, its interval, and the CPU seconds of a cell."""
        if entry in self.summary:
            scores = self.summary[entry]
            return scores["iqm"], scores["interval"], scores["cpu_seconds"]
        cells = self.others[(self.others.entry == entry) & (self.others.seed < 5)]
        rows = suite_scores.score_cells([_cell(row) for row in cells.to_dict("records")], references=self.references)
        scores = suite_scores.strata(rows, entry)
        limits = suite_scores.interval(scores)
        assert limits is not None, entry
        return suite_scores.pooled_iqm(scores), limits, float(cells.cpu_seconds.mean())

    def loss(self, system: str) -> Difference:
        """Return bits per byte on books minus those of ``unscaled``, over seeds."""
        losses = self.books.losses
        difference = paired_over_seeds(losses[system].dropna(), losses["unscaled"].dropna())
        assert difference is not None
        return difference

    def costs(self, system: str) -> tuple[str, str]:
        """Return the share of trials in a run's FLOPs, and its CPU minutes."""
        rows = self.books.rows[self.books.rows["system"] == system]
        tried = (rows["tried_flops"] / (rows["flops"] + rows["tried_flops"])).astype(float).mean()
        seconds = pd.to_numeric(rows["cpu_seconds"]).mean()
        return percent(tried) if tried else "0", number(seconds / 60, 2)


def _cell(row: dict[str, Any]) -> dict[str, Any]:
    return {"target_rate": math.nan, "total_flops": math.nan, **row, "final": row}


def table() -> str:
    """Return the table: a row per estimator, whose cells have the values of the three moments."""
    learning, models = Learning(), [moments(model) for model in MODELS]
    header = ["estimator", "cost"]
    for model in ("`Recall`", "books"):
        header += [f"{model}: signal", "bias", "variance"]
    header += ["suite", "CPU s", "books", "trials", "CPU min", "runs differ in"]
    lines = []
    for row in ESTIMATORS:
        cells = [row.label, number(models[0][0][row.candidate]["cost"], 3)]
        for model in models:
            measured = [moment[row.candidate] for moment in model]
            cells += [", ".join(map(signal, measured)), ", ".join(map(bias, measured))]
            cells.append(", ".join(number(moment["variance"], 2) for moment in measured))
        if row.entry is None:
            cells += ["-", "-"]
        else:
            score, (low, high), seconds = learning.score(row.entry)
            cells += [f"{score:.3f} [{low:.3f}, {high:.3f}]", number(seconds, 2)]
        if row.system is None:
            cells += ["-", "-", "-"]
        else:
            loss = learning.loss(row.system)
            cells += [interval(loss) if row.system != "unscaled" else "0", *learning.costs(row.system)]
        lines.append([*cells, row.other or "-"])
    return markdown(header, lines) + "\n"


def page() -> str:
    """Return the page with a fresh table."""
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(f"(?<={re.escape(_START)}).*(?={re.escape(_END)})", lambda _: f"\n{table()}\n", text, flags=re.S)


def points(model: str) -> Iterator[tuple[Estimator, float, float, tuple[float, float]]]:
    """Yield estimators with their signal early in the training of a model, what they learned, and its interval.

    Those of ``recall`` learned the suite, those of ``books`` books.
    """
    learning, early = Learning(), moments(model)[0]
    for row in ESTIMATORS:
        measured = early[row.candidate]
        if measured["ratio"] < 2 * measured["error"]:
            continue
        if model == "recall" and row.entry is not None:
            score, limits, _ = learning.score(row.entry)
            yield row, measured["per_cost"], score, limits
        if model == "books" and row.system is not None:
            loss = learning.loss(row.system)
            half = 0.0 if row.system == "unscaled" else loss.half_width
            yield row, measured["per_cost"], loss.mean, (loss.mean - half, loss.mean + half)


def rank_correlation(model: str) -> float:
    """Return Spearman's rank correlation of the signal with what estimators learned."""
    from scipy.stats import spearmanr

    _, signals, learned, _ = zip(*points(model), strict=True)
    return float(spearmanr(signals, learned).statistic)


def draw(path: Path = FIGURE) -> Path:
    """Draw what estimators learned against their signal at equal cost."""
    titles = {
        "recall": "boundary suite, interquartile mean: higher is better",
        "books": "books, bits per byte minus unscaled: lower is better",
    }
    with plain_figures() as plt:
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.7), layout="constrained")
        for axes, (model, title) in zip(panels, titles.items(), strict=True):
            rows = sorted(points(model), key=lambda point: -point[2])
            for place, (row, x, y, limits) in enumerate(rows, 1):
                colour = ALERT if row.candidate == "paper@0.9" else OURS
                axes.plot([x, x], limits, color=PALE, lw=1, zorder=1)
                axes.plot(x, y, "o", color=colour, mfc="white" if row.other else colour, ms=4.5, zorder=3)
                axes.annotate(str(place), (x, y), (4, 2), textcoords="offset points", color=INK, fontsize=7)
            names = [f"{place}  {row.label.replace('`', '')}" for place, (row, *_) in enumerate(rows, 1)]
            axes.text(1.03, 1.0, "\n".join(names), transform=axes.transAxes, fontsize=6.5, va="top", linespacing=1.4)
            axes.set(xscale="log", title=f"{title}\nrank correlation {rank_correlation(model):.2f}")
            axes.margins(x=0.09)
            axes.set_xlabel("signal / noise at equal cost, early")
        return save_figure(figure, path)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, draw(), sep="\n", file=sys.stderr)

"""Tables and figures of the estimator study."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
from rltok_rl.experiments.reports.labels import ESTIMATOR_LABELS
from rltok_rl.experiments.reports.markdown import markdown, number

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, run_style

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FAMILY = {"raw": PALE, "batch": PALE, "early": PALE, "paper": ALERT}


def colour(name: str) -> str:
    """One colour for what the paper compares, one for its method, one for the rest."""
    return FAMILY.get(name.split("@")[0], OURS)


def give_or_take(value: float | None, error: float | None) -> str:
    """A value and its standard error to the same decimals, ``-`` where noise hides the value."""
    if value is None or error is None or not error > 0:
        return number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def gradient_table(rows: list[dict[str, Any]], *, exact: bool) -> str:
    """What was measured of the gradients, best first."""
    # A multiple of what is lost in noise would be noise.
    clear = (row["per_cost"] for row in rows if row["name"] == "paper" and row["ratio"] >= 2 * row["error"])
    best = next(clear, math.nan)
    body = [
        [
            f"`{row['name']}`",
            ESTIMATOR_LABELS.get(row["name"], ""),
            f"{number(row['ratio'])} ± {number(row['error'], 2)}",
            number(row["cost"]),
            number(row["per_cost"]),
            number(row["per_cost"] / best) if best > 0 else "-",
            number(row["per_petaflop"]),
            give_or_take(row["cosine"], row["cosine_error"]),
            give_or_take(row["scale"], row["scale_error"]),
            *([number(row["bias"]), number(row["bias_limit"]), number(row["variance"])] if exact else []),
        ]
        for row in sorted(rows, key=lambda r: -r["per_cost"])
    ]
    header = [
        "estimator",
        "",
        "signal / noise of a batch",
        "cost",
        "at equal cost",
        "times `paper`",
        "per petaflop",
        "cosine",
        "length",
    ]
    return markdown([*header, *(["bias", "at most", "variance"] if exact else [])], body)


def write_page(report: dict[str, Any], out: Path) -> Path:
    """All tables as Markdown."""
    study = report["options"]
    parts = [f"`{report['command']}`\n\n{report['machine']}; {report['seconds']} s\n"]
    real = report["real"]
    parts.append(
        f"## Real text, gamma {study['gamma']}\n\n{study['num_rows']} x {study['num_steps']} bytes, "
        f"{study['num_batches']} batches; rate {real['rate']:.3f}. Cosine and length are against gamma 1, "
        f"four rows per text, {study['reference_batches']} other batches.\n\n"
        + gradient_table(real["table"], exact=False)
    )
    if real["sweep"]:
        rows = {(r["name"].split("@")[0], float(r["name"].split("@")[1])): r for r in real["sweep"]}
        names = list(dict.fromkeys(name for name, _ in rows))
        body = [
            [f"{g:g}", *(f"{_at_equal_cost(rows[n, g])} ({number(rows[n, g]['cosine'])})" for n in names)]
            for g in study["gammas"]
        ]
        parts.append(
            "## Every gamma, real text\n\nSignal to noise at equal cost (cosine).\n\n"
            + markdown(["gamma", *(f"`{n}`" for n in names)], body)
        )
    if "exact" in report:
        for gamma, rows in report["exact"]["tables"].items():
            parts.append(
                f"## Short texts, gamma {gamma}, against the exact gradient\n\n{study['exact_texts']} texts of "
                f"{study['exact_bytes']} decisions, batches of 8 rows.\n\n" + gradient_table(rows, exact=True)
            )
    for kind, found in report["truth"].items():
        body = [
            [f"`{name}`", ESTIMATOR_LABELS.get(name, ""), f"{value:.3f} ± {error:.3f}"]
            for name, (value, error) in found["correlations"].items()
        ]
        parts.append(
            f"## Correlation with the {kind} advantage, gamma {study['gamma']}\n\n{_reliable(found['reliability'])}"
            "\n\n" + markdown(["estimator", "", "correlation"], body)
        )
    page = out / "estimators.md"
    page.write_text("\n\n".join(parts) + "\n")
    return page


def _at_equal_cost(row: dict[str, Any]) -> str:
    return give_or_take(row["per_cost"], row["error"] / row["cost"])


def _reliable(share: float) -> str:
    """What the noise of the truth itself does to correlations with it."""
    text = f"Of the variance of this truth {number(share, 2)} is not its own noise"
    if share <= 0:
        return f"{text}: nothing of it was measured, and correlations say nothing."
    return f"{text}: with a truth without noise, every correlation is {number(share**-0.5, 2)} times as large."


def draw_figures(report: dict[str, Any], out: Path) -> list[Path]:
    """Signal at equal cost, what gamma trades, agreement with the truth."""
    plt.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150, "text.color": INK}
    )
    made = [_draw_signal(report, out / "signal.png")]
    if report["real"]["sweep"]:
        made.append(_draw_gamma(report, out / "gamma.png"))
    if report["truth"]:
        made.append(_draw_truth(report, out / "truth.png"))
    return made


def _draw_signal(report: dict[str, Any], path: Path) -> Path:
    rows = sorted(report["real"]["table"], key=lambda r: r["per_cost"])
    figure, axes = plt.subplots(figsize=(7, 0.32 * len(rows) + 1.1), layout="constrained")
    floor = min((r["per_cost"] for r in rows if r["per_cost"] > 0), default=1e-4) / 2
    values = [max(r["per_cost"], floor) for r in rows]
    names = [r["name"] for r in rows]
    hidden = [r["ratio"] < 2 * r["error"] for r in rows]
    bars = axes.barh(names, values, color=[colour(n) for n in names], height=0.7)
    for one, lost in zip(bars, hidden, strict=True):
        one.set_alpha(0.35 if lost else 1.0)
    for place, row in enumerate(rows):
        error = row["error"] / row["cost"]
        text = "lost in noise" if hidden[place] else number(row["per_cost"], 2)
        right = max(row["per_cost"] + (0 if hidden[place] else error), floor)
        axes.text(right * 1.08, place, text, va="center", fontsize=8)
        if not hidden[place]:
            axes.plot([row["per_cost"] - error, row["per_cost"] + error], [place, place], color=INK, lw=1)
    axes.set_xscale("log")
    axes.set_xlim(left=floor * 0.8, right=max(values) * 2.5)
    axes.set_xlabel("signal to noise of the policy gradient that the cost of a plain update buys")
    title = f"gamma = {report['options']['gamma']}; black: one standard error; orange: the paper's; grey: its ablations"
    axes.set_title(title, fontsize=9, loc="left")
    axes.margins(y=0.01)
    figure.savefig(path)
    plt.close(figure)
    return path


def _draw_gamma(report: dict[str, Any], path: Path) -> Path:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    names = list(dict.fromkeys(r["name"].split("@")[0] for r in report["real"]["sweep"]))
    gammas = report["options"]["gammas"]
    for place, name in enumerate(names):
        rows = [next(r for r in report["real"]["sweep"] if r["name"] == f"{name}@{g}") for g in gammas]
        shown = run_style(len(names) - 1 - place)  # the paper is first, and orange as elsewhere
        look = {
            "color": shown.colour,
            "marker": shown.marker,
            "ms": 3.5,
            "elinewidth": 0.8,
            "label": name,
        }
        seen = [r["per_cost"] > 2 * r["error"] / r["cost"] for r in rows]
        left.errorbar(
            range(len(gammas)),
            [r["per_cost"] if one else math.nan for r, one in zip(rows, seen, strict=True)],
            [r["error"] / r["cost"] for r in rows],
            **look,
        )
        right.errorbar(
            range(len(gammas)),
            [math.nan if r["cosine"] is None else r["cosine"] for r in rows],
            [r["cosine_error"] or 0.0 for r in rows],
            **look,
        )
    titles = ("signal to noise at equal cost", "cosine to the unbiased gradient")
    for axes, title in zip((left, right), titles, strict=True):
        axes.set_xticks(range(len(gammas)), [str(g) for g in gammas])
        axes.set_xlabel("gamma")
        axes.set_title(f"{title}, ± one std. error", fontsize=9, loc="left")
    if any(line.get_ydata()[i] > 0 for line in left.lines for i in range(len(gammas))):
        left.set_yscale("log")
    right.axhline(1.0, color=PALE, lw=0.6, zorder=0)
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    plt.close(figure)
    return path


def _draw_truth(report: dict[str, Any], path: Path) -> Path:
    kinds = list(report["truth"])
    count = max(len(found["correlations"]) for found in report["truth"].values())
    figure, panels = plt.subplots(
        1, len(kinds), figsize=(4.2 * len(kinds), 0.3 * count + 1), layout="constrained", squeeze=False
    )
    for axes, kind in zip(panels[0], kinds, strict=True):
        found = sorted(report["truth"][kind]["correlations"].items(), key=lambda item: item[1])
        names, values = [n for n, _ in found], [v for _, (v, _) in found]
        axes.barh(names, values, color=[colour(n) for n in names], height=0.7)
        for place, (_, (value, error)) in enumerate(found):
            axes.plot([value - error, value + error], [place, place], color=INK, lw=1)
            axes.text(max(value + error, 0) + 0.004, place, f"{value:.3f}", va="center", fontsize=8)
        axes.set_title(f"correlation with the {kind} advantage", fontsize=9, loc="left")
        axes.margins(x=0.18)
    figure.savefig(path)
    plt.close(figure)
    return path

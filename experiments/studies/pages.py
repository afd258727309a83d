"""Page and figures of the estimator study."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.markdown import markdown, number, with_error

from rltok_rl.renamed import current_word
from rltok_rl.viz.style import ALERT, INK, OURS, PALE, plain_figures, run_style, save_figure

ESTIMATOR_LABELS = {
    "decision": "nothing: the decision minus its probability",
    "raw": "log-likelihood alone",
    "batch": "log-likelihood, batch mean",
    "early": "early exit",
    "paper": "early exit, batch mean: the paper's",
    "leave_one_out": "early exit, mean of the other rows",
    "entropy_relative": "early exit's entropy instead of its likelihood, mean of the other rows",
    "z_score": "early exit, z-score",
    "running_mean": "early exit, mean of earlier batches",
    "natural": "early exit, batch mean, over p (1 - p)",
    "control_variate": "early exit, regression on its later log-likelihoods",
    "regression": "early exit, regression on what the early exit knows of the text",
    "critic_td": "early exit, critic, lambda 0.95",
    "critic": "early exit, critic, lambda 1",
    "pooled_critic_td": "early exit, critic that pools tokens, lambda 0.95",
    "pooled_critic": "early exit, critic that pools tokens, lambda 1",
    "group_mean_2": "two rows per text, compared with each other",
    "group_mean_4": "four rows per text",
    "group_mean_8": "eight rows per text",
    "local_flips": "local flips: 3 per 16 bytes",
    "local_flips_far": "local flips: 3 per 32 bytes",
    "budgeted_flips": "local flips: 2 per 16 bytes, in one row of four",
    "doubly_robust": "local flips: 3 per 16 bytes, and predictions of their effects at every byte",
    "sibling_trial": "a second row of each text that runs forward only",
    "sibling_trial_blocks": "a second row that runs forward only, with equal numbers in every other block of 16 bytes",
    "sibling_trial_antithetic": "a second row that runs forward only, with random numbers 1 - u",
    "sibling_trial_disarm": "a second row that runs forward only, with random numbers 1 - u and the weights of DisARM",
    "token_gain": "every second token left out",
    "token_gain_8": "every token left out, in eight passes",
    "shared_gain_4": "every second token left out, effects of four rows per text averaged",
    "shared_gain_8": "every second token left out, effects of eight rows per text averaged",
}
"""Estimators of the policy gradient, by the current form of their names in `estimators.json`."""
_COLOURS = {"raw": PALE, "batch": PALE, "early": PALE, "paper": ALERT}
"""The paper's method and its ablations; all others have one colour."""


def label(name: str) -> str:
    """Return the label of an estimator, by its old or current name, without its discount."""
    return ESTIMATOR_LABELS.get(current_word("candidate", name.partition("@")[0]), "")


def value_and_error(value: float | None, error: float | None) -> str:
    """Format a value and its standard error with the same decimals; ``-`` if there is no value."""
    if value is None or error is None or not error > 0:
        return number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _bias(row: dict[str, Any]) -> tuple[str, str]:
    """Format a bias and its bound, which may be 0 in earlier results, where it bounds nothing."""
    return (number(row["bias"]), number(row["bias_limit"])) if row["bias_limit"] else ("-", "-")


def is_clear(row: dict[str, Any]) -> bool:
    """Return whether signal to noise is at least two standard errors."""
    return bool(row["ratio"] >= 2 * row["error"])


def gradient_table(rows: list[dict[str, Any]], *, exact: bool) -> str:
    """Return a Markdown table of signal, cost and bias, best first."""
    # Signal of the paper's estimator, if it is clear of noise: a multiple of noise would be noise.
    clear = (row["per_cost"] for row in rows if row["name"] == "paper" and is_clear(row))
    paper = next(clear, math.nan)
    header = ["estimator", "", "signal / noise of a batch", "cost", "at equal cost", "times `paper`", "per petaflop"]
    header += ["cosine", "length", *(["bias", "at most", "variance"] if exact else [])]
    body = [
        [
            f"`{row['name']}`",
            label(row["name"]),
            f"{number(row['ratio'])} ± {number(row['error'], 2)}",
            number(row["cost"]),
            number(row["per_cost"]),
            number(row["per_cost"] / paper) if paper > 0 else "-",
            number(row["per_petaflop"]),
            value_and_error(row["cosine"], row["cosine_error"]),
            value_and_error(row["scale"], row["scale_error"]),
            *([*_bias(row), number(row["variance"])] if exact else []),
        ]
        for row in sorted(rows, key=lambda row: -row["per_cost"])
    ]
    return markdown(header, body)


def write_page(report: dict[str, Any], out: Path) -> Path:
    """Write all tables as ``estimators.md``, from the content of ``estimators.json``."""
    study, real = report["options"], report["real"]
    sections = [
        f"`{report['command']}`\n\n{report['machine']}; {report['seconds']} s\n",
        f"## Real text, gamma {study['gamma']}\n\n{study['num_rows']} x {study['num_steps']} bytes, "
        f"{study['num_batches']} batches; rate {real['rate']:.3f}. Cosine and length are against gamma 1, "
        f"four rows per text, {study['reference_batches']} other batches.\n\n"
        + gradient_table(real["table"], exact=False),
    ]
    if real["sweep"]:
        sections.append(
            "## Every gamma, real text\n\nSignal to noise at equal cost (cosine).\n\n"
            + _sweep_table(real["sweep"], study["gammas"])
        )
    for gamma, rows in report.get("exact", {"tables": {}})["tables"].items():
        sections.append(
            f"## Short texts, gamma {gamma}, against the exact gradient\n\n{study['exact_texts']} texts of "
            f"{study['exact_bytes']} decisions, batches of 8 rows.\n\n" + gradient_table(rows, exact=True)
        )
    for kind, truth in report["truth"].items():
        correlations = truth["correlations"].items()
        body = [[f"`{name}`", label(name), with_error(value, error)] for name, (value, error) in correlations]
        sections.append(
            f"## Correlation with the {kind} advantage, gamma {study['gamma']}\n\n{_reliability(truth['reliability'])}"
            "\n\n" + markdown(["estimator", "", "correlation"], body)
        )
    page = out / "estimators.md"
    page.write_text("\n\n".join(sections) + "\n")
    return page


def _by_gamma(sweep: list[dict[str, Any]]) -> dict[str, dict[float, dict[str, Any]]]:
    """Rows of a sweep, by estimator and gamma."""
    rows: dict[str, dict[float, dict[str, Any]]] = {}
    for row in sweep:
        name, _, gamma = row["name"].partition("@")
        rows.setdefault(name, {})[float(gamma)] = row
    return rows


def _sweep_table(sweep: list[dict[str, Any]], gammas: list[float]) -> str:
    rows = _by_gamma(sweep)

    def cell(row: dict[str, Any]) -> str:
        return f"{value_and_error(row['per_cost'], row['error'] / row['cost'])} ({number(row['cosine'])})"

    body = [[f"{gamma:g}", *(cell(rows[name][gamma]) for name in rows)] for gamma in gammas]
    return markdown(["gamma", *(f"`{name}`" for name in rows)], body)


def _reliability(share: float) -> str:
    """Explain what the noise of the truth itself does to correlations with it."""
    text = f"Of the variance of this truth {number(share, 2)} is not its own noise"
    if share <= 0:
        return f"{text}: no signal measured, so the correlations are meaningless."
    return f"{text}: with a truth without noise, every correlation is {number(share**-0.5, 2)} times as large."


def draw_figures(report: dict[str, Any], out: Path) -> list[Path]:
    """Draw signal at equal cost; if measured, signal and bias by gamma, and correlations with the truth."""
    with plain_figures() as plt:
        figures = {"signal": _draw_signal(plt, report)}
        if report["real"]["sweep"]:
            figures["gamma"] = _draw_gamma(plt, report)
        if report["truth"]:
            figures["truth"] = _draw_truth(plt, report["truth"])
        return [save_figure(figure, out / f"{name}.png") for name, figure in figures.items()]


def _draw_signal(plt: Any, report: dict[str, Any]) -> Any:
    rows = sorted(report["real"]["table"], key=lambda row: row["per_cost"])
    figure, axes = plt.subplots(figsize=(7, 0.32 * len(rows) + 1.1), layout="constrained")
    floor = min((row["per_cost"] for row in rows if row["per_cost"] > 0), default=1e-4) / 2
    for place, row in enumerate(rows):
        value, error = max(row["per_cost"], floor), row["error"] / row["cost"]
        hidden = not is_clear(row)
        axes.barh(row["name"], value, color=_COLOURS.get(row["name"], OURS), height=0.7, alpha=0.35 if hidden else 1.0)
        if not hidden:
            axes.plot([value - error, value + error], [place, place], color=INK, lw=1)
        text = "lost in noise" if hidden else number(value, 2)
        axes.text((value + (0 if hidden else error)) * 1.08, place, text, va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(floor * 0.8, max(rows[-1]["per_cost"], floor) * 2.5)
    axes.set_xlabel("signal to noise of the policy gradient that the cost of a plain update buys")
    gamma = report["options"]["gamma"]
    axes.set_title(f"gamma = {gamma}; black: one standard error; orange: the paper's; grey: its ablations")
    axes.margins(y=0.01)
    return figure


def _draw_gamma(plt: Any, report: dict[str, Any]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    gammas, sweep = report["options"]["gammas"], _by_gamma(report["real"]["sweep"])
    for place, (name, by_gamma) in enumerate(sweep.items()):
        rows = [by_gamma[gamma] for gamma in gammas]
        errors = [row["error"] / row["cost"] for row in rows]
        clear = [row["per_cost"] > 2 * error for row, error in zip(rows, errors, strict=True)]
        signals = [row["per_cost"] if shown else math.nan for row, shown in zip(rows, clear, strict=True)]
        cosines = [math.nan if row["cosine"] is None else row["cosine"] for row in rows]
        run = run_style(len(sweep) - 1 - place)  # the paper is first, and orange as elsewhere
        style: Any = {"color": run.colour, "marker": run.marker, "ms": 3.5, "elinewidth": 0.8, "label": name}
        left.errorbar(range(len(gammas)), signals, errors, **style)
        right.errorbar(range(len(gammas)), cosines, [row["cosine_error"] or 0.0 for row in rows], **style)
    for axes, title in ((left, "signal to noise at equal cost"), (right, "cosine to the unbiased gradient")):
        axes.set_xticks(range(len(gammas)), [str(gamma) for gamma in gammas])
        axes.set(xlabel="gamma", title=f"{title}, ± one std. error")
    if any(y > 0 for line in left.lines for y in line.get_ydata()):
        left.set_yscale("log")
    right.axhline(1.0, color=PALE, lw=0.6, zorder=0)
    left.legend()
    return figure


def _draw_truth(plt: Any, truths: dict[str, Any]) -> Any:
    most = max(len(truth["correlations"]) for truth in truths.values())
    size = (4.2 * len(truths), 0.3 * most + 1)
    figure, panels = plt.subplots(1, len(truths), figsize=size, layout="constrained", squeeze=False)
    for axes, (kind, truth) in zip(panels[0], truths.items(), strict=True):
        for place, (name, (value, error)) in enumerate(sorted(truth["correlations"].items(), key=lambda item: item[1])):
            axes.barh(name, value, color=_COLOURS.get(name, OURS), height=0.7)
            axes.plot([value - error, value + error], [place, place], color=INK, lw=1)
            axes.text(max(value + error, 0) + 0.004, place, f"{value:.3f}", va="center", fontsize=8)
        axes.set_title(f"correlation with the {kind} advantage")
        axes.margins(x=0.18)
    return figure

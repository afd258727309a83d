"""Tables and figure of ``rltok credit``, from the content of its ``credit.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from rltok_rl.experiments.reports.markdown import markdown, number, with_error
from rltok_rl.experiments.studies.pages import label

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, QUIET, plain_figures, save_figure
from rltok_rl.viz.text_figures import cells, draw_key, draw_line, inch_axes, one_glyph

_BEFORE = 12  # bytes that a table shows before a decision
_RIGHT, _CELL, _PANEL, _GAP, _LETTER, _WIDTH = 1.1, 0.066, 0.46, 0.1, 0.063, 5.9  # inches
_HEAD, _LINE, _KEY = 0.3, 0.2, 0.42


def estimators_table(content: dict[str, Any]) -> str:
    """Return how the text was measured, and a Markdown table of the estimators."""
    decisions, rows = content["decisions"], content["estimators"]
    price = f", {content['price']:g} nats per boundary" if content["price"] else ""
    size = math.sqrt(sum(decision["truth"] ** 2 for decision in decisions) / len(decisions))
    header = ["estimator", "", "bias", "standard deviation", "RMSE", "correlation", "cost"]
    body = [
        [
            f"`{row['name']}`",
            label(row["name"]),
            _bias(row),
            number(row["deviation"]),
            number(row["rmse"]),
            with_error(row["correlation"], row["correlation_error"]),
            f"{row['cost']:.2f}",
        ]
        for row in rows
    ]
    return "\n\n".join(
        [
            f"`{content['command']}`\n\n{content['machine']}; {content['seconds']} s",
            f"{len(decisions)} decisions of {content['source']}, {content['draws']} draws, batches of "
            f"{content['rows']} rows. Nats of return, gamma {content['gamma']:g}{price}. Truth: return with a "
            f"boundary minus return without, root mean square {number(size)} over decisions.",
            markdown(header, body),
            "An advantage A estimates the truth by 2 A if a boundary was drawn and -2 A if not, here with equal "
            "chances. Bias: of the mean estimate. Standard deviation and correlation with the truth: of single "
            "estimates. Bias, deviation and RMSE are root mean squares over decisions. Cost: FLOPs of an update.",
        ]
    )


def _bias(row: dict[str, Any]) -> str:
    """The bias and its standard error, or its bound where noise hides it."""
    error = row["bias_error"]
    if error is not None and not math.isnan(error) and row["bias"] >= 0.0005:
        return with_error(row["bias"], error)
    return f"< {number(max(row['bias_limit'], 0.001), 2)}"


def decisions_table(content: dict[str, Any], most: int | None = None) -> str:
    """Return a Markdown table of all decisions, or of the ``most`` with the largest truth and without estimators."""
    text, decisions = content["text"].encode("latin-1"), content["decisions"]
    names = [] if most else list(decisions[0]["estimators"])
    shown = sorted(decisions, key=lambda decision: -abs(decision["truth"]))[:most] if most else decisions
    header = ["byte", "text before", "probability", "truth", *(f"`{name}`" for name in names)]

    def row(decision: dict[str, Any]) -> list[str]:
        before = text[max(0, decision["byte"] + 1 - _BEFORE) : decision["byte"] + 1]
        written = "".join(cell.shown for cell in cells(before)).replace("`", "'").replace("|", "\\|")
        measured = [(each["difference"], each["error"]) for each in decision["estimators"].values()] if names else []
        measured.insert(0, (decision["truth"], decision["truth_error"]))
        values = [f"{value:+.3f} ± {error:.3f}" for value, error in measured]
        return [str(decision["byte"]), f"`{written}`", f"{decision['probability']:.3f}", *values]

    title = f"The {len(shown)} decisions that matter most" if most else "Every decision: truth and mean estimates"
    return f"{title}, ± standard errors over draws\n\n{markdown(header, [row(decision) for decision in shown])}"


def draw_credit(content: dict[str, Any], path: Path) -> Path:
    """Draw the text, its truth, and a panel for each estimator: mean, standard error and spread of its estimates."""
    text, decisions, rows = content["text"].encode("latin-1"), content["decisions"], content["estimators"]
    line = [cell._replace(shown=one_glyph(cell.shown)) for cell in cells(text)]
    ends = [
        place + (n + 1) / (cell.end - cell.start)
        for place, cell in enumerate(line)
        for n in range(cell.end - cell.start)
    ]
    places = [decision["byte"] for decision in decisions]
    x, shares = np.array(ends)[places], np.zeros(len(text))
    shares[0] = 1.0  # forced, unless a mark is before it
    shares[places] = [decision["probability"] for decision in decisions]
    truth, error = (np.array([decision[key] for decision in decisions]) for key in ("truth", "truth_error"))
    top = 1.3 * max(1e-6, float(np.abs(truth).max()))
    left = 0.55 + _LETTER * max(len(row["name"]) for row in rows)
    width, panels = max(len(line) * _CELL, _WIDTH), [1.7 * _PANEL, *[_PANEL] * len(rows)]
    size = left + width + _RIGHT, _HEAD + _LINE + sum(panels) + _GAP * (len(panels) + 1) + _KEY
    with plain_figures() as plt:
        figure = plt.figure(figsize=size)
        frame = inch_axes(figure)
        small: Any = {"va": "center", "fontsize": 7.5}
        title = f"What a boundary after each byte is worth, in nats of return (gamma {content['gamma']:g})"
        frame.text(left, _HEAD / 2, title, va="center", fontsize=9)
        draw_line(frame, line, shares.tolist(), (shares > 0.5).tolist(), left, _HEAD, size=_CELL, height=_LINE)
        y = _HEAD + _LINE + _GAP
        for place, tall in enumerate(panels):
            box = (left / size[0], 1 - (y + tall) / size[1], len(line) * _CELL / size[0], tall / size[1])
            axes = figure.add_axes(box)
            axes.set(xlim=(0, len(line)), ylim=(-top, top), xticks=[])
            axes.tick_params(labelsize=6.5)
            axes.spines["bottom"].set_visible(False)
            axes.axhline(0, color=PALE, lw=0.5, zorder=0)
            axes.vlines(np.array(ends)[shares > 0.5], -top, top, color=PALE, lw=0.3, alpha=0.6, zorder=0)
            if place == 0:
                axes.vlines(x, 0, truth, color=[OURS if value > 0 else ALERT for value in truth], lw=1.6)
                axes.vlines(x, truth - error, truth + error, color=INK, lw=0.7)
                name = "truth"
            else:
                row = rows[place - 1]
                name = row["name"]
                _draw_estimator(axes, x, truth, [decision["estimators"][name] for decision in decisions])
                note = f"bias {_bias(row)}\nsd {number(row['deviation'], 2)}, r {number(row['correlation'], 2)}"
                frame.text(left + len(line) * _CELL + 0.06, y + tall / 2, note, va="center", fontsize=6.5, color=QUIET)
            frame.text(left - 0.35, y + tall / 2, name, ha="right", **small)
            y += tall + _GAP
        end = draw_key(frame, left, size[1] - 0.32, "probability of a boundary", bars="above one half")
        frame.plot([end, end + 0.18], [size[1] - 0.32] * 2, color=INK, lw=0.7)
        frame.text(end + 0.23, size[1] - 0.32, "truth", **small)
        frame.plot([left + 0.09], [size[1] - 0.12], ".", color=OURS, ms=5)
        explained = "mean estimate and its standard error; shaded: one standard deviation (sd) of a single estimate"
        frame.text(left + 0.18, size[1] - 0.12, f"{explained}; r: its correlation with the truth", **small)
        return save_figure(figure, path, dpi=170)


def _draw_estimator(axes: Any, x: Any, truth: Any, decisions: list[dict[str, float]]) -> None:
    mean, error, deviation = (np.array([decision[key] for decision in decisions]) for key in decisions[0])
    axes.fill_between(x, mean - deviation, mean + deviation, step="mid", color=OURS, alpha=0.16, lw=0)
    axes.step(x, truth, where="mid", color=INK, lw=0.7)
    axes.vlines(x, mean - error, mean + error, color=OURS, lw=0.8)
    axes.plot(x, mean, ".", color=OURS, ms=3)

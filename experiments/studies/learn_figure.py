"""The figure of the learning study: share of the optimal return over bytes, and where boundaries come to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rltok_rl.experiments.reports.labels import SYSTEM_LABELS

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, SERIES, plain_figures

_COLOURS = {
    "learned": OURS,
    "paper": ALERT,
    "no_early_exit": SERIES[1],
    "uniform": SERIES[2],
    "random": PALE,
}
_TITLES = {
    "recall": "Recall: a value, filler, the value again",
    "lexicon": "Lexicon: words without spaces that come back",
}


def draw_learning(courses: Sequence[dict[str, Any]], path: Path, *, goal: float) -> Path:
    """Draw a row per language: the course of every system, and one text as every learned policy cuts it.

    Args:
        courses: trainings, as the study keeps them.
        path: the PNG to write.
        goal: share of the optimal return, drawn as a line.
    """
    languages = list(dict.fromkeys(one["language"] for one in courses))
    if not languages:
        raise ValueError("courses must hold at least one training, got none")
    labels = {system: _label(courses, system) for system in SYSTEM_LABELS}
    with plain_figures() as plt:
        size = (11.4, 3.1 * len(languages) + 0.75)
        figure = plt.figure(figsize=size)
        space: Any = {"left": 0.055, "right": 0.995, "top": 1 - 0.35 / size[1], "bottom": 0.95 / size[1]}
        panels = figure.subplots(
            len(languages),
            2,
            squeeze=False,
            gridspec_kw={**space, "width_ratios": (1, 1.75), "wspace": 0.03, "hspace": 0.3},
        )
        for (left, right), language in zip(panels, languages, strict=True):
            mine = [one for one in courses if one["language"] == language]
            _draw_courses(left, mine, labels, goal)
            left.set_title(_TITLES.get(language, language), fontsize=9.5, weight="bold")
            _draw_texts(right, [one for one in mine if one["system"] == "learned"])
        panels[-1, 0].set_xlabel("MB of text")
        shown = {
            label: handle for row in panels for handle, label in zip(*row[0].get_legend_handles_labels(), strict=True)
        }
        order = [label for label in labels.values() if label in shown]
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.045, 0.0), "ncols": len(order), "fontsize": 8}
        figure.legend([shown[label] for label in order], order, **place, columnspacing=1.4, handlelength=1.6)
        figure.savefig(path)
        plt.close(figure)
    return path


def _label(courses: Sequence[dict[str, Any]], system: str) -> str:
    """What a system is called in the legend, and how many seeds it has."""
    count = len({one["seed"] for one in courses if one["system"] == system})
    return f"{SYSTEM_LABELS[system]} ({count} seed{'s' if count > 1 else ''})"


def _draw_courses(axes: Any, courses: Sequence[dict[str, Any]], labels: dict[str, str], goal: float) -> None:
    """A line per system through the means of its seeds, a band from the lowest to the highest of them."""
    for system in reversed(SYSTEM_LABELS):
        mine = [one["looks"] for one in courses if one["system"] == system]
        if not mine:
            continue
        count = min(map(len, mine))
        done = [look["bytes"] / 1e6 for look in mine[0][:count]]
        shares = [[looks[n]["share"] for looks in mine] for n in range(count)]
        colour, ours = _COLOURS[system], system == "learned"
        axes.fill_between(done, [min(s) for s in shares], [max(s) for s in shares], color=colour, alpha=0.16, lw=0)
        style: Any = {"color": colour, "lw": 2.2 if ours else 1.4, "zorder": 3 if ours else 2, "label": labels[system]}
        axes.plot(done, [fmean(s) for s in shares], solid_joinstyle="round", **style)
        axes.plot(done[-1:], [fmean(shares[-1])], "o", color=colour, ms=4, zorder=4, clip_on=False)
    axes.axhline(1.0, color=INK, lw=0.7)
    axes.axhline(goal, color=INK, lw=0.8, ls=(0, (4, 3)))
    axes.text(0.01, goal - 0.015, f"{goal:g}", transform=axes.get_yaxis_transform(), va="top", fontsize=7.5)
    axes.set(ylim=(0, 1.04), ylabel="share of the optimal return, fresh texts")
    axes.set_xlim(left=0)


def _draw_texts(axes: Any, courses: Sequence[dict[str, Any]]) -> None:
    """A line per seed: characters on a background by probability, a bar after each of the best boundaries."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("boundary", ["#f6f7f8", "#8fc9c3", OURS])
    axes.set_axis_off()
    for place, one in enumerate(courses):
        text, best, values = (one["sample"][key] for key in ("text", "best", "probabilities"))
        extent = (0, len(text), place + 0.94, place + 0.06)
        axes.imshow([values], cmap=shades, vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")
        for column, character in enumerate(text):
            style: Any = {"ha": "center", "va": "center_baseline", "family": "monospace", "fontsize": 8}
            axes.text(column + 0.5, place + 0.52, character, color="white" if values[column] > 0.72 else INK, **style)
            if best[column] == "1" and column:
                axes.plot([column + 1] * 2, [place + 0.06, place + 0.94], color=ALERT, lw=1.5, solid_capstyle="butt")
                if not place:
                    axes.plot([column + 1], [-0.12], marker="v", color=ALERT, ms=4.5, mew=0)
        axes.text(-0.8, place + 0.5, f"seed {one['seed']}", ha="right", va="center", fontsize=8)
        share = f"{one['final']['share']:.3f}"
        axes.text(len(text) + 0.8, place + 0.5, share, va="center", fontsize=8, color=OURS, weight="bold")
    if courses:
        axes.text(len(text) + 0.8, -0.12, "share", va="center", fontsize=7.5, color="#5c6770")
        axes.set(xlim=(-6, len(text) + 5.5), ylim=(max(len(courses), 4) + 0.05, -0.4))
    axes.set_title(
        "a fresh text: darker is a likelier boundary of the learned policy, orange the best boundaries",
        fontsize=8.5,
        x=0.085,
    )

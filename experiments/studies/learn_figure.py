"""The figure of the learning study: share of the optimal return over bytes, and where boundaries come to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from rltok_rl.viz.look import ALERT, INK, OURS, PALE, plain_figures

NAMES = {
    "learned": "learned, local flips",
    "siblings": "two rows per text, γ 0.9",
    "paper": "paper: return, batch mean, γ 0.99",
    "no_early_exit": "paper, no early exit",
    "uniform": "uniform boundaries",
    "random": "random boundaries",
}
"""What systems are called, in the order of the legend."""
_COLOURS = {
    "learned": OURS,
    "siblings": "#7b5ea7",
    "paper": ALERT,
    "no_early_exit": "#e08e0b",
    "uniform": "#3b5ba5",
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
    with plain_figures() as plt:
        figure = plt.figure(figsize=(11.4, 3.15 * len(languages) + 0.45), layout="constrained")
        panels = figure.subplots(len(languages), 2, squeeze=False, width_ratios=(1, 1.55))
        for (left, right), language in zip(panels, languages, strict=True):
            mine = [one for one in courses if one["language"] == language]
            _draw_courses(left, mine, goal)
            left.set_title(_TITLES.get(language, language), fontsize=9.5, weight="bold")
            _draw_texts(right, [one for one in mine if "sample" in one and one["system"] == "learned"])
        panels[-1, 0].set_xlabel("MB of text")
        found = {label: handle for row in panels for handle, label in zip(*row[0].get_legend_handles_labels())}
        order = [name for name in NAMES.values() if name in found]
        figure.legend([found[name] for name in order], order, loc="outside lower left", ncols=6, fontsize=8)
        figure.savefig(path)
        plt.close(figure)
    return path


def _draw_courses(axes: Any, courses: Sequence[dict[str, Any]], goal: float) -> None:
    """A line per system through the means of its seeds, a band from the lowest to the highest of them."""
    for system in reversed(NAMES):
        mine = [one["looks"] for one in courses if one["system"] == system]
        if not mine:
            continue
        count = min(map(len, mine))
        done = [look["bytes"] / 1e6 for look in mine[0][:count]]
        shares = [[looks[n]["share"] for looks in mine] for n in range(count)]
        colour, ours = _COLOURS[system], system == "learned"
        axes.fill_between(done, [min(s) for s in shares], [max(s) for s in shares], color=colour, alpha=0.16, lw=0)
        style: Any = {"color": colour, "lw": 2.2 if ours else 1.4, "zorder": 3 if ours else 2, "label": NAMES[system]}
        axes.plot(done, [fmean(s) for s in shares], solid_joinstyle="round", **style)
        axes.plot(done[-1:], [fmean(shares[-1])], "o", color=colour, ms=4, zorder=4, clip_on=False)
    axes.axhline(1.0, color=INK, lw=0.7)
    axes.axhline(goal, color=INK, lw=0.8, ls=(0, (4, 3)))
    axes.text(0.01, goal - 0.015, f"{goal:g}", transform=axes.get_yaxis_transform(), va="top", fontsize=7.5)
    axes.set(ylim=(0, 1.04), ylabel="share of the optimal return, fresh texts")
    axes.set_xlim(left=0)


def _draw_texts(axes: Any, courses: Sequence[dict[str, Any]]) -> None:
    """A line per seed: characters on a background by probability, a mark below each of the best boundaries."""
    from matplotlib.colors import LinearSegmentedColormap

    axes.set_axis_off()
    if not courses:
        return
    shades = LinearSegmentedColormap.from_list("boundary", ["#f6f7f8", "#8fc9c3", OURS])
    text, best = courses[0]["sample"]["text"], courses[0]["sample"]["best"]
    lines = len(courses)
    middle = median_low([one["final"]["share"] for one in courses])
    for place, one in enumerate(courses):
        values = one["sample"]["probabilities"]
        extent = (0, len(text), place + 0.92, place + 0.08)
        axes.imshow([values], cmap=shades, vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")
        for column, character in enumerate(text):
            ink = "white" if values[column] > 0.72 else INK
            style: Any = {"ha": "center", "va": "center_baseline", "family": "monospace", "fontsize": 7.6}
            axes.text(column + 0.5, place + 0.52, character, color=ink, **style)
        typical = one["final"]["share"] == middle
        axes.text(-1, place + 0.5, f"seed {one['seed']}", ha="right", va="center", fontsize=7.5)
        share = f"{one['final']['share']:.3f}"
        axes.text(len(text) + 1, place + 0.5, share, va="center", fontsize=7.5, weight="bold" if typical else None)
    for column in (n for n, b in enumerate(best) if b == "1" and n):
        axes.plot([column + 1] * 2, [0.0, lines], color=ALERT, lw=1.3, solid_capstyle="butt", zorder=3)
        axes.plot([column + 1], [-0.12], marker="v", color=ALERT, ms=4.5, clip_on=False)
    axes.set(xlim=(-6, len(text) + 6), ylim=(lines + 0.1, -0.4))
    axes.set_title(
        "One fresh text; darker where the learned policy is likelier to end a token; ▾ optimal boundaries; right: share",
        fontsize=8,
    )

"""The demo in one picture: two curves, and text in the colours of its boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, plain_figures
from rltok_rl.viz.terminal import characters

_QUIET = "#5c6770"
_COLUMNS = 92  # characters of a line of text
_SIZE = (9.2, 3.3)  # inches of the curves and all above them
_LINE = 0.235  # inches of a line of text
_MARGIN = 0.45


@dataclass(frozen=True)
class Curve:
    """A training."""

    name: str
    megabytes: Sequence[float]
    values: Sequence[float]
    end: str
    """Written at its end."""


@dataclass(frozen=True)
class Panel:
    """Trainings that are compared."""

    title: str
    curves: Sequence[Curve]
    goal: tuple[float, str] | None = None
    """A level to reach, and what it is."""
    bottom: float | None = None
    top: float | None = None


@dataclass(frozen=True)
class Strip:
    """A text with its boundaries."""

    title: str
    text: bytes
    boundaries: Sequence[bool]
    probabilities: Sequence[float]
    lines: int = 1


def draw_demo(panels: Sequence[Panel], strips: Sequence[Strip], path: Path, *, title: str) -> Path:
    """Draw curves side by side, and below them a block of text each.

    Args:
        panels: of curves.
        strips: of text.
        path: the PNG to write.
        title: above all.
    """
    below = sum(_block_height(strip) for strip in strips) + (0.42 if strips else 0.0)
    width, height = _SIZE[0], _SIZE[1] + below
    with plain_figures() as plt:
        figure = plt.figure(figsize=(width, height))
        figure.text(_MARGIN / width, 1 - 0.3 / height, title, fontsize=11.5, weight="bold", va="center")
        left, gap = _MARGIN + 0.1, 1.05
        each = (width - 2 * left - gap * (len(panels) - 1) - 0.35) / max(1, len(panels))
        for number, panel in enumerate(panels):
            place = (left + number * (each + gap), below + 0.5, each, _SIZE[1] - 1.25)
            axes = figure.add_axes((place[0] / width, place[1] / height, place[2] / width, place[3] / height))
            _draw_panel(axes, panel)
        top = below
        for strip in strips:
            top = _draw_strip(figure, strip, top, (width, height))
        if strips:
            _draw_key(figure, (width, height))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)
        plt.close(figure)
    return path


def _draw_panel(axes: Any, panel: Panel) -> None:
    if panel.goal is not None:
        level, what = panel.goal
        axes.axhline(level, color=ALERT, lw=0.9, ls=(0, (4, 3)))
        place: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(what, (0.01, level), (0, 3), fontsize=7, color=ALERT, **place)
    ends = []
    for curve in panel.curves:
        ours = curve.name == "learned"
        colour = OURS if ours else PALE
        axes.plot(curve.megabytes, curve.values, color=colour, lw=2.2 if ours else 1.6, zorder=3 if ours else 2)
        axes.plot(curve.megabytes[-1:], curve.values[-1:], "o", color=colour, ms=4.5, zorder=4, clip_on=False)
        ends.append((curve, colour if ours else _QUIET))
    low, high = axes.get_ylim()
    low, high = (low if panel.bottom is None else panel.bottom), (high if panel.top is None else panel.top)
    axes.set(ylim=(low, high), xlabel="MB of text read")
    axes.set_xlim(left=0, right=max(c.megabytes[-1] for c, _ in ends))
    axes.margins(x=0)
    heights = _apart([min(max(curve.values[-1], low), high) for curve, _ in ends], 0.15 * (high - low))
    for (curve, colour), height in zip(ends, heights, strict=True):
        at = (curve.megabytes[-1], height)
        weight = "bold" if curve.name == "learned" else "normal"
        style: Any = {"color": colour, "va": "center", "fontsize": 7.5, "weight": weight, "annotation_clip": False}
        axes.annotate(f"{curve.name}\n{curve.end}", at, (7, 0), textcoords="offset points", **style)
    axes.grid(axis="y", color="#eceff2", lw=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.set_title(panel.title, fontsize=8.5, pad=10)


def _apart(values: Sequence[float], least: float) -> list[float]:
    """Places for labels of two ends, so that they do not lie on each other.

    Example:
        >>> _apart([1.0, 1.0], 0.5)
        [0.75, 1.25]
        >>> _apart([3.0, 1.0], 0.5)
        [3.0, 1.0]
    """
    if len(values) != 2 or abs(values[0] - values[1]) >= least:
        return list(values)
    middle = (values[0] + values[1]) / 2
    sign = 1 if values[0] > values[1] else -1
    return [middle + sign * least / 2, middle - sign * least / 2]


def _block_height(strip: Strip) -> float:
    return 0.42 + strip.lines * _LINE


def _draw_strip(figure: Any, strip: Strip, top: float, size: tuple[float, float]) -> float:
    """Draw a block of text below a height in inches; return the height below it."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("boundary", ["#f3f5f6", "#8fc9c3", OURS])
    width, height = size
    shown = characters(strip.text.replace(b"\n", b" "))[: _COLUMNS * strip.lines]
    figure.text(_MARGIN / width, (top - 0.2) / height, strip.title, fontsize=8.5, va="center")
    block = strip.lines * _LINE
    inside = width - 2 * _MARGIN
    axes = figure.add_axes((_MARGIN / width, (top - 0.34 - block) / height, inside / width, block / height))
    axes.set(xlim=(0, _COLUMNS), ylim=(strip.lines, 0))
    axes.set_axis_off()
    for number, (start, end, character) in enumerate(shown):
        line, column = divmod(number, _COLUMNS)
        value = strip.probabilities[end - 1]
        axes.add_patch(_rectangle((column, line + 0.07), 1.02, 0.86, shades(value)))
        if character.strip():
            ink = "white" if value > 0.72 else INK
            glyph = character if len(character) == 1 else "·"
            style: Any = {"ha": "center", "va": "center_baseline", "fontsize": 7.8, "family": "monospace"}
            axes.text(column + 0.5, line + 0.5, glyph, color=ink, **style)
        if any(strip.boundaries[start:end]):
            axes.plot([column + 1] * 2, [line + 0.07, line + 0.93], color=ALERT, lw=1.4, clip_on=False)
    return top - _block_height(strip)


def _rectangle(corner: tuple[float, float], width: float, height: float, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, width, height, facecolor=colour, edgecolor="none")


def _draw_key(figure: Any, size: tuple[float, float]) -> None:
    """What colours and bars mean, at the bottom."""
    from matplotlib.colors import LinearSegmentedColormap

    width, height = size
    shades = LinearSegmentedColormap.from_list("boundary", ["#f3f5f6", "#8fc9c3", OURS])
    key = figure.add_axes((_MARGIN / width, 0.22 / height, 1.0 / width, 0.11 / height))
    key.imshow([[n / 255 for n in range(256)]], cmap=shades, aspect="auto", extent=(0, 1, 0, 1))
    key.set(xticks=[], yticks=[])
    for spine in key.spines.values():
        spine.set(visible=True, color=PALE, linewidth=0.5)
    style: Any = {"va": "center", "fontsize": 7.5, "color": _QUIET, "transform": key.transAxes}
    key.text(1.08, 0.45, "how likely a token ends after this character, from 0 to 1", **style)
    key.plot([5.0] * 2, [-0.5, 1.5], color=ALERT, lw=1.4, transform=key.transAxes, clip_on=False)
    key.text(5.08, 0.45, "a token ended here", **style)

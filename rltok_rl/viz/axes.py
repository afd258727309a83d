"""Building blocks of pictures of runs: smoothed lines, dots, means over seeds, ranges, tick labels, names of lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltok_rl.viz.style import INK, QUIET, RunStyle

Points = tuple[Sequence[float], Sequence[float]]
"""x and y of a line."""
_NAME_SIZE = 7.5  # points, of names at the ends of lines


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Average each value with up to half a window of neighbours on either side, fewer near the beginning.

    Metrics change fastest at the beginning of training, which a short mean neither delays nor flattens. Missing values
    are left out.

    Example:
        >>> smooth([9.0, 5.0, 5.0, 5.0, 2.0, 5.0], 3)
        [9.0, 5.0, 5.0, 5.0, 4.0, 3.5]
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    number, exact = np.arange(len(values)), np.asarray(values, dtype=np.float64)
    half = np.minimum(window // 2, number // 4)
    first, last = number - half, np.minimum(number + half + 1, len(values))
    known = np.isfinite(exact)
    sums, counts = (np.concatenate([[0.0], np.cumsum(x)]) for x in (np.where(known, exact, 0.0), known))
    count = counts[last] - counts[first]
    return np.divide(sums[last] - sums[first], count, out=np.full(len(exact), np.nan), where=count > 0).tolist()


def draw_line(axes: Any, x: Sequence[float], y: Sequence[float], *, noisy: bool = True, **style: Any) -> None:
    """Draw a metric faintly, and over it its mean over a twenty-fifth of the run; only the metric unless ``noisy``."""
    window = max(1, len(x) // 25) if noisy else 1
    if window > 1:
        axes.plot(x, y, color=style["color"], alpha=0.18, lw=0.6)
    axes.plot(x, smooth(y, window), **{"lw": 1.4, "solid_joinstyle": "round", **style})


def draw_dots(axes: Any, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    """Draw evaluations on held-out text as white dots."""
    axes.plot(x, y, **{"marker": "o", "ls": "none", "color": INK, "ms": 3.0, "mfc": "white", "zorder": 3, **style})


@dataclass(frozen=True)
class MeanLine:
    """The mean of several lines, with their standard deviation (divisor n - 1; 0 for a single line)."""

    x: list[float]
    y: list[float]
    spread: list[float]


def mean_line(lines: Sequence[Points], *, share: float = 0.9) -> MeanLine:
    """Average the lines of several seeds, value by value.

    Lines with less than ``share`` of the longest line's values are of unfinished runs and left out. Of the others, each
    is cut to the shortest.
    """
    longest = max((len(x) for x, _ in lines), default=0)
    kept = [line for line in lines if len(line[0]) >= share * longest]
    count = min((len(x) for x, _ in kept), default=0)
    if not count:
        return MeanLine([], [], [])
    x, y = (np.array([line[axis][:count] for line in kept], dtype=np.float64) for axis in (0, 1))  # [seeds, count]
    spread = y.std(0, ddof=1) if len(kept) > 1 else np.zeros(count)
    return MeanLine(x.mean(0).tolist(), y.mean(0).tolist(), spread.tolist())


def seed_groups(names: Iterable[str], groups: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    """Return the names of runs by group; those in no group form groups of one."""
    group_of = {member: group for group, members in (groups or {}).items() for member in members}
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(group_of.get(name, name), []).append(name)
    return members


def draw_seeds(axes: Any, lines: Sequence[Points], style: RunStyle, width: float) -> list[list[float]]:
    """Draw a line per seed, their mean, and a band of a standard deviation; return heights that the axis must hold."""
    smoothed = [(x, smooth(y, max(1, len(x) // 25))) for x, y in lines]
    if len(lines) == 1:
        draw_line(axes, *lines[0], color=style.colour, ls=style.dashes, lw=width)
        return [smoothed[0][1]]
    for x, y in smoothed:
        axes.plot(x, y, color=style.colour, lw=0.6, alpha=0.6)
    mean = mean_line(smoothed)
    low, high = (np.add(mean.y, np.multiply(sign, mean.spread)).tolist() for sign in (-1, 1))
    axes.fill_between(mean.x, low, high, color=style.colour, alpha=0.15, lw=0)
    axes.plot(mean.x, mean.y, color=style.colour, ls=style.dashes, lw=width, solid_joinstyle="round")
    return [*(y for _, y in smoothed), low, high]


def dot_seeds(axes: Any, points: Sequence[Points], style: RunStyle, width: float, *, ls: str = "none") -> list[float]:
    """Draw a dot per evaluation, for several seeds their mean with a bar of a standard deviation; return heights."""
    mean = mean_line(points, share=1.0)
    if len(points) > 1:
        axes.errorbar(mean.x, mean.y, mean.spread, fmt="none", ecolor=style.colour, elinewidth=0.8, zorder=2.9)
    draw_dots(axes, mean.x, mean.y, color=style.colour, marker=style.marker, ms=3 * width / 1.4, ls=ls, lw=0.8)
    return [*np.subtract(mean.y, mean.spread), *np.add(mean.y, mean.spread)]


def fit(
    axes: Any, lines: Sequence[Sequence[float]], *, share: float = 0.05, points: Sequence[Sequence[float]] = ()
) -> None:
    """Set the y axis to hold all values; lines may leave the top if the rest would be flat, and an arrow marks them.

    Up to ``share`` of each line's updates may be above. Points decide how far down the axis reaches.
    """
    known, dots = ([[v for v in values if v == v] for values in several] for several in (lines, points))
    every = [v for values in (*known, *dots) for v in values]
    late = [v for values in known for v in values[math.ceil(share * len(values)) :]] or every
    if not every or max(every) == min(every):
        return
    low, high, top = min(every), max(every), max(late)
    if high - low > 2 * (top - low) > 0:
        arrow = f"\u2191 from {high:.1f}"
        axes.text(0.05, 0.99, arrow, transform=axes.transAxes, va="top", fontsize=7, color=QUIET)
        high = top
    margin = 0.05 * (high - low)
    axes.set_ylim(low - margin, high + margin)


def plain_numbers(axis: Any, *, prefixes: bool = False) -> None:
    """Label a logarithmic axis with a few numbers instead of powers, and large ones with ``prefixes`` of thousands."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    steps: Any = [(1, 2, 3, 5), (1,)] if prefixes else [(1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5)]
    axis.set_major_locator(LogLocator(subs=steps[0] if high < 30 * low else steps[-1] if high < 1000 * low else (1,)))
    axis.set_major_formatter(EngFormatter() if prefixes else FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def line_widths(number: int) -> list[float]:
    """Return widths of lines in points, the first the broadest, so that lines on top of each other stay visible."""
    if number == 1:
        return [1.4]
    step = min(0.6, 1.5 / (number - 1))
    return [round(1.2 + step * (number - 1 - n), 3) for n in range(number)]


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """Move numbers as little as possible (in the sum of squares) so that any two are ``gap`` apart, in their order.

    With ``z_i = y_i - i gap`` of the sorted numbers this is isotonic regression: neighbours that are out of order are
    pooled to their mean.

    Example:
        >>> spread_apart([1.0, 1.0, 5.0], 1.0)
        [0.5, 1.5, 5.0]
    """
    order = np.argsort(places, kind="stable")
    pools: list[list[float]] = []
    for rank, n in enumerate(order):
        pools.append([places[n] - rank * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            later = pools.pop()
            pools[-1] += later
    moved = np.array([np.mean(pool) for pool in pools for _ in pool]) + gap * np.arange(len(places))
    return moved[np.argsort(order)].tolist()


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names right of the ends of lines, without overlaps; ``ends`` hold x, y, name and colour.

    The limits and the place of the axes must be final. A line that ends outside the axes is named without a connection.
    """
    from matplotlib.colors import to_rgb

    box = axes.get_window_extent()
    points = axes.transData.transform([(x, y) for x, y, _, _ in ends]) if ends else np.zeros((0, 2))
    heights = spread_apart(np.clip(points[:, 1], box.y0, box.y1).tolist(), 1.3 * _NAME_SIZE * axes.figure.dpi / 72)
    excess = max(0.0, max(heights, default=0.0) - box.y1)
    for (_, _, name, colour), point, height in zip(ends, points, heights, strict=True):
        x, y = axes.transAxes.inverted().transform(point)
        place = (1.05, (height - excess - box.y0) / box.height)
        if 0 <= x <= 1 and -0.01 <= y <= 1.01:
            connection = [x + 0.012, place[0] - 0.012], [y, place[1]]
            axes.plot(*connection, color=colour, lw=0.6, clip_on=False, transform=axes.transAxes)
        darker = tuple(0.72 * part for part in to_rgb(colour))
        axes.text(
            *place, name, color=darker, fontsize=_NAME_SIZE, va="center", transform=axes.transAxes, parse_math=False
        )

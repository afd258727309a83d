"""Runs that differ in nothing but their seed, drawn as one: thin lines, their mean, and how far they lie apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltok_rl.viz.series import Look
from rltok_rl.viz.style import dots, line, smooth

Points = tuple[Sequence[float], Sequence[float]]
"""Both coordinates of a line."""


@dataclass(frozen=True)
class MeanLine:
    """Several lines in one."""

    x: list[float]
    y: list[float]
    spread: list[float]
    """Standard deviation over the lines, from n - 1; 0 where there is one."""


def mean_line(lines: Sequence[Points], *, share: float = 0.9) -> MeanLine:
    """Mean of lines over seeds, value by value, and their standard deviation.

    Lines with less than ``share`` of the longest's values are of runs that are behind, and left out: a mean would jump
    where they end. Of the others each has as many values as the shortest.

    Args:
        lines: of each seed.
        share: of the longest line's values.

    Example:
        >>> behind = ([1.0], [9.0])
        >>> mean_line([([1.0, 2.0], [4.0, 2.0]), ([1.0, 2.0], [4.0, 4.0]), behind]).y
        [4.0, 3.0]
    """
    longest = max((len(x) for x, _ in lines), default=0)
    kept = [one for one in lines if len(one[0]) >= share * longest]
    count = min((len(x) for x, _ in kept), default=0)
    if not count:
        return MeanLine([], [], [])
    x = np.array([one[0][:count] for one in kept], dtype=np.float64)  # [n, count]
    y = np.array([one[1][:count] for one in kept], dtype=np.float64)
    spread = y.std(0, ddof=1) if len(kept) > 1 else np.zeros(count)
    return MeanLine(x.mean(0).tolist(), y.mean(0).tolist(), spread.tolist())


def seed_groups(names: Iterable[str], groups: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    """Names of runs by what they are drawn as; those that no group has stand alone.

    Args:
        names: of the runs that are drawn.
        groups: names of runs by what to call them together; runs that are not drawn are left out.

    Example:
        >>> seed_groups(["a-0", "b", "a-1"], {"a": ["a-0", "a-1", "a-2"]})
        {'a': ['a-0', 'a-1'], 'b': ['b']}
    """
    drawn = list(names)
    of = {one: group for group, members in (groups or {}).items() for one in members}
    found: dict[str, list[str]] = {}
    for name in drawn:
        found.setdefault(of.get(name, name), []).append(name)
    return found


def widths(number: int) -> list[float]:
    """Widths of so many lines in points, the first the broadest: where lines lie on each other all can be seen.

    Args:
        number: of lines.

    Example:
        >>> widths(1), widths(3)
        ([1.4], [2.4, 1.8, 1.2])
    """
    if number == 1:
        return [1.4]
    step = min(0.6, 1.5 / (number - 1))
    return [round(1.2 + step * (number - 1 - n), 3) for n in range(number)]


def draw_seeds(axes: Any, lines: Sequence[Points], look: Look, *, width: float = 1.4) -> list[list[float]]:
    """A figure of every update: of one run as :func:`~rltok_rl.viz.style.line` draws it, of several with mean and band.

    Args:
        axes: to draw on.
        lines: of each seed.
        look: colour and dashes.
        width: of the line, in points.

    Returns:
        The heights of the smoothed lines, which the picture has to hold.
    """
    smoothed = [(x, smooth(y, max(1, len(x) // 25))) for x, y in lines]
    if len(lines) == 1:
        line(axes, *lines[0], colour=look.colour, dashes=look.dashes, width=width)
        return [list(smoothed[0][1])]
    for x, y in smoothed:
        axes.plot(x, y, color=look.colour, lw=0.6, alpha=0.6)
    mean = mean_line(smoothed)
    low, high = (np.add(mean.y, np.multiply(sign, mean.spread)).tolist() for sign in (-1, 1))
    axes.fill_between(mean.x, low, high, color=look.colour, alpha=0.15, lw=0)
    axes.plot(mean.x, mean.y, color=look.colour, ls=look.dashes, lw=width, solid_joinstyle="round")
    return [*(y for _, y in smoothed), low, high]


def dot_seeds(axes: Any, points: Sequence[Points], look: Look, *, size: float = 3.0) -> list[float]:
    """Looks at held-out text: of several seeds their mean, and a bar of a standard deviation on either side.

    Args:
        axes: to draw on.
        points: of each seed.
        look: colour and shape.
        size: of each dot, in points.

    Returns:
        The heights that the picture has to hold.
    """
    if len(points) == 1:
        dots(axes, *points[0], colour=look.colour, marker=look.marker, size=size)
        return list(points[0][1])
    mean = mean_line(points, share=1.0)
    axes.errorbar(mean.x, mean.y, mean.spread, fmt="none", ecolor=look.colour, elinewidth=0.8, zorder=2.9)
    dots(axes, mean.x, mean.y, colour=look.colour, marker=look.marker, size=size)
    return [y + sign * d for y, d in zip(mean.y, mean.spread, strict=True) for sign in (-1, 1)]

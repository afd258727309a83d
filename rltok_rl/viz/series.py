"""Several runs in one figure: how each looks, where each is held out, and its name at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltok_rl.viz.style import SERIES

History = Mapping[str, Sequence[float]]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.2)))
MOST_RUNS = len(SERIES) * len(_DASHES)


@dataclass(frozen=True)
class Look:
    """How a run is drawn: in its colour, and told apart without it by its dots and its line."""

    colour: str
    marker: str
    dashes: Any


def look_of(number: int) -> Look:
    """How the run with a number is drawn; no two of ``MOST_RUNS`` look the same.

    Args:
        number: from 0.

    Example:
        >>> look_of(0) != look_of(7), look_of(0).colour == look_of(7).colour
        (True, True)
    """
    if not 0 <= number < MOST_RUNS:
        raise ValueError(f"runs must be at most {MOST_RUNS}, so that they can be told apart, got {number + 1}")
    place = number % len(SERIES)
    return Look(SERIES[place], _MARKERS[place], _DASHES[number // len(SERIES)])


def known(history: History, key: str) -> bool:
    """Whether a figure was ever there; what a rule draws has no entropy, say.

    Args:
        history: a list per figure.
        key: the figure.
    """
    return any(value == value for value in history.get(key, ()))


def spent(history: History) -> str:
    """Return the name of the FLOPs to draw against: those that include an estimator's trials, if they were recorded.

    Args:
        history: a list per metric.
    """
    return "total_flops" if "total_flops" in history else "flops"


def spent_label(histories: Sequence[History]) -> str:
    """Return the label of an axis of FLOPs.

    Args:
        histories: of the runs that are drawn.
    """
    recorded = all(spent(history) == "total_flops" for history in histories)
    return "total FLOPs, trials included" if recorded else "FLOPs of forward and backward passes"


def held_out_points(
    held_out: History, against: str, key: str = "held_out_bits_per_byte", *, scale: float = 1.0
) -> tuple[list[float], list[float]]:
    """Looks at held-out text after the first update: before it nothing is spent, and zero has no logarithm.

    Args:
        held_out: a list per figure, of looks.
        against: what they are drawn against, ``"bytes"`` or ``"flops"``.
        key: the figure.
        scale: what ``against`` is divided by.

    Returns:
        Both coordinates; empty where there were no looks.

    Example:
        >>> looks = {"bytes": [0, 2e6, 4e6], "held_out_bits_per_byte": [8.0, 4.0, 2.0]}
        >>> held_out_points(looks, "bytes", scale=1e6)
        ([2.0, 4.0], [4.0, 2.0])
    """
    pairs = [(x / scale, y) for x, y in zip(held_out.get(against, ()), held_out.get(key, ()), strict=False) if x > 0]
    return [x for x, _ in pairs], [y for _, y in pairs]


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """Move numbers as little as possible (in the sum of squares) so that any two are ``gap`` apart, in their order.

    With ``z_i = y_i - i gap`` of the sorted numbers this is isotonic regression: neighbours that are out of order are
    pooled to their mean.

    Args:
        places: where labels would be.
        gap: between two of them.

    Example:
        >>> spread_apart([1.0, 1.0, 5.0], 1.0)
        [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(places)), key=lambda n: places[n])
    pools: list[tuple[float, int]] = []  # mean and count
    for rank, n in enumerate(order):
        pools.append((places[n] - rank * gap, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, many), (high, more) = pools.pop(-2), pools.pop()
            pools.append(((low * many + high * more) / (many + more), many + more))
    moved = np.repeat([mean for mean, _ in pools], [count for _, count in pools])
    found = [0.0] * len(places)
    for rank, n in enumerate(order):
        found[n] = float(moved[rank]) + rank * gap
    return found


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]], *, size: float = 7.5) -> None:
    """Write what lines are right of their ends, spread so that no two names overlap.

    Axes have to be where they will be drawn, and their limits set. Of a line that ends outside them the name is listed,
    without a reach to its end.

    Args:
        axes: to draw on.
        ends: of each line x, y, what to write and its colour.
        size: of the letters, in points.
    """
    box = axes.get_window_extent()
    gap = 1.3 * size * axes.figure.dpi / 72
    points = axes.transData.transform([(x, y) for x, y, _, _ in ends]) if ends else np.zeros((0, 2))
    heights = spread_apart([min(max(float(y), box.y0), box.y1) for y in points[:, 1]], gap)
    heights = [y - max(0.0, max(heights) - box.y1) for y in heights]
    for (_, _, text, colour), point, height in zip(ends, points, heights, strict=True):
        start = axes.transAxes.inverted().transform((point[0], point[1]))
        place = (1.05, (height - box.y0) / box.height)
        inside = 0 <= start[0] <= 1 and -0.01 <= start[1] <= 1.01
        reach: Any = {"color": colour, "lw": 0.6, "clip_on": False, "transform": axes.transAxes}
        if inside:
            axes.plot([start[0] + 0.012, place[0] - 0.012], [start[1], place[1]], **reach)
        axes.text(*place, text, color=_ink(colour), fontsize=size, va="center", transform=axes.transAxes)


def _ink(colour: str) -> Any:
    """A colour that letters can be read in: the same one, darker."""
    from matplotlib.colors import to_rgb

    return tuple(0.72 * part for part in to_rgb(colour))

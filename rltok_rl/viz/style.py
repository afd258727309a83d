"""How figures look: quiet, one accent, readable small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

INK, PALE, OURS, ALERT = "#1b1b1b", "#9aa5b1", "#0b7a75", "#d55e00"
SERIES = (OURS, "#e69f00", "#0072b2", ALERT, "#cc79a7", "#56b4e9", INK)
"""Colours of several runs: those of Okabe and Ito (2008), with a darker green and without yellow, which white swallows.

Any two are at least 18 units of CIELAB apart, also to eyes without green or without red cones; a test holds that.
"""

_STYLE: Any = {
    "font.size": 8,
    "figure.dpi": 150,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    "pdf.fonttype": 42,  # letters that can be searched and copied
    "svg.hashsalt": "rltok_rl",  # equal figures are equal files
}
FORMATS = ("png", "pdf", "svg")
"""Kinds of files that figures can be written to; the suffix of a path says which."""


@contextmanager
def plain_figures() -> Iterator[Any]:
    """Draw with ``pyplot`` in our style, without a screen.

    Example:
        >>> with plain_figures() as plt:
        ...     figure, axes = plt.subplots()
        ...     plt.close(figure)
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(_STYLE):
        yield plt


def save_figure(figure: Any, path: Path, **options: Any) -> Path:
    """Write a figure and close it; equal figures make equal files.

    Args:
        figure: of ``pyplot``.
        path: to write to; its suffix is one of ``FORMATS``.
        **options: of ``Figure.savefig``.
    """
    from matplotlib import pyplot as plt

    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"path must end in one of {[f'.{one}' for one in FORMATS]}, got {str(path)!r}")
    dated = {"pdf": "CreationDate", "svg": "Date"}
    figure.savefig(path, metadata={dated[kind]: None} if kind in dated else None, **options)
    plt.close(figure)
    return path


def shades() -> Any:
    """The colours of probabilities from 0 to 1: white to dark green, so that lightness alone tells them apart."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("boundary", ["#ffffff", "#57ada5", "#075e5a"])


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Each value averaged with its neighbours: up to half a window on either side, less near the beginning.

    A training changes fastest at its beginning, and logarithmic axes show nothing else so large; a mean over few
    neighbours there neither lags nor flattens.

    Args:
        values: one per update.
        window: values of a mean, at most.

    Example:
        >>> smooth([9.0, 5.0, 5.0, 5.0, 2.0, 5.0], 3)
        [9.0, 5.0, 5.0, 5.0, 4.0, 3.5]
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    number = np.arange(len(values))
    half = np.minimum(window // 2, number // 4)
    first, last = number - half, np.minimum(number + half + 1, len(values))
    given = np.asarray(values, dtype=np.float64)
    known = np.isfinite(given)  # a figure that is missing leaves no trace in its neighbours
    sums, counts = (np.concatenate([[0.0], np.cumsum(x)]) for x in (np.where(known, given, 0.0), known))
    count = counts[last] - counts[first]
    return np.divide(sums[last] - sums[first], count, out=np.full(len(given), np.nan), where=count > 0).tolist()


def line(
    axes: Any,
    x: Sequence[float],
    y: Sequence[float],
    *,
    colour: str,
    label: str | None = None,
    noisy: bool = True,
    dashes: Any = "-",
    width: float = 1.4,
) -> None:
    """A figure of every update, faint, and its running mean over a twenty-fifth of the training.

    Args:
        axes: to draw on.
        x: where.
        y: what.
        colour: of both.
        label: for the legend.
        noisy: False draws the figure alone.
        dashes: of the mean, as matplotlib's ``linestyle``.
        width: of the mean, in points.
    """
    window = max(1, len(x) // 25) if noisy else 1
    if window > 1:
        axes.plot(x, y, color=colour, alpha=0.18, lw=0.6)
    axes.plot(x, smooth(y, window), color=colour, lw=width, ls=dashes, label=label, solid_joinstyle="round")


def dots(
    axes: Any,
    x: Sequence[float],
    y: Sequence[float],
    *,
    colour: str = INK,
    label: str | None = None,
    marker: str = "o",
    size: float = 3.0,
) -> None:
    """Figures of looks at held-out text.

    Args:
        axes: to draw on.
        x: where.
        y: what.
        colour: of the dots.
        label: for the legend.
        marker: their shape.
        size: of each, in points.
    """
    axes.plot(x, y, marker, color=colour, ms=size, mfc="white", mew=1, label=label, zorder=3)


def plain_numbers(axis: Any) -> None:
    """Numbers, not powers, on a logarithmic axis of few decades.

    Args:
        axis: of an ``Axes``, its scale set.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs: Any = (1, 1.5, 2, 3, 4, 5, 6, 8) if high < 30 * low else (1, 2, 5) if high < 1000 * low else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def fit(
    axes: Any, values: Sequence[Sequence[float]], *, share: float = 0.05, points: Sequence[Sequence[float]] = ()
) -> None:
    """Let an axis hold all values; where a loss begins so high that the rest would be flat, that leaves the top.

    A line that leaves the picture is said to, with the height that it comes from.

    Args:
        axes: to draw on.
        values: of the lines that are drawn.
        share: of the updates that may be above.
        points: heights of dots; how far down the axis reaches is theirs to say as well.
    """
    lines, dots_too = ([[v for v in one if v == v] for one in some] for some in (values, points))
    every = [v for one in (*lines, *dots_too) for v in one]
    kept = [v for one in lines for v in one[math.ceil(share * len(one)) :]] or every
    if not every or max(every) == min(every):
        return
    low, high, top = min(every), max(every), max(kept)
    if high - low > 2 * (top - low) > 0:
        axes.text(
            0.05, 0.99, f"\u2191 from {high:.1f}", transform=axes.transAxes, va="top", fontsize=7, color="#5c6770"
        )
        high = top
    margin = 0.05 * (high - low)
    axes.set_ylim(low - margin, high + margin)

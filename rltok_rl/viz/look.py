"""How figures look: quiet, one accent, readable small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

INK, PALE, OURS, ALERT = "#1b1b1b", "#9aa5b1", "#0b7a75", "#d1495b"
SERIES = (OURS, "#e08e0b", "#3b5ba5", ALERT, "#7b5ea7", "#5c6770")
"""Colours of several runs."""

_STYLE: dict[str, Any] = {
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
}


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


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Each value averaged with up to ``window - 1`` before it.

    Example:
        >>> smooth([1.0, 3.0, 5.0], 2)
        [1.0, 2.0, 4.0]
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    return [sum(part) / len(part) for n in range(len(values)) for part in [values[max(0, n - window + 1) : n + 1]]]


def line(axes: Any, x: Sequence[float], y: Sequence[float], *, colour: str, label: str | None = None) -> None:
    """A figure of every update, faint, and its running mean over a fortieth of the training.

    Args:
        axes: to draw on.
        x: where.
        y: what.
        colour: of both.
        label: for the legend.
    """
    if len(x) > 40:
        axes.plot(x, y, color=colour, alpha=0.18, lw=0.6)
    axes.plot(x, smooth(y, max(1, len(x) // 40)), color=colour, lw=1.4, label=label, solid_joinstyle="round")


def dots(axes: Any, x: Sequence[float], y: Sequence[float], *, colour: str = INK, label: str | None = None) -> None:
    """Figures of looks at held-out text.

    Args:
        axes: to draw on.
        x: where.
        y: what.
        colour: of the dots.
        label: for the legend.
    """
    axes.plot(x, y, "o", color=colour, ms=3, mfc="white", mew=1, label=label, zorder=3, clip_on=False)


def fit(axes: Any, values: Sequence[Sequence[float]], *, share: float = 0.05) -> None:
    """Let the first updates of a loss, which are far above the rest, leave the picture at its top.

    Args:
        axes: to draw on.
        values: of the lines that are drawn.
        share: of the updates that may be above.
    """
    kept = [v for one in values for v in one[int(share * len(one)) :] if v == v]
    if kept and (spread := max(kept) - min(kept)) > 0:
        axes.set_ylim(min(kept) - 0.05 * spread, max(kept) + 0.05 * spread)

"""Style of all pictures: colours, fonts, file formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INK, PALE, QUIET, OURS, ALERT = "#1b1b1b", "#9aa5b1", "#5c6770", "#0b7a75", "#d55e00"
SERIES = (OURS, "#e69f00", "#0072b2", ALERT, "#cc79a7", "#56b4e9", INK)
"""Colours of several runs, at least 18 units of CIELAB apart to all eyes: Okabe and Ito (2008), with a darker green."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MOST_RUNS = len(SERIES) * len(_DASHES)
FORMATS = ("png", "pdf", "svg")
"""File formats of pictures; a path's suffix selects one."""

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
    "pdf.fonttype": 42,  # letters can be searched and copied
    "svg.hashsalt": "rltok_rl",  # equal pictures are equal files
}


@contextmanager
def plain_figures() -> Iterator[Any]:
    """Draw with ``pyplot`` in the project's style, without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(_STYLE):
        yield plt


def plain_label(name: str) -> str:
    r"""Return a name for a legend, in which matplotlib would read ``$`` as mathematics.

    Example:
        >>> print(plain_label("a$^_$"))
        a\$^_\$
    """
    return name.replace("$", r"\$")


def save_figure(figure: Any, path: Path, **options: Any) -> Path:
    """Write a figure of ``pyplot`` to a path that ends in one of :data:`FORMATS`, and close it."""
    from matplotlib import pyplot as plt
    from PIL import Image

    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"path must end in one of {[f'.{name}' for name in FORMATS]}, got {str(path)!r}")
    dates = {"pdf": "CreationDate", "svg": "Date"}  # left out: equal pictures are equal files
    figure.savefig(path, metadata={dates[kind]: None} if kind in dates else None, **options)
    if kind == "png":  # 256 colours are a third of the bytes
        image = Image.open(path).convert("RGB")
        # Median cut, the default, merges the rare colours of colour keys.
        image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    plt.close(figure)
    return path


@dataclass(frozen=True)
class RunStyle:
    """Colour, marker and dashes of a run; markers and dashes distinguish runs without colours."""

    colour: str
    marker: str
    dashes: Any


def run_style(number: int) -> RunStyle:
    """Return the style of run ``number``, different for all runs below :data:`MOST_RUNS`."""
    if not 0 <= number < MOST_RUNS:
        raise ValueError(f"runs must be at most {MOST_RUNS}, the number of distinct styles, got {number + 1}")
    place = number % len(SERIES)
    return RunStyle(SERIES[place], _MARKERS[place], _DASHES[number // len(SERIES)])


def shades(*, signed: bool = False) -> Any:
    """Return the colours of probabilities, white to dark green, or of losses and gains, violet over white to green."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = ["#7b3294", "#ffffff", OURS] if signed else ["#ffffff", "#57ada5", "#075e5a"]
    return LinearSegmentedColormap.from_list("signed" if signed else "boundary", colours)

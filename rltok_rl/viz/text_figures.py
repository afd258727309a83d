"""Pictures of text: every character on a background by the probability of a boundary after it, bars for boundaries.

Characters of several bytes take the probability of their last byte and the boundaries of all their bytes, as in the
paper's Figures 2 and 5 to 12. All lengths are in inches.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rltok_rl.viz.style import ALERT, INK, PALE, QUIET, plain_figures, save_figure, shades
from rltok_rl.viz.terminal import characters, check_marks

MOST_BYTES = 20_000
"""Bytes of all texts of a picture at most."""
_BREAK, _MISSING, _ESCAPED = "\u23ce", "\u25a1", "\u00b7"  # line break, character without a glyph, escape
_FAMILY = ("monospace", "DejaVu Sans")  # the second where the first lacks a glyph
_ADVANCE = 0.60205 / 72  # inches that a letter advances, per point of the font
_CELL, _DPI, _LINE = 13 / 200, 200, 0.2  # a letter, and from line to line; a letter is a whole number of pixels
_COLUMNS, _COLUMNS_OVER_TIME = 100, 96
_CELL_OVER_TIME, _DPI_OVER_TIME = 12 / 150, 150
_SIDE, _HEAD, _KEY, _KEY_WIDTH = 0.12, 0.32, 0.5, 4.8  # beside the text, above each text, and of the key below
_DARK, _FAINT = 0.6, 0.3  # letters are white above the first probability, escapes grey below the second
_LABEL = "probability of a boundary after the character"


class Cell(NamedTuple):
    """A character, its bytes from ``start`` to ``end``, as it is shown with a column per letter of ``shown``."""

    start: int
    end: int
    shown: str


@dataclass(frozen=True)
class MarkedText:
    """A text with a segmenter's boundaries and their probabilities; a note is written at the right, above the text."""

    title: str
    text: bytes
    probabilities: Sequence[float]
    boundaries: Sequence[bool] | None = None
    """Drawn as bars; None draws none."""
    note: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A text with a policy's boundaries at the time ``label``; notes are written behind the text, a column each."""

    label: str
    text: bytes
    boundaries: Sequence[bool]
    probabilities: Sequence[float]
    notes: Sequence[str] = ()


def draw_texts(texts: Sequence[MarkedText], path: Path) -> Path:
    """Draw texts under each other, in lines of at most 100 characters.

    Control characters and invalid UTF-8 take four columns per byte.
    """
    if not texts:
        raise ValueError("texts must hold at least one, got none")
    for text in texts:
        if not text.text:
            raise ValueError(f"text must hold at least one byte, got none for {text.title!r}")
        check_marks(text.text, text.boundaries, text.probabilities)
    total = sum(len(text.text) for text in texts)
    if total > MOST_BYTES:
        raise ValueError(f"texts must have at most {MOST_BYTES:,} bytes together, got {total:,}: draw a part of them")
    blocks = [wrapped(cells(text.text), _COLUMNS) for text in texts]
    width = max(_KEY_WIDTH, *(len(cell_texts(line)) * _CELL for block in blocks for line in block))
    height = sum(_HEAD + _LINE * len(block) for block in blocks) + _KEY
    with plain_figures() as plt:
        figure = plt.figure(figsize=(width + 2 * _SIDE, height))
        axes = inch_axes(figure)
        y = 0.0
        for text, block in zip(texts, blocks, strict=True):
            head: Any = {"y": y + _HEAD - 0.07, "va": "bottom", "parse_math": False}
            axes.text(_SIDE, s=text.title, fontsize=8.5, weight="bold", **head)
            axes.text(_SIDE + width, s=text.note, fontsize=8, ha="right", **head)
            y += _HEAD
            for line in block:
                draw_line(axes, line, text.probabilities, text.boundaries, _SIDE, y)
                y += _LINE
        bars = "boundary drawn" if any(text.boundaries is not None for text in texts) else ""
        draw_key(axes, _SIDE, y + 0.22, _LABEL, bars=bars)
        return save_figure(figure, path, dpi=_DPI)


def draw_over_time(snapshots: Sequence[Snapshot], path: Path, *, headings: Sequence[str] = ()) -> Path:
    """Draw 96 characters of a text once per snapshot, the earliest first, from a line or word on.

    Headings are written above the notes.
    """
    if not snapshots:
        raise ValueError("snapshots must hold at least one, got none")
    texts = {snapshot.text for snapshot in snapshots}
    if len(texts) > 1:
        raise ValueError(f"snapshots must be of one text, got {len(texts)}")
    line = [cell._replace(shown=one_glyph(cell.shown)) for cell in visible_part(snapshots[0].text, _COLUMNS_OVER_TIME)]
    left, note, step, top = 0.75, 0.6, 0.25, 0.24
    width, height = len(line) * _CELL_OVER_TIME, 0.8 + step * len(snapshots)
    small: Any = {"fontsize": 7.5, "ha": "right", "va": "center"}
    with plain_figures() as plt:
        figure = plt.figure(figsize=(left + max(width, _KEY_WIDTH) + note * max(1, len(headings)) + 0.1, height))
        axes = inch_axes(figure)
        axes.text(left, top, "The same held-out text as training goes on", fontsize=9, va="center")
        axes.text(left - 0.08, top, "trained on", color=QUIET, **small)
        for number, heading in enumerate(headings, 1):
            axes.text(left + width + number * note, top, heading, color=QUIET, **small)
        for number, shot in enumerate(snapshots):
            y = 0.38 + number * step
            draw_line(axes, line, shot.probabilities, shot.boundaries, left, y, size=_CELL_OVER_TIME, height=step)
            axes.text(left - 0.08, y + step / 2, shot.label, **small)
            for place, text in enumerate(shot.notes, 1):
                axes.text(left + width + place * note, y + step / 2, text, **small)
        draw_key(axes, left, height - 0.22, _LABEL, bars="boundary drawn")
        return save_figure(figure, path, dpi=_DPI_OVER_TIME)


def cells(text: bytes) -> list[Cell]:
    r"""Split a text into characters as they are shown; every byte belongs to one.

    Control characters and invalid UTF-8 are escaped. Characters that are invisible or lack a glyph become a box.

    Example:
        >>> [cell.shown for cell in cells("é日\n".encode() + b"\xff")]
        ['é', '□', '⏎', '\\xff']
    """

    def shown(character: str, size: int) -> str:
        escape = len(character) > 1 and size == 1
        visible = escape or (len(character) == 1 and has_glyph(character))
        return _BREAK if character == "\n" else character if visible else _MISSING

    return [Cell(start, end, shown(character, end - start)) for start, end, character in characters(text)]


def cell_texts(line: Sequence[Cell]) -> str:
    """Join what is shown of a line; its length is the line's width in columns."""
    return "".join(cell.shown for cell in line)


def one_glyph(shown: str) -> str:
    """Shorten an escape to a dot."""
    return shown if len(shown) == 1 else _ESCAPED


def has_glyph(character: str) -> bool:
    """Whether a font of the pictures has a character, and the character stands alone."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = (get_font(findfont(FontProperties(family=family))) for family in _FAMILY)
    return not unicodedata.combining(character) and any(font.get_char_index(ord(character)) for font in fonts)


def wrapped(text: list[Cell], columns: int) -> list[list[Cell]]:
    """Break cells into lines: after each line break, and else before a word unless it is longer than half a line."""
    widest = max((len(cell.shown) for cell in text), default=1)
    if columns < widest:
        raise ValueError(f"columns must be at least {widest}, the width of the widest character, got {columns}")
    lines: list[list[Cell]] = [[]]
    for cell in text:
        line = lines[-1]
        if len(cell_texts(line)) + len(cell.shown) > columns:
            spaces = [place for place in range(len(line) // 2 + 1, len(line) + 1) if line[place - 1].shown == " "]
            cut = spaces[-1] if spaces else len(line)
            lines[-1:] = [line[:cut], line[cut:]]
        lines[-1].append(cell)
        if cell.shown == _BREAK:
            lines.append([])
    return [line for line in lines if line]


def visible_part(text: bytes, columns: int) -> list[Cell]:
    """Return as many cells as fit in a line, from the beginning of a line or else of a word on."""
    every = cells(text)
    latest = max(0, len(every) - columns)  # a later beginning would leave part of the line empty
    for separator in (_BREAK, " "):
        for number, cell in enumerate(every[:latest]):
            if cell.shown == separator and every[number + 1].shown not in (_BREAK, " "):
                return every[number + 1 : number + 1 + columns]
    return every[:columns]


def inch_axes(figure: Any) -> Any:
    """Add axes that cover a figure, in inches from its upper left corner."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    axes.set_axis_off()
    return axes


def draw_line(
    axes: Any,
    line: Sequence[Cell],
    shares: Sequence[float],
    boundaries: Sequence[bool] | None,
    x: float,
    y: float,
    *,
    size: float = _CELL,
    height: float = _LINE,
    signed: bool = False,
) -> None:
    """Draw a line of cells from (x, y) to the right, on the colours of their shares, with bars after boundaries.

    Shares are from 0 to 1, and around one half if they are ``signed``. They and boundaries have one entry per byte.
    """
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.patches import Rectangle

    values = [shares[cell.end - 1] for cell in line]
    faces = shades(signed=signed)(values)
    edges = x + size * np.cumsum([0, *(len(cell.shown) for cell in line)])
    top, bottom = y + 0.01, y + height - 0.01
    patches = [Rectangle((a, top), b - a, bottom - top) for a, b in zip(edges, edges[1:], strict=False)]
    # Edges have the colours of the faces: neighbours would otherwise show a seam.
    axes.add_collection(PatchCollection(patches, facecolors=faces, edgecolors=faces, linewidths=0.3))
    drawn = [boundaries is not None and any(boundaries[cell.start : cell.end]) for cell in line]
    bars = [[(edge, top), (edge, bottom)] for edge, bar in zip(edges[1:], drawn, strict=True) if bar]
    axes.add_collection(LineCollection(bars, colors=ALERT, linewidths=1.3, capstyle="butt", zorder=2.1))

    def style(place: int) -> tuple[str, int]:
        """The colour of a letter, and a number that plain letters share: they are written in one piece."""
        shown, dark = line[place].shown, 1.7 * abs(values[place] - 0.5) if signed else values[place]
        escape = len(shown) > 1 or shown in (_BREAK, _ESCAPED)
        ink = "white" if dark > _DARK else QUIET if escape and dark < _FAINT else INK
        return ink, -1 if shown.isascii() and shown != " " else place

    text: Any = {"family": _FAMILY, "fontsize": size / _ADVANCE, "va": "center_baseline", "parse_math": False}
    for (ink, _), places in groupby(range(len(line)), key=style):
        run = list(places)
        axes.text(edges[run[0]], y + height / 2, cell_texts([line[place] for place in run]), color=ink, **text)


def draw_key(
    axes: Any, x: float, y: float, label: str, *, bars: str, ends: tuple[str, str] = ("0", "1"), signed: bool = False
) -> float:
    """Explain colours (if there is a label) and bars, from (x, y) to the right; return the key's end."""
    style: Any = {"va": "center", "fontsize": 7.5, "color": INK}
    letter = 0.053  # inches on average
    if label:
        start = x + letter * (len(ends[0]) + 1)
        end = start + 1.0
        limits = {"xlim": axes.get_xlim(), "ylim": axes.get_ylim()}
        axes.text(start - 0.04, y, ends[0], ha="right", **style)
        ramp: Any = {"cmap": shades(signed=signed), "aspect": "auto"}
        axes.imshow([np.linspace(0, 1, 256)], extent=(start, end, y + 0.05, y - 0.05), **ramp)
        axes.set(**limits)  # the image has moved them
        frame = [start, end, end, start, start], [y - 0.05, y - 0.05, y + 0.05, y + 0.05, y - 0.05]
        axes.plot(*frame, color=PALE, lw=0.5)
        axes.text(end + 0.05, y, f"{ends[1]}  {label}", **style)
        x = end + letter * (len(ends[1]) + len(label) + 5)
    if bars:
        axes.plot([x + 0.02] * 2, [y - 0.08, y + 0.08], color=ALERT, lw=1.3, solid_capstyle="butt")
        axes.text(x + 0.08, y, bars, **style)
        x += letter * (len(bars) + 5)
    return x

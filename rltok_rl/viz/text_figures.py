"""What a font of one width can show of a character, and what stands for it where it cannot."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rltok_rl.viz.style import ALERT, INK, PALE, plain_figures, save_figure, shades
from rltok_rl.viz.terminal import characters, check_marks

_MARK = "\u23ce"  # of a line break
_BOX = 2  # columns of a code point


@dataclass(frozen=True)
class Cell:
    """A character as it is drawn."""

    start: int
    end: int
    """Its bytes."""
    shown: str
    """What is written."""
    width: int
    """Columns that it takes."""
    kind: str
    """``plain``, ``break`` (a mark of a line break), ``escape`` or ``box`` (digits of a code point, in two rows)."""


def one_glyph(character: str) -> str:
    r"""One character for any: a dot for an escape, a box for what the font lacks.

    Args:
        character: an entry of :func:`~rltok_rl.viz.terminal.characters`.

    Example:
        >>> [one_glyph(one) for one in ("a", "\n", r"\xff")]
        ['a', '⏎', '·']
    """
    if character == "\n":
        return _MARK
    if len(character) > 1:
        return "\u00b7"
    return character if has_glyph(character) else "\u25a1"


def has_glyph(character: str) -> bool:
    """Whether the font of one width has a character.

    Args:
        character: one.
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return bool(get_font(findfont(FontProperties(family="monospace"))).get_char_index(ord(character)))


def cells(text: bytes) -> list[Cell]:
    r"""Every character of a text as it is drawn; nothing is lost.

    What the font lacks, marks that sit on other characters and characters that cannot be seen become their code point,
    in a box of two columns; control characters and bytes that are no UTF-8 are escaped.

    Args:
        text: bytes, any.

    Example:
        >>> [(cell.shown, cell.width, cell.kind) for cell in cells("é日\n".encode() + b"\xff")]
        [('é', 1, 'plain'), ('65E5', 2, 'box'), ('⏎', 1, 'break'), ('\\xff', 4, 'escape')]
    """
    found = []
    for start, end, shown in characters(text):
        if shown == "\n":
            found.append(Cell(start, end, _MARK, 1, "break"))
        elif len(shown) > 1 and end - start == 1:
            found.append(Cell(start, end, shown, len(shown), "escape"))
        else:
            character = text[start:end].decode()
            if len(shown) > 1 or unicodedata.combining(character) or not has_glyph(character):
                digits = f"{ord(character):04X}"
                found.append(Cell(start, end, digits.zfill(6) if len(digits) > 4 else digits, _BOX, "box"))
            else:
                found.append(Cell(start, end, character, 1, "plain"))
    return found


def wrapped(given: list[Cell], columns: int) -> list[list[Cell]]:
    """Cells in lines of at most so many columns: a new line after each line break, and else before a word.

    Args:
        given: of a text.
        columns: of a line; a word that is longer than half a line is cut.

    Example:
        >>> [[cell.shown for cell in line] for line in wrapped(cells(b"to be"), 4)]
        [['t', 'o', ' '], ['b', 'e']]
    """
    widest = max((cell.width for cell in given), default=1)
    if columns < widest:
        raise ValueError(f"columns must be at least {widest}, the width of the widest character, got {columns}")
    lines: list[list[Cell]] = [[]]
    used = 0
    for cell in given:
        if used + cell.width > columns:
            line, rest = _cut(lines[-1])
            lines[-1] = line
            lines.append(rest)
            used = sum(one.width for one in rest)
        lines[-1].append(cell)
        used += cell.width
        if cell.kind == "break":
            lines.append([])
            used = 0
    return [line for line in lines if line]


def _cut(line: list[Cell]) -> tuple[list[Cell], list[Cell]]:
    """A full line up to its last word, and that word."""
    for place in range(len(line), len(line) // 2, -1):
        if line[place - 1].shown == " ":
            return line[:place], line[place:]
    return line, []


MOST_BYTES = 20_000
"""Of all texts of a figure: a longer one is no picture any more."""
_FONT = 8.0  # points
_CELL, _LINE = 0.60205 * _FONT / 72, 0.2  # inches of a column (what a letter of the font advances) and of a line
_SIDE, _HEAD, _KEY = 0.12, 0.32, 0.5  # inches beside the text, above each text, and of the key below
_DARK = 0.6  # from this probability on letters are white
_QUIET, _QUIET_BELOW = "#5c6770", 0.3  # of escapes, where they can be read in grey


@dataclass(frozen=True)
class MarkedText:
    """A text as a segmenter sees it."""

    title: str
    text: bytes
    probabilities: Sequence[float]
    """Of a boundary after each byte."""
    boundaries: Sequence[bool] | None = None
    """Drawn as bars; None draws none."""
    note: str = ""
    """Written at the right, above the text."""


def draw_texts(texts: Sequence[MarkedText], path: Path, *, columns: int = 100) -> Path:
    """Draw texts under each other, every character on a background by the probability of a boundary after it.

    A character of several bytes takes the probability of its last byte, as in the paper's Figures 2 and 5 to 12, and
    a bar for the boundaries of all its bytes. What cannot be shown is escaped, or its code point stands in a box.

    Args:
        texts: of as many segmenters, or samples.
        path: the file to write.
        columns: characters of a line.
    """
    if not texts:
        raise ValueError("texts must hold at least one, got none")
    for one in texts:
        if not one.text:
            raise ValueError(f"text must hold at least one byte, got none for {one.title!r}")
        check_marks(one.text, one.boundaries, one.probabilities)
    total = sum(len(one.text) for one in texts)
    if total > MOST_BYTES:
        raise ValueError(f"texts must have at most {MOST_BYTES:,} bytes together, got {total:,}: draw a part of them")
    blocks = [wrapped(cells(one.text), columns) for one in texts]
    width = max(sum(cell.width for cell in line) for block in blocks for line in block) * _CELL
    width = max(width, 4.2)  # the key has to fit
    height = sum(_HEAD + _LINE * len(block) for block in blocks) + _KEY
    with plain_figures() as plt:
        figure = plt.figure(figsize=(width + 2 * _SIDE, height))
        axes = figure.add_axes((0, 0, 1, 1))
        _measure(axes, width, height)
        axes.set_axis_off()
        colours = shades()
        top = 0.0
        for one, block in zip(texts, blocks, strict=True):
            axes.text(0, top + _HEAD - 0.07, one.title, fontsize=8.5, weight="bold", va="bottom", parse_math=False)
            axes.text(width, top + _HEAD - 0.07, one.note, fontsize=8, ha="right", va="bottom", parse_math=False)
            top += _HEAD
            _draw_block(axes, one, block, top, colours)
            top += _LINE * len(block)
        _draw_key(axes, top + 0.2, any(one.boundaries is not None for one in texts), colours)
        _measure(axes, width, height)  # an image has moved the limits
        return save_figure(figure, path, dpi=200)


def _measure(axes: Any, width: float, height: float) -> None:
    """Count in inches, from the top left corner of the text."""
    axes.set(xlim=(-_SIDE, width + _SIDE), ylim=(height, 0))


def _draw_block(axes: Any, one: MarkedText, lines: list[list[Cell]], top: float, colours: Any) -> None:
    from matplotlib.collections import LineCollection, PatchCollection
    from matplotlib.patches import Rectangle

    patches, faces, bars = [], [], []
    for number, line in enumerate(lines):
        y, column = top + number * _LINE, 0
        for cell in line:
            patches.append(Rectangle((column * _CELL, y + 0.01), cell.width * _CELL, _LINE - 0.02))
            faces.append(colours(one.probabilities[cell.end - 1]))
            column += cell.width
            if one.boundaries is not None and any(one.boundaries[cell.start : cell.end]):
                bars.append([(column * _CELL, y + 0.01), (column * _CELL, y + _LINE - 0.01)])
        _write_line(axes, one, line, y + _LINE / 2)
    # Edges in the colours of the faces: neighbours would otherwise show a seam.
    axes.add_collection(PatchCollection(patches, facecolors=faces, edgecolors=faces, linewidths=0.3, label="text"))
    axes.add_collection(LineCollection(bars, colors=ALERT, linewidths=1.3, capstyle="butt"))


def _write_line(axes: Any, one: MarkedText, line: list[Cell], y: float) -> None:
    """The letters of a line: words in one piece where they are plain, all else character by character."""
    starts, column = [], 0
    for cell in line:
        starts.append(column)
        column += cell.width

    def joins(place: int) -> tuple[Any, ...]:
        cell = line[place]
        value = one.probabilities[cell.end - 1]
        quiet = cell.kind in ("break", "escape") and value < _QUIET_BELOW  # there, but not what is read
        ink = "white" if value > _DARK else _QUIET if quiet else INK
        alone = cell.kind != "plain" or not cell.shown.isascii() or cell.shown == " "
        return (ink, cell.kind, place if alone else -1)

    for (ink, kind, _), places in groupby(range(len(line)), key=joins):
        run = list(places)
        shown = "".join(line[n].shown for n in run)
        x = starts[run[0]] * _CELL
        if kind == "box":
            _write_box(axes, shown, x, y, ink)
        elif shown.strip():
            style: Any = {"family": "monospace", "fontsize": _FONT, "va": "center_baseline", "parse_math": False}
            axes.text(x, y, shown, color=ink, ha="left", **style)


def _write_box(axes: Any, digits: str, x: float, y: float, ink: str) -> None:
    """A code point in two rows of small digits, with a line around it."""
    from matplotlib.patches import Rectangle

    frame: Any = {"facecolor": "none", "edgecolor": ink, "linewidth": 0.4, "zorder": 2}
    axes.add_patch(Rectangle((x + 0.008, y - _LINE / 2 + 0.025), 2 * _CELL - 0.016, _LINE - 0.05, **frame))
    half = len(digits) // 2
    style: Any = {"family": "monospace", "fontsize": 4.6, "ha": "center", "va": "center_baseline", "color": ink}
    for row, part in ((-1, digits[:half]), (1, digits[half:])):
        axes.text(x + _CELL, y + row * 0.036, part, **style)


def _draw_key(axes: Any, y: float, bars: bool, colours: Any) -> None:
    """What colours and bars mean."""
    width, height = 1.0, 0.09
    axes.imshow([[n / 255 for n in range(256)]], cmap=colours, aspect="auto", extent=(0, width, y + height, y))
    axes.plot([0, width, width, 0, 0], [y, y, y + height, y + height, y], color=PALE, lw=0.5)
    for value in (0, 0.5, 1):
        axes.text(value * width, y + height + 0.03, f"{value:g}", ha="center", va="top", fontsize=6.5)
    style: Any = {"va": "center", "fontsize": 7.5}
    axes.text(width + 0.1, y + height / 2, "probability of a boundary after the character", **style)
    if bars:
        axes.plot([3.53] * 2, [y - 0.03, y + height + 0.03], color=ALERT, lw=1.3, solid_capstyle="butt")
        axes.text(3.59, y + height / 2, "drawn", **style)

"""What a font of one width can show of a character, and what stands for it where it cannot."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from rltok_rl.viz.terminal import characters

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

"""One text again and again, as its boundaries change with training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltok_rl.viz.style import ALERT, INK, PALE, plain_figures, save_figure, shades
from rltok_rl.viz.terminal import characters
from rltok_rl.viz.text_figures import one_glyph

_CELL = 0.078, 0.25  # inches of a character and of a line
_LEFT, _NOTE = 0.75, 0.6  # inches before the text, and of a note behind it


@dataclass(frozen=True)
class Snapshot:
    """A text as a policy cut it at some time."""

    label: str
    """When."""
    text: bytes
    boundaries: Sequence[bool]
    probabilities: Sequence[float]
    notes: Sequence[str] = ()
    """Shown behind it, a column each."""


def draw_over_time(
    snapshots: Sequence[Snapshot], path: Path, *, columns: int = 96, headings: Sequence[str] = ()
) -> Path:
    """Draw a line per snapshot: characters on a background by probability, a bar after each boundary.

    Every line shows the same part of the text, from the first of its lines or words on.

    Args:
        snapshots: of one text, the earliest first.
        path: the PNG to write.
        columns: characters of each line.
        headings: above the notes.
    """
    if not snapshots:
        raise ValueError("snapshots must hold at least one, got none")
    texts = {snapshot.text for snapshot in snapshots}
    if len(texts) > 1:
        raise ValueError(f"snapshots must be of one text, got {len(texts)}")
    shown = visible_part(snapshots[0].text, columns)
    with plain_figures() as plt:
        colours = shades()
        width, height = _CELL[0] * len(shown), _CELL[1] * len(snapshots)
        total = (_LEFT + width + _NOTE * max(1, len(headings)) + 0.1, height + 0.8)
        figure = plt.figure(figsize=total)
        axes = figure.add_axes((_LEFT / total[0], 0.42 / total[1], width / total[0], height / total[1]))
        axes.set(xlim=(0, len(shown)), ylim=(len(snapshots), 0))
        axes.set_axis_off()
        step = _NOTE / _CELL[0]
        for place, snapshot in enumerate(snapshots):
            _draw_line(axes, snapshot, shown, place, colours)
            axes.text(-1.0, place + 0.5, snapshot.label, ha="right", va="center", fontsize=7.5)
            for number, note in enumerate(snapshot.notes, 1):
                axes.text(len(shown) + number * step, place + 0.5, note, ha="right", va="center", fontsize=7.5)
        above: Any = {"y": -0.3, "va": "bottom", "ha": "right", "fontsize": 7.5, "color": "#5c6770"}
        axes.text(x=-1.0, s="trained on", **above)
        for number, heading in enumerate(headings, 1):
            axes.text(x=len(shown) + number * step, s=heading, **above)
        title = "The same held-out text as training goes on"
        axes.text(0, -0.3, title, ha="left", va="bottom", fontsize=9)
        _draw_key(figure, total, colours)
        return save_figure(figure, path)


def visible_part(text: bytes, columns: int) -> list[tuple[int, int, str]]:
    r"""The characters to show of a text: so many, from the beginning of a line or else of a word.

    Args:
        text: bytes, which may begin anywhere.
        columns: how many characters at most.

    Returns:
        Entries of :func:`~rltok_rl.viz.terminal.characters`.

    Example:
        >>> "".join(character for _, _, character in visible_part(b"rk it\nto be or not to be", 8))
        'to be or'
    """
    every = characters(text)
    latest = max(0, len(every) - columns)  # a later beginning would leave part of the line empty
    for separator in ("\n", " "):
        for number, (_, _, character) in enumerate(every[:latest]):
            if character == separator and every[number + 1][2] not in ("\n", " "):
                return every[number + 1 : number + 1 + columns]
    return every[:columns]


def _draw_line(axes: Any, snapshot: Snapshot, shown: list[tuple[int, int, str]], place: int, colours: Any) -> None:
    values = [snapshot.probabilities[end - 1] for _, end, _ in shown]
    top, bottom = place + 0.06, place + 0.94
    extent = (0, len(shown), bottom, top)
    axes.imshow([values], cmap=colours, vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")
    for column, (start, end, character) in enumerate(shown):
        ink = "white" if values[column] > 0.6 else INK
        glyph = one_glyph(character)
        # Line breaks are there, but not what is read.
        colour = ink if glyph == character else "white" if ink == "white" else "#7d8894"
        if glyph.strip():
            style: Any = {"fontsize": 7.6, "family": "monospace", "color": colour}
            axes.text(column + 0.5, place + 0.5, glyph, ha="center", va="center_baseline", **style)
        if any(snapshot.boundaries[start:end]):
            axes.plot([column + 1] * 2, [top, bottom], color=ALERT, lw=1.5, solid_capstyle="butt", clip_on=False)
    axes.set_xlim(0, len(shown))


def _draw_key(figure: Any, total: tuple[float, float], colours: Any) -> None:
    """What colours and bars mean, below the text."""
    key = figure.add_axes((_LEFT / total[0], 0.17 / total[1], 1.1 / total[0], 0.11 / total[1]))
    key.imshow([[n / 255 for n in range(256)]], cmap=colours, aspect="auto", extent=(0, 1, 0, 1))
    key.set(xticks=[], yticks=[])
    for spine in key.spines.values():
        spine.set(visible=True, color=PALE, linewidth=0.5)
    style: Any = {"va": "center", "fontsize": 7.5, "transform": key.transAxes}
    key.text(1.06, 0.5, "probability of a boundary after the character, from 0 to 1", **style)
    key.plot([4.6] * 2, [-0.5, 1.5], color=ALERT, lw=1.5, transform=key.transAxes, clip_on=False)
    key.text(4.66, 0.5, "boundary drawn", **style)

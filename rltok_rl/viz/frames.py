"""Frames of an environment: bytes with their boundaries as an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rltok_rl.viz.style import INK
from rltok_rl.viz.terminal import check_marks
from rltok_rl.viz.text_figures import cells, draw_key, draw_line, inch_axes, one_glyph

_CELL, _STEP, _EDGE = 0.1, 0.24, 0.12  # inches of a character, from line to line, and around the text


def boundary_picture(
    text: bytes,
    boundaries: Sequence[bool],
    probabilities: Sequence[float] | None = None,
    *,
    rewards: Sequence[float] | None = None,
    title: str = "",
    columns: int = 64,
    least_characters: int = 1,
) -> np.ndarray:
    """Draw T bytes in lines of fixed width as an image [height, width, 3] uint8, for frames of an environment.

    Colours show probabilities in [0, 1], or rewards in nats (nan for bytes without one), or else the decisions.
    ``least_characters`` leaves grey space for a growing text, so that all pictures have one size. Both sizes are even,
    as films require.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if rewards is not None and (probabilities is not None or len(rewards) != len(text)):
        raise ValueError(f"rewards must be one per byte, {len(text)}, without probabilities, got {len(rewards)}")
    shares = probabilities if probabilities is not None else [float(b) for b in boundaries]
    check_marks(text, boundaries, shares)
    if rewards is not None:
        shares = [0.5 if r != r else 0.5 + max(-0.5, min(0.5, r / 4)) for r in rewards]  # from -2 to 2 nats
    every = [cell._replace(shown=one_glyph(cell.shown)) for cell in cells(text)]
    room = max(len(every), least_characters)
    top = 0.26 if title else _EDGE
    height = top + -(-room // columns) * _STEP + 0.3
    figure = Figure(figsize=(columns * _CELL + 2 * _EDGE, height), dpi=100)
    axes = inch_axes(figure)
    axes.text(_EDGE, top / 2, title, fontsize=8, va="center", color=INK, parse_math=False)
    line: Any = {"size": _CELL, "height": _STEP, "signed": rewards is not None}
    for start in range(0, len(every), columns):
        y = top + start // columns * _STEP
        draw_line(axes, every[start : start + columns], shares, boundaries, _EDGE, y, **line)
    places = [(_EDGE + n % columns * _CELL, top + n // columns * _STEP + 0.01) for n in range(len(every), room)]
    empty = [Rectangle(place, _CELL, _STEP - 0.02) for place in places]
    label, ends = ("probability of a boundary" if probabilities is not None else ""), ("0", "1")
    if rewards is not None:
        label, ends = "reward for the byte", ("\u2264 \u22122", "\u2265 2 nats:")
    y = height - 0.15
    x = draw_key(axes, _EDGE, y, label, bars="a token ends", ends=ends, signed=rewards is not None)
    empty.append(Rectangle((x, y - 0.05), 0.1, 0.1))
    axes.text(x + 0.16, y, "to come", va="center", fontsize=7.5, color=INK)
    axes.add_collection(PatchCollection(empty, color="#eceff1", linewidths=0.3))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()

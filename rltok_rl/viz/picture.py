"""Text with its boundaries as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rltok_rl.viz.glyphs import one_glyph
from rltok_rl.viz.terminal import characters

_COLUMNS = 64


def boundary_picture(
    text: bytes,
    boundaries: Sequence[bool],
    probabilities: Sequence[float] | None = None,
    *,
    columns: int = _COLUMNS,
    least_characters: int = 1,
) -> np.ndarray:
    """Draw bytes in lines of fixed width, each character on a background by probability, a bar after each boundary.

    Args:
        text: T bytes.
        boundaries: T decisions.
        probabilities: T numbers in [0, 1]; None shows the decisions.
        columns: characters per line.
        least_characters: leave room for so many, so that pictures of a growing text are of one size.

    Returns:
        [height, width, 3] uint8.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    shown = characters(text)
    values = [float(b) for b in boundaries] if probabilities is None else probabilities
    num_lines = -(-max(len(shown), least_characters) // columns)
    figure = Figure(figsize=(columns * 0.12, num_lines * 0.26), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, columns), ylim=(num_lines, 0))
    axes.axis("off")
    for number, (start, end, character) in enumerate(shown):
        line, column = divmod(number, columns)
        shade = colormaps["cividis"](0.25 + 0.75 * values[end - 1])
        axes.add_patch(Rectangle((column, line), 1, 1, facecolor=shade, edgecolor="none"))
        ink = "black" if values[end - 1] > 0.35 else "white"
        style: Any = {"ha": "center", "va": "center", "color": ink, "fontsize": 9, "family": "monospace"}
        axes.text(column + 0.5, line + 0.55, one_glyph(character), **style)
        if any(boundaries[start:end]):
            axes.plot([column + 1, column + 1], [line, line + 1], color="black", linewidth=1.6)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()

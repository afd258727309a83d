"""Text with its boundaries as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, shades
from rltok_rl.viz.terminal import characters, check_marks
from rltok_rl.viz.text_figures import one_glyph

_COLUMNS = 64
_DPI, _CELL, _LINE, _EDGE, _TITLE, _KEY = 100, 10, 24, 12, 26, 30  # pixels, all even, as films want them
_MOST = 2.0  # nats, from which on colours no longer change
_TO_COME = "#eceff1"


def boundary_picture(
    text: bytes,
    boundaries: Sequence[bool],
    probabilities: Sequence[float] | None = None,
    *,
    rewards: Sequence[float] | None = None,
    title: str = "",
    columns: int = _COLUMNS,
    least_characters: int = 1,
) -> np.ndarray:
    """Draw bytes in lines of fixed width, each character on a coloured background, with a bar after each boundary.

    A key below says what colours mean. Characters of several bytes have the colour of their last one.

    Args:
        text: T bytes.
        boundaries: T decisions.
        probabilities: T numbers in [0, 1], the colours; None shows the decisions.
        rewards: T numbers in nats, the colours in their place: one for each byte, not a number where there is none.
        title: a line above.
        columns: characters per line.
        least_characters: leave room for so many, so that pictures of a growing text are of one size; it is grey.

    Returns:
        [height, width, 3] uint8.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    if rewards is not None and (probabilities is not None or len(rewards) != len(text)):
        raise ValueError(f"rewards must be one per byte, {len(text)}, without probabilities, got {len(rewards)}")
    likely = probabilities if probabilities is not None else [float(b) for b in boundaries]
    check_marks(text, boundaries, likely)
    shown = characters(text)
    room = max(len(shown), least_characters)
    num_lines = -(-room // columns)
    width = columns * _CELL + 2 * _EDGE
    top = _TITLE if title else _EDGE
    height = top + num_lines * _LINE + _KEY
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    colours = shades() if rewards is None else _reward_shades()
    patches, faces = [], []
    for number in range(room):
        line, column = divmod(number, columns)
        patches.append(Rectangle((_EDGE + column * _CELL, top + line * _LINE + 1), _CELL, _LINE - 2))
        faces.append(_TO_COME)
    for number, (start, end, character) in enumerate(shown):
        line, column = divmod(number, columns)
        left, upper = _EDGE + column * _CELL, top + line * _LINE
        share = likely[end - 1] if rewards is None else _share(rewards[end - 1])
        faces[number] = colours(share)
        dark = share > 0.6 if rewards is None else abs(share - 0.5) > 0.35
        style: Any = {"ha": "center", "va": "center_baseline", "fontsize": 10, "family": "monospace"}
        ink = "white" if dark else INK
        axes.text(left + _CELL / 2, upper + _LINE / 2, one_glyph(character), color=ink, parse_math=False, **style)
        if any(boundaries[start:end]):
            axes.plot([left + _CELL] * 2, [upper + 1, upper + _LINE - 1], color=ALERT, lw=1.6, solid_capstyle="butt")
    axes.add_collection(PatchCollection(patches, facecolors=faces, edgecolors=faces, linewidths=0.3))
    if title:
        axes.text(_EDGE, _TITLE / 2, title, fontsize=8, va="center", color=INK, parse_math=False)
    _draw_key(axes, top + num_lines * _LINE + _KEY / 2, colours, rewards is not None, probabilities is not None)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _reward_shades() -> Any:
    """Violet for losses, white for nothing, green for gains: lightness is how much, and no red or green decides."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("reward", ["#7b3294", "#ffffff", OURS])


def _share(reward: float) -> float:
    """Where a reward lies among the colours, from 0 to 1."""
    return 0.5 if reward != reward else 0.5 + max(-0.5, min(0.5, reward / (2 * _MOST)))


def _draw_key(axes: Any, y: float, colours: Any, of_rewards: bool, of_probabilities: bool) -> None:
    """What colours and bars mean."""
    style: Any = {"va": "center", "fontsize": 7, "color": INK}
    x = _EDGE
    if of_rewards or of_probabilities:
        low, high = (f"\u2264 \u2212{_MOST:g}", f"\u2265 {_MOST:g} nats") if of_rewards else ("0", "1")
        said = "reward for the byte" if of_rewards else "probability of a boundary"
        start, end = x + (28 if of_rewards else 10), x + (118 if of_rewards else 100)
        axes.text(start - 4, y, low, ha="right", **style)
        axes.imshow([np.linspace(0, 1, 256)], cmap=colours, aspect="auto", extent=(start, end, y + 5, y - 5), zorder=1)
        axes.plot([start, end, end, start, start], [y - 5, y - 5, y + 5, y + 5, y - 5], color=PALE, lw=0.5)
        axes.text(end + 4, y, f"{high}: {said}", **style)
        x = end + (155 if of_rewards else 150)
    axes.plot([x + 2] * 2, [y - 8, y + 8], color=ALERT, lw=1.6)
    axes.text(x + 8, y, "a token ends", **style)
    axes.fill([x + 90, x + 100, x + 100, x + 90], [y - 5, y - 5, y + 5, y + 5], color=_TO_COME)
    axes.text(x + 106, y, "to come", **style)

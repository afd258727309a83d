"""Draw the picture at the top of the README: ``python docs/figures/overview.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

TEXT = "Learn to split"
BOUNDARIES = [1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0]
TOKEN_COLOURS = ["#0072B2", "#E69F00", "#009E73"]  # Okabe-Ito: distinct with any colour vision
INK, SOFT, BAND, EARLY = "#222222", "#777777", "#ECEFF4", "#CC79A7"
BYTES, ENCODER, POLICY, TOKENS, DECODER, OUT = 0.0, 1.05, 2.1, 3.75, 5.4, 6.5  # heights


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, **style) -> None:
    """Draw a rounded box centred at (x, y)."""
    style = {"facecolor": "white", "edgecolor": INK, "linewidth": 1.0, **style}
    corner = (x - width / 2, y - height / 2)
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.12", **style))
    dark = style["facecolor"] in (*TOKEN_COLOURS, EARLY)
    axes.text(x, y, text, ha="center", va="center", fontsize=11, color="white" if dark else INK)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, **style) -> None:
    """Draw an arrow."""
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.1, "color": colour, **style}
    axes.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **style))


def draw(axes: Axes) -> None:
    """Draw one window of bytes on its way through the model."""
    length = len(TEXT)
    serving = [sum(BOUNDARIES[: t + 1]) - 1 for t in range(length)]
    for y, height, label in [
        (ENCODER, 0.62, "byte encoder, sliding window"),
        (DECODER, 0.62, "byte decoder, sliding window"),
    ]:
        box(axes, (length - 1) / 2, y, length + 0.1, height, label, facecolor=BAND, edgecolor="none")
    starts = [t for t, boundary in enumerate(BOUNDARIES) if boundary]
    ends = [*starts[1:], length]
    box(axes, (length - 1) / 2, TOKENS, length + 0.1, 1.15, "", facecolor=BAND, edgecolor="none")
    axes.text(length - 0.6, TOKENS - 0.33, "token layers, full attention", ha="right", va="center", fontsize=9, color=SOFT)
    for token, (start, end) in enumerate(zip(starts, ends, strict=True)):
        colour = TOKEN_COLOURS[token]
        box(axes, start + 0.35, TOKENS - 0.12, 1.5, 0.52, f"token {token}", facecolor=colour, edgecolor="none")
        arrow(axes, (start, POLICY + 0.27), (start, TOKENS - 0.4), colour, linewidth=2.2)
        for t in range(start, end):
            arrow(axes, (start + 0.35, TOKENS + 0.16), (t, DECODER - 0.33), colour, linewidth=1.2, alpha=0.75)
    for t, character in enumerate(TEXT):
        colour = TOKEN_COLOURS[serving[t]]
        shown = "\u2423" if character == " " else character
        box(axes, t, BYTES, 0.72, 0.62, shown)
        arrow(axes, (t, BYTES + 0.33), (t, ENCODER - 0.32), SOFT)
        arrow(axes, (t, ENCODER + 0.32), (t, POLICY - 0.27), SOFT)
        drawn = bool(BOUNDARIES[t])
        box(axes, t, POLICY, 0.6, 0.5, str(BOUNDARIES[t]), facecolor=colour if drawn else "white", edgecolor=INK)
        arrow(axes, (t, DECODER + 0.32), (t, OUT - 0.33), SOFT)
        following = TEXT[t + 1] if t + 1 < length else "?"
        box(axes, t, OUT, 0.72, 0.62, "\u2423" if following == " " else following, edgecolor=SOFT, linestyle=(0, (2, 1.5)))
    left = -1.0
    for y, label in [
        (BYTES, "bytes  $x_t$"),
        (POLICY, "boundary policy\n$a_t \\sim \\pi(\\cdot\\,|\\,X_t, a_{t-w:t-1})$"),
        (OUT, "next byte\n$\\log p(x_{t+1})$"),
    ]:
        axes.text(left, y, label, ha="right", va="center", fontsize=11, color=INK)
    right = length - 0.1
    arrow(axes, (right - 0.35, ENCODER), (right + 0.75, ENCODER), EARLY, linewidth=2.0)
    axes.text(right + 0.9, ENCODER, "early exit\n$\\log p_{early}(x_{t+1})$", ha="left", va="center", fontsize=11, color=EARLY)
    for y, label in [
        (OUT - 0.3, "return credited to $a_t$"),
        (OUT - 1.3, "$\\sum_j \\gamma^{j}\\,(\\log p - \\log p_{early})_{t+1+j}$"),
        (OUT - 2.6, "how much better the tokens\nmake the bytes to come\npredictable"),
    ]:
        axes.text(right + 0.9, y, label, ha="left", va="center", fontsize=11, color=INK, linespacing=1.4)
    axes.set(xlim=(-5.2, length + 5.2), ylim=(-0.5, 7.0), aspect="equal")
    axes.axis("off")


def main() -> None:
    """Write ``overview.png`` beside this file."""
    figure, axes = plt.subplots(figsize=(13, 4.2))
    draw(axes)
    figure.savefig(Path(__file__).with_name("overview.png"), dpi=140, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main()

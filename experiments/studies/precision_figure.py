"""The figure of the study of precision: costs over updates, and what apart from them a way makes of each seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, plain_figures

SMOOTH = 10
"""Updates that a difference is averaged over."""


def draw_precision(courses: dict[str, dict[str, list[list[float]]]], path: Path) -> Path:
    """Draw costs in float32 and bfloat16; and for both costs and the rate, differences from float32 of one seed.

    Args:
        courses: by way and figure, a list of updates for each seed.
        path: the PNG to write.
    """
    shown = {"bits_per_byte": "bits per byte", "early_bits_per_byte": "early exit", "rate": "rate"}
    with plain_figures() as plt:
        figure, (costs, *panels) = plt.subplots(1, 1 + len(shown), figsize=(11.4, 2.6), layout="constrained")
        for way, colour in (("float32", INK), ("bfloat16", ALERT)):
            for place, course in enumerate(courses[way]["bits_per_byte"]):
                costs.plot(course, color=colour, lw=0.7, label=way if place == 0 else None)
        costs.set_title("bits per byte, every seed")
        costs.legend()
        for axes, (name, title) in zip(panels, shown.items(), strict=True):
            usual = courses["float32"][name]
            _draw_apart(axes, [(a, b) for place, a in enumerate(usual) for b in usual[place + 1 :]], PALE, "two seeds")
            for way, colour in (("nudged", OURS), ("bfloat16", ALERT)):
                _draw_apart(axes, list(zip(courses[way][name], usual, strict=True)), colour, f"{way} - float32")
            axes.axhline(0.0, color=INK, lw=0.5)
            axes.set_title(f"{title}: differences")
            axes.set_xlabel(f"updates, means of {SMOOTH}")
        panels[0].legend()
        costs.set_xlabel("updates")
        figure.savefig(path)
        plt.close(figure)
    return path


def _draw_apart(axes: Any, pairs: Sequence[tuple[list[float], list[float]]], colour: str, label: str) -> None:
    for place, (one, other) in enumerate(pairs):
        width = min(SMOOTH, len(one))
        smooth = np.convolve(np.subtract(one, other), np.ones(width) / width, mode="valid")
        axes.plot(range(width, len(one) + 1), smooth, color=colour, lw=0.8, label=label if place == 0 else None)

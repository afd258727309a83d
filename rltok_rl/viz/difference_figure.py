"""Figure of each system's difference from the reference: seeds as dots, means with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rltok_rl.viz.style import ALERT, INK, OURS, PALE, QUIET, plain_figures, plain_label, save_figure


@dataclass(frozen=True)
class SystemDifference:
    """A system's losses minus those of the reference, seed by seed, with their mean and its 95 % interval."""

    name: str
    by_seed: Sequence[float]
    mean: float
    half_width: float
    comparable: bool = True
    """False if the rate is off its target, or if boundaries look ahead."""

    @property
    def colour(self) -> str:
        """Green if the interval is below 0, orange if it is above, grey if it includes 0."""
        if abs(self.mean) <= self.half_width:
            return QUIET
        return OURS if self.mean < 0 else ALERT


def draw_differences(systems: Sequence[SystemDifference], path: Path, *, reference: str) -> Path:
    """Draw a line per system, the best on top. Systems that are not comparable have a hollow mean."""
    if not systems:
        raise ValueError("systems must be at least one, got none")
    ordered = sorted(systems, key=lambda system: system.mean, reverse=True)
    names = [plain_label(system.name) for system in ordered]
    height, left = 0.75 + 0.2 * len(ordered), 0.3 + 0.065 * max(map(len, names))
    width = left + 4.2
    with plain_figures() as plt:
        figure = plt.figure(figsize=(width, height))
        axes = figure.add_axes((left / width, 0.45 / height, 4.0 / width, (height - 0.75) / height))
        axes.axvline(0.0, color=INK, lw=0.8, zorder=1)
        for place, system in enumerate(ordered):
            axes.plot(system.by_seed, [place] * len(system.by_seed), "o", ms=2.6, color=PALE, zorder=2)
            ends = [system.mean - system.half_width, system.mean + system.half_width]
            axes.plot(ends, [place, place], lw=1.4, color=system.colour, zorder=3)
            face = system.colour if system.comparable else "white"
            axes.plot([system.mean], [place], "o", ms=5, color=system.colour, mfc=face, zorder=4)
        axes.set_yticks(range(len(ordered)), names)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        axes.set_title(f"bits per byte minus {plain_label(reference)}: lower is better")
        return save_figure(figure, path)

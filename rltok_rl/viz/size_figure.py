"""Figure of differences from a reference against total FLOPs, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rltok_rl.viz.style import INK, plain_figures, plain_label, run_style, save_figure


@dataclass(frozen=True)
class SizedDifference:
    """A system's losses minus those of the reference at one size, by seed, with their mean and its 95 % interval."""

    system: str
    flops: float
    by_seed: Sequence[float]
    mean: float
    half_width: float
    """Infinite for one seed, which has no bar."""


def draw_sizes(points: Sequence[SizedDifference], path: Path, *, reference: str) -> Path:
    """Draw a line per system over the total FLOPs, on a logarithmic axis.

    The picture has the height of the seeds' range and some margin, so that the wide interval of two seeds does not
    flatten all others.
    """
    if not points:
        raise ValueError("points must be at least one, got none")
    seeds = [value for point in points for value in (*point.by_seed, 0.0)]
    margin, sizes = 0.3 * (max(seeds) - min(seeds)), sorted({point.flops for point in points})
    systems = list(dict.fromkeys(point.system for point in points))
    with plain_figures() as plt:
        figure, axes = plt.subplots(figsize=(4.6, 3.0), layout="constrained")
        axes.axhline(0.0, color=INK, lw=0.8, zorder=1)
        for number, system in enumerate(systems):
            style, shift = run_style(number), 1 + 0.05 * (number - (len(systems) - 1) / 2)  # bars stay apart
            of_system = sorted((point for point in points if point.system == system), key=lambda point: point.flops)
            at = [point.flops * shift for point in of_system]
            means = [point.mean for point in of_system]
            line = {"color": style.colour, "marker": style.marker, "ls": style.dashes, "lw": 1.4, "ms": 5}
            axes.plot(at, means, label=plain_label(system), zorder=4, **line)
            for x, point in zip(at, of_system, strict=True):
                axes.plot(
                    [1.015 * x] * len(point.by_seed), point.by_seed, ".", color=style.colour, ms=4.5, alpha=0.7, mew=0
                )
                if point.half_width < float("inf"):
                    axes.errorbar(x, point.mean, point.half_width, color=style.colour, elinewidth=0.9, capsize=2)
        axes.set(xscale="log", xlabel="total TFLOPs", ylim=(min(seeds) - margin, max(seeds) + margin))
        axes.set_xlim(0.85 * sizes[0], 1.18 * sizes[-1])
        axes.set_xticks(sizes, [f"{flops / 1e12:,.{1 if flops < 1e14 else 0}f}" for flops in sizes])
        axes.minorticks_off()
        axes.set_title(f"bits per byte minus {reference}: lower is better")
        axes.legend(loc="best", fontsize=7.5)
        return save_figure(figure, path)

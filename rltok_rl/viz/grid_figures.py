"""Picture of a grid of runs: metrics over a swept number, a colour per series, intervals over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rltok_rl.viz.axes import line_widths, mean_line
from rltok_rl.viz.style import plain_figures, plain_label, run_style, save_figure

Series = Mapping[str, Mapping[float, Sequence[float]]]
"""Values over seeds by swept number, by the name of a series."""


def draw_grid(name: str, panels: Mapping[str, Series], path: Path) -> Path:
    """Draw a panel per metric over the swept number ``name``; ``panels`` hold the series of each metric by its title.

    Small dots are seeds, lines their means, bars a standard deviation on either side. The numbers are equally far
    apart, because 0.9, 0.99 and 1 would be one place on a common scale.
    """
    numbers = sorted({x for series in panels.values() for values in series.values() for x in values})
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    if not numbers:
        raise ValueError(f"panels must hold at least one value, got {panels}")
    place = {x: n for n, x in enumerate(numbers)}
    rows = -(-len(names) // 3) if len(names) > 1 else 0
    with plain_figures() as plt:
        size = (3.4 * max(len(panels), 1.3), 2.6 + 0.18 * rows)
        figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
        for axes, (title, series) in zip(grid.flat, panels.items(), strict=True):
            for n, (group, width) in enumerate(zip(names, line_widths(len(names)), strict=True)):
                style, shift = run_style(n), 0.08 * (n - (len(names) - 1) / 2)  # bars stay apart
                values = {x: series[group][x] for x in numbers if series.get(group, {}).get(x)}
                means = [mean_line([([x], [y]) for y in ys]) for x, ys in values.items()]
                x, y = [place[number] + shift for number in values], [mean.y[0] for mean in means]
                spread = [mean.spread[0] for mean in means]
                line = {"color": style.colour, "marker": style.marker, "ls": style.dashes, "lw": width, "ms": 4.5}
                axes.errorbar(x, y, spread, elinewidth=0.9, capsize=2, label=plain_label(group), **line)
                for at, ys in zip(x, values.values(), strict=True):
                    axes.plot([at + 0.05] * len(ys), ys, ".", color=style.colour, ms=3.5, alpha=0.7, mew=0)
            axes.set(title=title, xlabel=name, xlim=(-0.3, len(numbers) - 0.7))
            axes.set_xticks(range(len(numbers)), [f"{x:g}" for x in numbers])
        if rows:
            handles = grid.flat[0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside lower center", ncols=min(3, len(names)), fontsize=7.5)
        return save_figure(figure, path)

"""Several trainings in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rltok_rl.viz.seeds import MeanLine, dot_seeds, draw_seeds, mean_line, seed_groups, widths
from rltok_rl.viz.series import History, held_out_points, known, label_ends, look_of, spent, spent_label
from rltok_rl.viz.style import PALE, fit, plain_figures, plain_numbers, save_figure, smooth

Runs = Mapping[str, tuple[History, History]]
Groups = Mapping[str, Sequence[str]]

_PART = 5.0
"""The end that is drawn large begins at this fraction of the budget: the last four fifths of it."""
_PANELS = (
    ("bits per byte", "bits_per_byte", "held_out_bits_per_byte"),
    ("boundaries per byte", "rate", "held_out_rate"),
    ("policy entropy, nats per decision", "entropy", None),
    ("advantage spread, nats", "advantage_spread", None),
)


def draw_comparison(
    runs: Runs,
    path: Path,
    *,
    target_rates: Mapping[str, float | None] | None = None,
    groups: Groups | None = None,
) -> Path:
    """Draw bits per byte, rate, policy entropy and advantage spread against bytes: a colour per group of runs.

    Lines are training, dots held-out text. A group of several runs has a thin line for each, their mean, and a band
    (bars for dots) of a standard deviation on either side.

    Args:
        runs: history of training and of looks at held-out text, by name.
        path: the file to write.
        target_rates: by name; drawn as dashed lines.
        groups: names of runs that differ in their seed alone, by what to call them; others stand alone.
    """
    drawn = {name: found for name, found in runs.items() if found[0].get("bytes")}
    if not drawn:
        raise ValueError("runs must hold one with at least one update, got none")
    panels = [one for one in _PANELS if any(known(history, one[1]) for history, _ in drawn.values())]
    members = seed_groups(drawn, groups)
    looks = [look_of(number) for number in range(len(members))]
    targets = {name: rate for name, rate in (target_rates or {}).items() if name in drawn and rate is not None}
    one_for_all = len(set(targets.values())) == 1
    with plain_figures() as plt:
        columns = 2 if len(panels) == 4 else len(panels)
        rows, named = -(-len(panels) // columns), min(3, len(members))
        size = (3.1 * max(2, columns), 2.3 * rows + 0.3 + 0.18 * -(-len(members) // named))
        figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, sharex=True)
        for axes, (title, key, held) in zip(grid.flat, panels, strict=True):
            heights: list[Sequence[float]] = []
            points: list[Sequence[float]] = []
            logarithmic = key == "advantage_spread"
            for look, width, (name, ones) in zip(looks, widths(len(members)), members.items(), strict=True):
                axes.plot([], [], color=look.colour, ls=look.dashes, lw=width, marker=look.marker, ms=3.5, label=name)
                found = [drawn[one] for one in ones if known(drawn[one][0], key)]
                if found:
                    lines = [([x / 1e6 for x in history["bytes"]], history[key]) for history, _ in found]
                    reached = draw_seeds(axes, lines, look, width=width)
                    heights += reached[: len(found)] if logarithmic else reached  # a band may reach to zero
                for rate in dict.fromkeys(targets[one] for one in ones if key == "rate" and one in targets):
                    axes.axhline(rate, color=PALE if one_for_all else look.colour, lw=0.9, ls=(0, (4, 3)))
                    heights.append([rate])
                if held is not None:
                    at = [held_out_points(drawn[one][1], "bytes", held, scale=1e6) for one in ones]
                    points.append(dot_seeds(axes, at, look, size=3 * width / 1.4))
            axes.set(title=title, xlim=(0, None))
            if logarithmic:
                _fit_logarithm(axes, heights)
            else:
                fit(axes, heights, points=points, share=0.05 if key == "bits_per_byte" else 0.0)
        for axes in grid[-1]:
            axes.set_xlabel("MB of text")
        handles = grid[0][0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=named, fontsize=7.5)
        return save_figure(figure, path)


def draw_loss_against_flops(runs: Runs, path: Path, *, groups: Groups | None = None) -> Path:
    """Draw bits per byte against FLOPs: the whole training, and beside it the end, large, where runs come apart.

    Lines are training on the left; on the right held-out text joined from look to look, or training where there were
    no looks, from a fifth of the largest budget on. Names stand at the ends, with what each came to: of several seeds
    the mean and the standard deviation.

    Args:
        runs: history of training and of evaluations on held-out text, by name; both with ``total_flops``, or
            ``flops`` if they did not record trials.
        path: the file to write.
        groups: names of runs that differ in their seed alone, by what to call them; others stand alone.
    """
    drawn = {name: found for name, found in runs.items() if found[0].get(spent(found[0]))}
    if not drawn:
        raise ValueError("runs must hold one with at least one update and its FLOPs, got none")
    members = {name: [drawn[one] for one in ones] for name, ones in seed_groups(drawn, groups).items()}
    looks, broad = [look_of(number) for number in range(len(members))], widths(len(members))
    ends = {name: _end(found) for name, found in members.items()}
    budget = max(end.x[-1] for end in ends.values())
    start = budget / _PART if any(len(end.x) > 1 for end in ends.values()) else None
    named = [_named(name, ends[name], start) for name in members]
    margin = 0.35 + 0.06 * max(len(text) for _, _, text in named)
    height = max(3.1, 0.9 + 0.14 * len(members))
    width = 6.9 + margin
    with plain_figures() as plt:
        figure = plt.figure(figsize=(width, height))
        top, bottom = 0.35, 0.5
        place = (bottom / height, (height - top - bottom) / height)
        whole = figure.add_axes((0.42 / width, place[0], 2.9 / width, place[1]))
        end = figure.add_axes((3.85 / width, place[0], 2.9 / width, place[1]))
        shown: list[float] = []
        for look, thick, (name, found) in zip(looks, broad, members.items(), strict=True):
            draw_seeds(
                whole, [(history[spent(history)], history["bits_per_byte"]) for history, _ in found], look, width=thick
            )
            at = [held_out_points(held, spent(held)) for _, held in found]
            dot_seeds(whole, at, look, size=3 * thick / 1.4)
            mean = ends[name]
            style: Any = {"marker": look.marker, "ms": 4 * thick / 1.4} if len(mean.x) < 100 else {}
            end.plot(mean.x, mean.y, color=look.colour, ls=look.dashes, lw=thick, clip_on=True, **style)
            if len(found) > 1:
                end.errorbar(mean.x, mean.y, mean.spread, fmt="none", ecolor=look.colour, elinewidth=0.8)
            held = [(y, d) for x, y, d in zip(mean.x, mean.y, mean.spread, strict=True) if start is None or x >= start]
            shown += [y + sign * d for y, d in held for sign in (-1, 1)]
        whole.set(xscale="log", yscale="log", title="bits per byte: training, dots are held-out text")
        plain_numbers(whole.yaxis)
        on_held_out = all(held_out_points(held, spent(held))[0] for _, held in drawn.values())
        part = "" if start is None else f", from 1/{_PART:.0f} of the budget on"
        end.set(xscale="log", title=f"the end{part}{': held-out text' if on_held_out else ''}")
        if start is not None:
            end.set_xlim(start, budget * 1.06)
            spread = max(shown) - min(shown) or 0.01
            end.set_ylim(min(shown) - 0.06 * spread, max(shown) + 0.06 * spread)
        for axes in (whole, end):
            large_numbers(axes.xaxis)
            axes.set_xlabel(spent_label([history for history, _ in drawn.values()]))
        label_ends(end, [(*one, look.colour) for one, look in zip(named, looks, strict=True)])
        return save_figure(figure, path)


def _end(found: Sequence[tuple[History, History]]) -> MeanLine:
    """What is drawn large of runs: held-out text, else training, smoothed."""
    at = [held_out_points(held_out, spent(held_out)) for _, held_out in found]
    if any(x for x, _ in at):
        return mean_line(at, share=1.0)
    every = [(history[spent(history)], history["bits_per_byte"]) for history, _ in found]
    return mean_line([(x, smooth(y, max(1, len(x) // 25))) for x, y in every])


def _named(name: str, end: MeanLine, start: float | None) -> tuple[float, float, str]:
    """Where a line ends, and what to write there; of a run that ends before the picture begins, where that was."""
    from matplotlib.ticker import EngFormatter

    spread = f" ± {end.spread[-1]:.3f}" if end.spread[-1] else ""
    early = "" if start is None or end.x[-1] >= start else f" at {EngFormatter(places=0)(end.x[-1])}"
    return end.x[-1], end.y[-1], f"{name}  {end.y[-1]:.3f}{spread}{early}"


def _fit_logarithm(axes: Any, heights: Sequence[Sequence[float]]) -> None:
    """A logarithmic axis that holds what has a logarithm."""
    positive = [v for one in heights for v in one if v > 0]
    if positive:
        axes.set(yscale="log", ylim=(min(positive) / 1.15, max(positive) * 1.15))
        plain_numbers(axes.yaxis)


def large_numbers(axis: Any) -> None:
    """Numbers with a thousands prefix, few enough to be read.

    Args:
        axis: of an ``Axes``, its scale and limits set.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if high < 30 * low else (1,)))
    axis.set_major_formatter(EngFormatter())
    axis.set_minor_formatter(NullFormatter())

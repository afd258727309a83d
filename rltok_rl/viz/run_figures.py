"""Pictures of runs: metrics over bytes and loss over FLOPs, of one run or of several with their seeds.

A history holds a list per metric: ``bytes``, ``total_flops`` (``flops`` in runs that did not record trials), and any
others. A run is the history of its training, and that of its evaluations on held-out text (``held_out_<metric>``).
Groups are the names of runs that differ in their seed only; other runs form groups of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rltok_rl.viz.axes import (
    MeanLine,
    Points,
    dot_seeds,
    draw_dots,
    draw_line,
    draw_seeds,
    fit,
    label_ends,
    line_widths,
    mean_line,
    plain_numbers,
    seed_groups,
    smooth,
)
from rltok_rl.viz.style import ALERT, INK, OURS, PALE, plain_figures, plain_label, run_style, save_figure

History = Mapping[str, Sequence[float]]
Run = tuple[History, History]
Groups = Mapping[str, Sequence[str]]

_END = 5.0
"""The end of training, drawn large, begins at this fraction of the budget."""
_MARGIN = 0.02
"""Part of the bytes of training left of 0, room for half a dot."""
_DASHED: Any = (0, (4, 3))
# Title, metrics, kind of axis.
_PANELS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("share of the optimum", ("share",), "share"),
    ("bits per byte", ("early_bits_per_byte", "bits_per_byte"), "values"),
    ("return over even spacing, nats per episode", ("relative_return",), "values"),
    ("return, nats per episode", ("episode_return",), "values"),
    ("boundaries per byte", ("rate",), "from 0"),
    ("policy entropy, nats per decision", ("entropy",), "from 0"),
    ("advantage spread, nats", ("advantage_spread",), "log"),
    ("discounted return, nats per decision", ("return",), "values"),
    ("gradient norm, before clipping", ("grad_norm",), "log"),
    ("learning rate", ("lr",), "from 0"),
)
_COMPARED = ("share", "bits_per_byte", "relative_return", "episode_return", "rate", "entropy", "advantage_spread")
_LABELS = {"bits_per_byte": "whole model", "early_bits_per_byte": "early exit"}


def draw_curves(
    history: History, path: Path, *, target_rate: float | None = None, held_out: History | None = None
) -> Path:
    """Draw losses, returns, rate, entropy, advantage spread, gradient norm and learning rate over bytes.

    Evaluations on held-out text are dots with their standard errors; the target rate is a dashed line.
    """
    _check_history(history)
    panels = _known_panels([(history, held_out or {})])
    with plain_figures() as plt:
        figure, grid = _panels(plt, len(panels), 2.1, 0.2)
        for axes, (title, keys, kind) in zip(grid, panels, strict=True):
            held = {key: f"held_out_{key}" for key in keys if f"held_out_{key}" in (held_out or {})}
            for key in (key for key in keys if _known(history, key)):
                colour, noisy = PALE if key == "early_bits_per_byte" else OURS, key != "lr"
                label = _LABELS.get(key, "training") if len(keys) > 1 or keys[-1] in held else None
                draw_line(axes, *_points(history, "bytes", key, 1e6), color=colour, label=label, noisy=noisy)
            points: list[Sequence[float]] = []
            for key, name in held.items():
                colour, label = (PALE, "early exit, held out") if key == "early_bits_per_byte" else (INK, "held out")
                x, y = _points(held_out or {}, "bytes", name, 1e6)
                alone: Any = {} if _known(history, key) else {"ls": "-", "lw": 0.7, "label": None}
                draw_dots(axes, x, y, **{"color": colour, "label": label, **alone})
                if error := (held_out or {}).get(f"{name}_standard_error"):
                    axes.errorbar(x, y, error, fmt="none", ecolor=colour, elinewidth=0.8)
                    points += [np.subtract(y, error).tolist(), np.add(y, error).tolist()]
            if keys == ["rate"] and target_rate is not None:
                axes.axhline(target_rate, color=ALERT, lw=0.9, ls=_DASHED, label="target")
            points += [(held_out or {})[name] for name in held.values()]
            _set_range(axes, kind, [history.get(key, ()) for key in keys], points)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=7)
            axes.set_title(title)
            axes.set_xlim(left=-_MARGIN * axes.get_xlim()[1])  # the dot at 0 bytes is whole
        return save_figure(figure, path)


def draw_loss_flops(history: History, path: Path, *, held_out: History | None = None) -> Path:
    """Draw the losses over the FLOPs spent, on logarithmic axes, with the last values on held-out text at their ends.

    The distance of the two losses is what tokens are worth at that many FLOPs. A power law is a straight line.
    """
    _check_history(history)
    with plain_figures() as plt:
        figure = plt.figure(figsize=(5.9, 3.2))
        axes = figure.add_axes((0.08, 0.16, 0.6, 0.74))
        ends = []
        for key, colour, ink in (("early_bits_per_byte", PALE, PALE), ("bits_per_byte", OURS, INK)):
            if key not in history:
                continue
            line = _points(history, flops_key(history), key)
            draw_line(axes, *line, color=colour, label=f"{_LABELS[key]}, training")
            x, y = _held_out_points(held_out or {}, flops_key(held_out or {}), f"held_out_{key}")
            if x:
                name = "held out" if key == "bits_per_byte" else "early exit, held out"
                draw_dots(axes, x, y, color=ink, ls="-", lw=0.7, label=name)
                ends.append((x[-1], y[-1], f"{name}  {y[-1]:.3f}", ink))
        axes.set(xlabel=_flops_label([history]), xscale="log", yscale="log", title="bits per byte")
        plain_numbers(axes.xaxis, prefixes=True)
        plain_numbers(axes.yaxis)
        axes.legend(fontsize=7)
        label_ends(axes, ends)
        return save_figure(figure, path)


def draw_comparison(
    runs: Mapping[str, Run],
    path: Path,
    *,
    target_rates: Mapping[str, float | None] | None = None,
    groups: Groups | None = None,
) -> Path:
    """Draw share of the optimum, bits per byte, returns, rate and policy over bytes, with a colour per group of runs.

    Lines are training, dots held-out text, dashed lines target rates. A group of several runs has a thin line for each,
    their mean, and a band (bars for dots) of a standard deviation on either side.
    """
    drawn = _with_history(runs, "bytes", "runs must hold one with at least one update, got none")
    panels = [(title, keys[-1], kind) for title, keys, kind in _known_panels(list(drawn.values()))]
    panels = [panel for panel in panels if panel[1] in _COMPARED]
    members = seed_groups(drawn, groups)
    styles, widths = [run_style(number) for number in range(len(members))], line_widths(len(members))
    targets = {name: rate for name, rate in (target_rates or {}).items() if name in drawn and rate is not None}
    legend_columns = min(3, len(members))
    with plain_figures() as plt:
        figure, grid = _panels(plt, len(panels), 2.3, 0.3 + 0.18 * -(-len(members) // legend_columns), least=2)
        for axes, (title, key, kind) in zip(grid, panels, strict=True):
            heights: list[Sequence[float]] = []
            points: list[Sequence[float]] = []
            logarithmic = kind == "log"
            for style, width, (group, names) in zip(styles, widths, members.items(), strict=True):
                line: Any = {"color": style.colour, "ls": style.dashes, "lw": width}
                axes.plot([], [], **line, marker=style.marker, ms=3.5, label=plain_label(group))
                lines = [_points(drawn[name][0], "bytes", key, 1e6) for name in names if _known(drawn[name][0], key)]
                if lines:
                    drawn_heights = draw_seeds(axes, lines, style, width)
                    heights += drawn_heights[: len(lines)] if logarithmic else drawn_heights  # a band may reach zero
                for rate in dict.fromkeys(targets[name] for name in names if key == "rate" and name in targets):
                    colour = PALE if len(set(targets.values())) == 1 else style.colour
                    axes.axhline(rate, color=colour, lw=0.9, ls=_DASHED)
                    heights.append([rate])
                if any(f"held_out_{key}" in drawn[name][1] for name in names):
                    held = [_held_out_points(drawn[name][1], "bytes", f"held_out_{key}", 1e6) for name in names]
                    points.append(dot_seeds(axes, held, style, width, ls="none" if lines else "-"))
            axes.set(title=title, xlim=(0, None))
            positive = [v for values in heights for v in values if v > 0]
            if kind == "share":
                _set_range(axes, kind, heights, points)
            elif not logarithmic:
                fit(axes, heights, points=points, share=0.05 if key == "bits_per_byte" else 0.0)
            elif positive:
                axes.set(yscale="log", ylim=(min(positive) / 1.15, max(positive) * 1.15))
                plain_numbers(axes.yaxis)
        handles = grid[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=legend_columns, fontsize=7.5)
        return save_figure(figure, path)


def draw_loss_against_rate(systems: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw bits per byte over boundaries per byte: a line for a model at several rates, a point for every other one.

    ``systems`` hold ``system``, ``rate``, ``bits_per_byte`` and ``at_rates``, a list of the same for several rates.
    """
    with plain_figures() as plt:
        figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
        for number, system in enumerate(systems):
            style, points = run_style(number), system["at_rates"] or [system]
            x, y = [point["rate"] for point in points], [point["bits_per_byte"] for point in points]
            axes.plot(x, y, color=style.colour, marker=style.marker, ms=5, label=plain_label(system["system"]))
        axes.set(xlabel="boundaries per byte, held-out text", ylabel="bits per byte")
        axes.legend(fontsize=7)
        return save_figure(figure, path)


def draw_loss_against_flops(runs: Mapping[str, Run], path: Path, *, groups: Groups | None = None) -> Path:
    """Draw bits per byte over FLOPs: the whole training, and its end enlarged, where runs differ.

    On the left lines are training and dots held-out text. On the right, from a fifth of the largest budget on, lines
    join evaluations on held-out text, or show training if there are none. Names stand at the ends with the last value:
    for several seeds the mean and the standard deviation.
    """
    drawn = _with_history(runs, None, "runs must hold one with at least one update and its FLOPs, got none")
    members = {group: [drawn[name] for name in names] for group, names in seed_groups(drawn, groups).items()}
    styles, widths = [run_style(number) for number in range(len(members))], line_widths(len(members))
    ends = [_end(group) for group in members.values()]
    budget = max(end.x[-1] for end in ends)
    start = budget / _END if any(len(end.x) > 1 for end in ends) else None
    names = [_end_name(name, end, start) for name, end in zip(members, ends, strict=True)]
    width, height = 7.25 + 0.06 * max(map(len, names)), max(3.1, 0.9 + 0.14 * len(members))
    with plain_figures() as plt:
        figure = plt.figure(figsize=(width, height))
        bottom, panel_height = 0.5 / height, (height - 0.85) / height
        left, right = (figure.add_axes((x / width, bottom, 2.9 / width, panel_height)) for x in (0.42, 3.85))
        shown: list[float] = []
        for style, line_width, group, end in zip(styles, widths, members.values(), ends, strict=True):
            draw_seeds(left, [_points(history, flops_key(history)) for history, _ in group], style, line_width)
            dot_seeds(left, [_held_out_points(held, flops_key(held)) for _, held in group], style, line_width)
            dots: Any = {"marker": style.marker, "ms": 4 * line_width / 1.4} if len(end.x) < 100 else {}
            right.plot(end.x, end.y, color=style.colour, ls=style.dashes, lw=line_width, **dots)
            if len(group) > 1:
                right.errorbar(end.x, end.y, end.spread, fmt="none", ecolor=style.colour, elinewidth=0.8)
            for x, y, spread in zip(end.x, end.y, end.spread, strict=True):
                shown += [y - spread, y + spread] if start is None or x >= start else []
        left.set(xscale="log", yscale="log", title="bits per byte: training, dots are held-out text")
        plain_numbers(left.yaxis)
        on_held_out = all(_held_out_points(held, flops_key(held))[0] for _, held in drawn.values())
        part = "" if start is None else f", from 1/{_END:.0f} of the budget on"
        right.set(xscale="log", title=f"the end{part}{': held-out text' if on_held_out else ''}")
        if start is not None:
            margin = 0.06 * (max(shown) - min(shown) or 0.01)
            right.set(xlim=(start, budget * 1.06), ylim=(min(shown) - margin, max(shown) + margin))
        for axes in (left, right):
            plain_numbers(axes.xaxis, prefixes=True)
            axes.set_xlabel(_flops_label([history for history, _ in drawn.values()]))
        colours = [style.colour for style in styles]
        label_ends(right, [(e.x[-1], e.y[-1], name, c) for e, name, c in zip(ends, names, colours, strict=True)])
        return save_figure(figure, path)


def flops_key(history: History) -> str:
    """Return the metric that counts FLOPs: ``total_flops``, which includes trials, if it was recorded."""
    return "total_flops" if "total_flops" in history else "flops"


def _flops_label(histories: Sequence[History]) -> str:
    recorded = all(flops_key(history) == "total_flops" for history in histories)
    return "total FLOPs, trials included" if recorded else "FLOPs of forward and backward passes"


def _known(history: History, key: str) -> bool:
    """Whether a metric has any value; rules have no entropy, for example."""
    return any(value == value for value in history.get(key, ()))


def _panels(plt: Any, count: int, height: float, below: float, *, least: int = 1) -> tuple[Any, Any]:
    """A figure with panels over megabytes of text."""
    columns = 2 if count == 4 else min(3, count)
    rows = -(-count // columns)
    size = (3.1 * max(least, columns), height * rows + below)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, sharex=True)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    for axes in grid.flat[:count][-columns:]:  # the lowest of each column
        axes.set_xlabel("MB of text")
        axes.tick_params(labelbottom=True)
    return figure, grid.flat[:count]


def _points(history: History, x: str, y: str = "bits_per_byte", scale: float = 1.0) -> Points:
    return [value / scale for value in history[x]], history[y]


def _held_out_points(held: History, x: str, y: str = "held_out_bits_per_byte", scale: float = 1.0) -> Points:
    """Evaluations after the first update; before it nothing is spent, and zero has no logarithm."""
    pairs = [(a / scale, b) for a, b in zip(held.get(x, ()), held.get(y, ()), strict=False) if a > 0]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _end(group: Sequence[Run]) -> MeanLine:
    """The enlarged line of a group: held-out text, else training, smoothed."""
    points = [_held_out_points(held, flops_key(held)) for _, held in group]
    if any(x for x, _ in points):
        return mean_line(points, share=1.0)
    lines = [_points(history, flops_key(history)) for history, _ in group]
    return mean_line([(x, smooth(y, max(1, len(x) // 25))) for x, y in lines])


def _end_name(name: str, end: MeanLine, start: float | None) -> str:
    """A name with the last value; with its place, if that is outside the enlarged part."""
    from matplotlib.ticker import EngFormatter

    spread = f" ± {end.spread[-1]:.3f}" if end.spread[-1] else ""
    place = "" if start is None or end.x[-1] >= start else f" at {EngFormatter(places=0)(end.x[-1])}"
    return f"{name}  {end.y[-1]:.3f}{spread}{place}"


def _known_panels(runs: Sequence[Run]) -> list[tuple[str, list[str], str]]:
    """Panels of metrics that any run has; a return over a reference only where the optimum is unknown."""
    panels: list[tuple[str, list[str], str]] = []
    for title, keys, kind in _PANELS:
        known = [k for k in keys if any(_known(run, k) or _known(held, f"held_out_{k}") for run, held in runs)]
        if known and not (keys == ("relative_return",) and panels[0][2] == "share"):
            panels.append((title, known, kind))
    return panels


def _set_range(axes: Any, kind: str, values: list[Sequence[float]], points: Sequence[Sequence[float]]) -> None:
    if kind == "values":
        fit(axes, values, points=points)
    elif kind == "share":  # far below 0 before anything is learned
        highest = max((v for several in (*values, *points) for v in several if v == v), default=0.0)
        axes.set_ylim(min(-0.05, 2 * highest), max(1.05, highest))
    elif kind == "from 0":
        highest = max((v for several in (*values, *points) for v in several if v == v), default=0.0)
        axes.set_ylim(0, max(1.08 * highest, axes.get_ylim()[1]) if highest > 0 else None)
    elif any(v > 0 for several in values for v in several):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)


def _check_history(history: History) -> None:
    if not history.get("bytes"):
        raise ValueError("history must hold at least one update, got none")


def _with_history(runs: Mapping[str, Run], key: str | None, message: str) -> dict[str, Run]:
    """Runs that have made an update."""
    begun = {name: run for name, run in runs.items() if run[0].get(key or flops_key(run[0]))}
    if not begun:
        raise ValueError(message)
    return begun

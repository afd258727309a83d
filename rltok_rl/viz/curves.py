"""How a training went: figures over bytes, and loss over FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.viz.comparison import large_numbers
from rltok_rl.viz.series import History, held_out_points, known, label_ends, spent, spent_label
from rltok_rl.viz.style import ALERT, INK, OURS, PALE, dots, fit, line, plain_figures, plain_numbers, save_figure

# Title, lines, what was held out, kind of axis.
_PANELS: tuple[tuple[str, tuple[str, ...], str | None, str], ...] = (
    ("bits per byte", ("early_bits_per_byte", "bits_per_byte"), "held_out_bits_per_byte", "loss"),
    ("boundaries per byte", ("rate",), "held_out_rate", "from 0"),
    ("policy entropy, nats per decision", ("entropy",), None, "from 0"),
    ("advantage spread, nats", ("advantage_spread",), None, "log"),
    ("gradient norm, before clipping", ("grad_norm",), None, "log"),
    ("learning rate", ("lr",), None, "from 0"),
)
_LABELS = {"bits_per_byte": "whole model", "early_bits_per_byte": "early exit"}
_COLOURS = {"early_bits_per_byte": PALE}
_EARLY = "held_out_early_bits_per_byte"


def draw_curves(
    history: History, path: Path, *, target_rate: float | None = None, held_out: History | None = None
) -> Path:
    """Draw losses, rate, entropy, advantage spread, gradient norm and learning rate against bytes.

    Args:
        history: one list per figure, all of one length; ``bytes`` is what they are drawn against.
        path: the file to write.
        target_rate: drawn as a line beside the rate.
        held_out: as ``history``, of looks at held-out text; drawn as dots.
    """
    _check(history)
    held_out = held_out or {}
    looks = [x / 1e6 for x in held_out.get("bytes", ())]
    panels = [(title, [k for k in keys if known(history, k)], held, kind) for title, keys, held, kind in _PANELS]
    panels = [panel for panel in panels if panel[1]]
    with plain_figures() as plt:
        columns = 2 if len(panels) == 4 else min(3, len(panels))
        rows = -(-len(panels) // columns)
        size = (3.1 * columns, 2.1 * rows + 0.2)
        figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, sharex=True)
        bytes_done = [x / 1e6 for x in history["bytes"]]
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, (title, keys, held, kind) in zip(grid.flat, panels, strict=False):
            several = len(keys) > 1 or held in held_out
            for key in keys:
                label = _LABELS.get(key, "training") if several else None
                line(axes, bytes_done, history[key], colour=_COLOURS.get(key, OURS), label=label, noisy=key != "lr")
            points = []
            if kind == "loss" and _EARLY in held_out:
                points.append(held_out[_EARLY])
                dots(axes, looks, held_out[_EARLY], colour=PALE, label="early exit, held out")
            if held is not None and held in held_out:
                points.append(held_out[held])
                dots(axes, looks, held_out[held], label="held out")
            if keys == ["rate"] and target_rate is not None:
                axes.axhline(target_rate, color=ALERT, lw=0.9, ls=(0, (4, 3)), label="target")
            _set_range(axes, kind, [history[key] for key in keys], points)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=7)
            axes.set_title(title)
            axes.set_xlim(left=0)
        for axes in grid.flat[: len(panels)][-columns:]:  # the lowest of each column
            axes.set_xlabel("MB of text")
            axes.tick_params(labelbottom=True)
        return save_figure(figure, path)


def draw_loss_flops(history: History, path: Path, *, held_out: History | None = None) -> Path:
    """Draw the losses against the FLOPs spent, both on logarithmic axes, and what they came to at their ends.

    The distance of the two is what tokens are worth at that many FLOPs; on logarithmic axes a power law is a straight
    line.

    Args:
        history: one list per figure; drawn against ``total_flops``, or ``flops`` if trials were not recorded.
        path: the file to write.
        held_out: as ``history``, of looks at held-out text; drawn as dots, joined.
    """
    _check(history)
    size, place = (5.9, 3.2), (0.08, 0.16, 0.6, 0.74)
    with plain_figures() as plt:
        figure = plt.figure(figsize=size)
        axes = figure.add_axes(place)
        ends = []
        for key in ("early_bits_per_byte", "bits_per_byte"):
            if key not in history:
                continue
            colour = _COLOURS.get(key, OURS)
            line(axes, history[spent(history)], history[key], colour=colour, label=f"{_LABELS[key]}, training")
            x, y = held_out_points(held_out or {}, spent(held_out or {}), f"held_out_{key}")
            if x:
                ink, name = (INK, "held out") if key == "bits_per_byte" else (PALE, "early exit, held out")
                axes.plot(x, y, "o-", color=ink, lw=0.7, ms=3, mfc="white", mew=1, label=name, zorder=3)
                ends.append((x[-1], y[-1], f"{name}  {y[-1]:.3f}", ink))
        axes.set(xlabel=spent_label([history]), xscale="log", yscale="log")
        axes.set_title("bits per byte")
        large_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        axes.legend(fontsize=7)
        label_ends(axes, ends)
        return save_figure(figure, path)


def _set_range(axes: Any, kind: str, values: list[Sequence[float]], points: Sequence[Sequence[float]]) -> None:
    if kind == "loss":
        fit(axes, values, points=points)
    elif kind == "from 0":
        highest = max((v for one in (*values, *points) for v in one if v == v), default=0.0)
        axes.set_ylim(0, max(1.08 * highest, axes.get_ylim()[1]) if highest > 0 else None)
    elif any(v > 0 for one in values for v in one):
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)


def _check(history: History) -> None:
    if not history.get("bytes"):
        raise ValueError("history must hold at least one update, got none")

"""Several trainings in one figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltok_rl.viz.look import PALE, dots, fit, line, plain_figures, plain_numbers, save_figure, smooth
from rltok_rl.viz.series import History, held_out_points, known, label_ends, look_of

Runs = Mapping[str, tuple[History, History]]

_LAST = 5.0
"""The last part of the budget that is drawn large: from this fraction of it on."""
_PANELS = (
    ("bits per byte", "bits_per_byte", "held_out_bits_per_byte"),
    ("boundaries per byte", "rate", "held_out_rate"),
    ("policy entropy, nats per decision", "entropy", None),
)


def draw_comparison(runs: Runs, path: Path, *, target_rates: Mapping[str, float | None] | None = None) -> Path:
    """Draw bits per byte, rate and policy entropy against bytes: a colour per run, dots for held-out text.

    Args:
        runs: history of training and of looks at held-out text, by name.
        path: the file to write.
        target_rates: by name; drawn as dashed lines.
    """
    drawn = {name: found for name, found in runs.items() if found[0].get("bytes")}
    if not drawn:
        raise ValueError("runs must hold one with at least one update, got none")
    panels = [one for one in _PANELS if any(known(history, one[1]) for history, _ in drawn.values())]
    looks = [look_of(number) for number in range(len(drawn))]
    targets = {name: rate for name, rate in (target_rates or {}).items() if name in drawn and rate is not None}
    with plain_figures() as plt:
        columns = min(3, len(drawn))
        size = (3.1 * max(2, len(panels)), 2.6 + 0.18 * -(-len(drawn) // columns))
        figure, row = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False, sharex=True)
        for axes, (title, key, held) in zip(row[0], panels, strict=True):
            for look, (name, (history, held_out)) in zip(looks, drawn.items(), strict=True):
                if known(history, key):
                    megabytes = [x / 1e6 for x in history["bytes"]]
                    line(axes, megabytes, history[key], colour=look.colour, dashes=look.dashes)
                axes.plot([], [], color=look.colour, ls=look.dashes, marker=look.marker, ms=3.5, label=name)
                if key == "rate" and (target := targets.get(name)) is not None:
                    one_for_all = len(set(targets.values())) == 1
                    axes.axhline(target, color=PALE if one_for_all else look.colour, lw=0.9, ls=(0, (4, 3)))
                if held is not None:
                    x, y = held_out_points(held_out, "bytes", held, scale=1e6)
                    dots(axes, x, y, colour=look.colour, marker=look.marker)
            axes.set(title=title, xlabel="MB of text")
            axes.set_xlim(left=0)
            if key == "bits_per_byte":
                fit(axes, [history[key] for history, _ in drawn.values() if key in history])
            else:
                axes.set_ylim(bottom=0)
        figure.legend(*row[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=7.5)
        return save_figure(figure, path)


def draw_loss_against_flops(runs: Runs, path: Path) -> Path:
    """Draw bits per byte against FLOPs: the whole training, and beside it the end, large, where runs come apart.

    Lines are training on the left; on the right held-out text joined from look to look, or training where there were
    no looks. Names stand at the ends, with what each came to.

    Args:
        runs: history of training and of looks at held-out text, by name; both with ``flops``.
        path: the file to write.
    """
    drawn = {name: found for name, found in runs.items() if found[0].get("flops")}
    if not drawn:
        raise ValueError("runs must hold one with at least one update and its FLOPs, got none")
    looks = [look_of(number) for number in range(len(drawn))]
    ends = {name: _end(*found) for name, found in drawn.items()}
    margin = 0.35 + 0.06 * max(len(text) for _, _, text in (_named(name, ends[name]) for name in drawn))
    height = max(3.1, 0.9 + 0.14 * len(drawn))
    width = 6.9 + margin
    with plain_figures() as plt:
        figure = plt.figure(figsize=(width, height))
        top, bottom = 0.35, 0.5
        place = (bottom / height, (height - top - bottom) / height)
        whole = figure.add_axes((0.42 / width, place[0], 2.9 / width, place[1]))
        end = figure.add_axes((3.85 / width, place[0], 2.9 / width, place[1]))
        for look, (history, held_out) in zip(looks, drawn.values(), strict=True):
            line(whole, history["flops"], history["bits_per_byte"], colour=look.colour, dashes=look.dashes)
            dots(whole, *held_out_points(held_out, "flops"), colour=look.colour, marker=look.marker)
        whole.set(xscale="log", yscale="log", title="bits per byte: training, dots are held-out text")
        plain_numbers(whole.yaxis)
        several = all(len(ends[name][0]) > 1 for name in drawn)
        start = min(x[-1] for x, _ in ends.values()) / _LAST if several else None
        shown = []
        for look, name in zip(looks, drawn, strict=True):
            x, y = ends[name]
            style: Any = {"marker": look.marker, "ms": 4} if len(x) < 100 else {}
            end.plot(x, y, color=look.colour, ls=look.dashes, lw=1.4, clip_on=True, **style)
            shown += [value for at, value in zip(x, y, strict=True) if start is None or at >= start]
        end.set(xscale="log", title="the end, on held-out text" if _all_held_out(drawn) else "the end")
        if start is not None:
            end.set_xlim(start, max(x[-1] for x, _ in ends.values()) * 1.06)
            spread = max(shown) - min(shown) or 0.01
            end.set_ylim(min(shown) - 0.06 * spread, max(shown) + 0.06 * spread)
        for axes in (whole, end):
            _large_numbers(axes.xaxis)
            axes.set_xlabel("FLOPs of forward and backward passes")
        named = [_named(name, ends[name]) for name in drawn]
        label_ends(end, [(*one, look.colour) for one, look in zip(named, looks, strict=True)])
        return save_figure(figure, path)


def _end(history: History, held_out: History) -> tuple[list[float], list[float]]:
    """What is drawn large of a run: held-out text, else training, smoothed."""
    x, y = held_out_points(held_out, "flops")
    if x:
        return x, y
    return list(history["flops"]), smooth(history["bits_per_byte"], max(1, len(history["flops"]) // 25))


def _named(name: str, end: tuple[list[float], list[float]]) -> tuple[float, float, str]:
    """Where a run ends, and what to write there."""
    return end[0][-1], end[1][-1], f"{name}  {end[1][-1]:.3f}"


def _all_held_out(drawn: Runs) -> bool:
    return all(held_out_points(held_out, "flops")[0] for _, held_out in drawn.values())


def _large_numbers(axis: Any) -> None:
    """Numbers with a thousands prefix, few enough to be read."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if high < 30 * low else (1,)))
    axis.set_major_formatter(EngFormatter())
    axis.set_minor_formatter(NullFormatter())

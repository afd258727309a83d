"""Several trainings in one figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rltok_rl.viz.curves import History
from rltok_rl.viz.look import PALE, SERIES, dots, line, plain_figures, plain_numbers


def draw_comparison(
    runs: Mapping[str, tuple[History, History]], path: Path, *, target_rates: Mapping[str, float | None] | None = None
) -> Path:
    """Draw bits per byte against bytes and against FLOPs, and the rate: a colour per run, dots for held-out text.

    Args:
        runs: history of training and of looks at held-out text, by name.
        path: the PNG to write.
        target_rates: by name; drawn as a line where all runs have one target.
    """
    drawn = {name: found for name, found in runs.items() if found[0].get("bytes")}
    if not drawn:
        raise ValueError("runs must hold one with at least one update, got none")
    if len(drawn) > len(SERIES):
        raise ValueError(f"runs must be at most {len(SERIES)}, so that colours tell them apart, got {len(drawn)}")
    with plain_figures() as plt:
        figure, (by_bytes, by_flops, rate) = plt.subplots(1, 3, figsize=(9.3, 2.9), layout="constrained")
        for colour, (name, (history, held_out)) in zip(SERIES, drawn.items(), strict=False):
            megabytes = [x / 1e6 for x in history["bytes"]]
            line(by_bytes, megabytes, history["bits_per_byte"], colour=colour, label=name)
            if "flops" in history:
                line(by_flops, history["flops"], history["bits_per_byte"], colour=colour)
            line(rate, megabytes, history["rate"], colour=colour)
            looks = [n for n, done in enumerate(held_out.get("bytes", ())) if done > 0]
            for axes, key, scale in ((by_bytes, "bytes", 1e6), (by_flops, "flops", 1.0)):
                if key in held_out:
                    losses = [held_out["held_out_bits_per_byte"][n] for n in looks]
                    dots(axes, [held_out[key][n] / scale for n in looks], losses, colour=colour)
        targets = set((target_rates or {}).values())
        if len(targets) == 1 and None not in targets:
            rate.axhline(targets.pop() or 0.0, color=PALE, lw=0.9, ls=(0, (4, 3)))
        for axes, title, label in (
            (by_bytes, "bits per byte", "MB of text"),
            (by_flops, "bits per byte", "FLOPs"),
            (rate, "boundaries per byte", "MB of text"),
        ):
            axes.set(title=title, xlabel=label)
        for axes in (by_bytes, by_flops):
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        by_flops.set_xscale("log")
        rate.set_ylim(bottom=0)
        figure.legend(*by_bytes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7.5)
        figure.savefig(path)
        plt.close(figure)
    return path


def draw_loss_against_flops(runs: Mapping[str, tuple[History, History]], path: Path) -> Path:
    """Draw bits per byte against the FLOPs spent: a line per run for training, dots for held-out text.

    Args:
        runs: history of training and of looks at held-out text, by name; both with ``flops``.
        path: the PNG to write.
    """
    drawn = {name: found for name, found in runs.items() if found[0].get("flops")}
    if not drawn:
        raise ValueError("runs must hold one with at least one update and its FLOPs, got none")
    shapes = ("-", (0, (4, 2)), (0, (1, 1.2)))
    with plain_figures() as plt:
        figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
        for number, (name, (history, held_out)) in enumerate(drawn.items()):
            colour = SERIES[number % len(SERIES)]
            if held_out.get("flops"):
                spent = [n for n, flops in enumerate(held_out["flops"]) if flops > 0]  # zero has no logarithm
                x, y = ([held_out[key][n] for n in spent] for key in ("flops", "held_out_bits_per_byte"))
                axes.plot(x, y, "o", ms=3, color=colour, ls=shapes[number // len(SERIES) % 3], lw=1.2, label=name)
            line(axes, history["flops"], history["bits_per_byte"], colour=colour)
        axes.set(xlabel="FLOPs of forward and backward passes", xscale="log", yscale="log")
        axes.set_title("bits per byte")
        plain_numbers(axes.yaxis)
        axes.legend(fontsize=7)
        figure.savefig(path)
        plt.close(figure)
    return path

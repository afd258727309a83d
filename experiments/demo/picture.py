"""Picture of the demo, ``demo.png``: learning curves, and texts in the colours of their boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltok_rl.training.progress import clock
from rltok_rl.viz.axes import label_ends
from rltok_rl.viz.style import ALERT, OURS, PALE, plain_figures, save_figure
from rltok_rl.viz.text_figures import cells, draw_key, draw_line, inch_axes

_COLOURS = {"learned": OURS, "uniform": PALE}
_WIDTH, _MARGIN, _CURVES, _TOP = 9.2, 0.45, 2.1, 0.85  # inches; _TOP is above the curves
_COLUMNS, _CELL = 110, 15 / 200  # characters per line of text, and their width: a whole number of pixels
_HEAD, _LINE = 0.42, 0.235  # inches above each text, and per line


def draw_demo(findings: dict[str, Any], path: Path) -> Path:
    """Draw the learning curves of both parts, and a text of each before and after training."""
    recall, english = findings["recall_findings"], findings["english_findings"]
    strips = [
        ("The language before training", recall["before"], 1),
        ("and after: a value is kept if a token ends after #v, to be known again at ?v", recall["after"], 1),
        ("English before training", english["before"], 1),
        ("and after: held-out text", english["after"], 2),
    ]
    height = _TOP + _CURVES + 0.6 + sum(_HEAD + lines * _LINE for *_, lines in strips) + 0.45
    with plain_figures() as plt:
        figure = plt.figure(figsize=(_WIDTH, height), dpi=200)
        page = inch_axes(figure)
        title = f"Where should a token end? Learned from rewards, in {clock(findings['seconds'])} on a CPU"
        page.text(_MARGIN, 0.3, title, fontsize=11.5, weight="bold", va="center")
        for number, draw in enumerate((_draw_shares, _draw_losses)):
            left = _MARGIN + 0.1 + 4.25 * number
            box = (left / _WIDTH, 1 - (_TOP + _CURVES) / height, 3.1 / _WIDTH, _CURVES / height)
            draw(figure.add_axes(box), (recall, english)[number])
        y = _TOP + _CURVES + 0.5
        for label, sample, lines in strips:
            page.text(_MARGIN, y + 0.2, label, fontsize=8.5, va="center")
            y += _HEAD - 0.08
            text = sample["text"].encode("latin-1").replace(b"\n", b" ")
            boundaries = [b == "1" for b in sample["boundaries"]]
            shown = cells(text)
            for line in range(lines):
                part = shown[line * _COLUMNS : (line + 1) * _COLUMNS]
                draw_line(page, part, sample["probabilities"], boundaries, _MARGIN, y, size=_CELL, height=_LINE)
                y += _LINE
            y += 0.08
        draw_key(page, _MARGIN, y + 0.2, "probability that a token ends after the character", bars="a token ended here")
        path.parent.mkdir(parents=True, exist_ok=True)
        return save_figure(figure, path, dpi=200)


def _draw_shares(axes: Any, part: Mapping[str, Any]) -> None:
    axes.axhline(1.0, color=ALERT, lw=0.9, ls=(0, (4, 3)))
    axes.annotate("optimum", (0.01, 1.0), (0, 3), ("axes fraction", "data"), "offset points", fontsize=7, color=ALERT)
    axes.set_ylim(-0.3, 1.15)
    _draw_curves(axes, part, "share", "{:.0%}")
    axes.set_title("A language with a known answer: share of what tokens can earn", fontsize=8.5, pad=10)


def _draw_losses(axes: Any, part: Mapping[str, Any]) -> None:
    curves = [part["curves"][name]["bits_per_byte"] for name in _COLOURS]
    late = [value for curve in curves for value in curve[len(curve) // 5 :]]
    room = 0.12 * max(0.02, max(late) - min(late))
    axes.set_ylim(min(late) - room, max(late) + room)
    _draw_curves(axes, part, "bits_per_byte", "{:.3f}")
    axes.set_title("English: bits per byte on held-out text (lower is better)", fontsize=8.5, pad=10)


def _draw_curves(axes: Any, part: Mapping[str, Any], metric: str, form: str) -> None:
    """Draw a metric of both runs, named at its end with the value of the finished run."""
    ends = []
    for name, colour in _COLOURS.items():
        curve, width = part["curves"][name], 2.2 if name == "learned" else 1.6
        x, y = curve["megabytes"], curve[metric]
        axes.plot(x, y, color=colour, lw=width, zorder=width)
        axes.plot(x[-1:], y[-1:], "o", color=colour, ms=4.5, zorder=4, clip_on=False)
        ends.append((x[-1], y[-1], f"{name} {form.format(part[name][metric])}", colour))
    axes.set_xlim(0, max(x for x, *_ in ends))
    axes.set_xlabel("MB of text read")
    axes.grid(axis="y", color="#eceff2", lw=0.7, zorder=0)
    axes.set_axisbelow(True)
    label_ends(axes, ends)

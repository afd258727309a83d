"""Record of a finished demo: results in words and tables, ``report.md``, and the picture ``demo.png``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltok_rl.experiments.demo.parts import SYSTEMS
from rltok_rl.experiments.reports.markdown import fenced, markdown, with_error, with_unit

from rltok_rl.training.progress import clock
from rltok_rl.viz import boundary_text
from rltok_rl.viz.axes import label_ends
from rltok_rl.viz.style import ALERT, OURS, PALE, plain_figures, save_figure
from rltok_rl.viz.text_figures import cells, draw_key, draw_line, inch_axes

_EDGES = {"last_letter": "the last letter of a word", "space": "the space after a word"}
_EDGES |= {"first_letter": "the first letter of a word", "any": "any of these"}
_RESULTS = {
    "recall": {"known answer: share of what tokens can earn": "share", "known answer: boundaries per byte": "rate"},
    "english": {"English: bits per byte": "bits_per_byte", "English: boundaries per byte": "rate"},
}
"""Labels and metrics of the results, by part."""
_COLOURS = {"learned": OURS, "uniform": PALE}
_WIDTH, _MARGIN, _CURVES, _TOP = 9.2, 0.45, 2.1, 0.85  # inches; _TOP is above the curves
_COLUMNS, _CELL = 110, 15 / 200  # characters per line of text, and their width: a whole number of pixels
_HEAD, _LINE = 0.42, 0.235  # inches above each text, and per line


def learned_something(findings: dict[str, Any]) -> bool:
    """Whether learned boundaries earned more than evenly spaced ones, and more than nothing, on the language.

    Example:
        >>> learned_something({"recall_findings": {"learned": {"share": -1.0}, "uniform": {"share": -2.0}}})
        False
    """
    recall = findings["recall_findings"]
    return recall["learned"]["share"] > max(recall["uniform"]["share"], 0.0)


def english_verdict(english: dict[str, Any]) -> str:
    """Return the verdict on English: the paired difference with its interval, or the reason that there is none."""
    paired = english["paired"]
    rates, flops = paired["rates"], {name: with_unit(value, "FLOPs") for name, value in paired["total_flops"].items()}
    estimator = paired["estimator"].replace("`", "")
    cost = f"with {estimator} and {flops['learned']} in total; evenly spaced ones spent {flops['uniform']}."
    if english["ended"] == "late":
        return f"English: no verdict, since the time was up before both had read the same bytes; trained {cost}"
    if not paired["equal_rates"]:
        differing = f"{rates['learned']:.3f} learned, {rates['uniform']:.3f} evenly spaced"
        return f"English: no verdict, since the rates differ ({differing}); trained {cost}"
    return (
        f"English: {paired['difference']:+.3f} ± {paired['half_width']:.3f} bits per byte for learned boundaries at "
        f"equal rates, their logits shifted by {paired['shift']:+.2f} (95 %, paired over {paired['windows']} held-out "
        f"windows, one seed), {cost}"
    )


def result_rows(part: str, findings: dict[str, Any]) -> list[list[str]]:
    """Return the results of a part: a label, the learned and the evenly spaced run's value."""
    rows = []
    for label, metric in _RESULTS[part].items():
        errors = [findings[name].get("standard_error") if metric == "bits_per_byte" else None for name in SYSTEMS]
        values = [with_error(findings[name][metric], error) for name, error in zip(SYSTEMS, errors, strict=True)]
        rows.append([label, *values])
    return rows


def place_rows(part: str, findings: dict[str, Any]) -> list[list[str]]:
    """Return the places of the learned boundaries in a part: a label, their share, and the share to compare with."""
    if part == "recall":
        places = findings["places"]
        return [["probability after a value, and elsewhere", *(f"{places[key]:.3f}" for key in places)]]
    edges = [(label, findings["edges"][key]) for key, label in _EDGES.items()]
    return [
        [f"share at {label}, and by chance", *(f"{e[key]:.3f}" for key in ("share", "chance"))] for label, e in edges
    ]


def write_record(folder: Path, findings: dict[str, Any], *, machine: str) -> list[Path]:
    """Write ``demo.png`` and ``report.md``; return the files worth opening."""
    picture, report = draw_demo(findings, folder / "demo.png"), folder / "report.md"
    report.write_text(report_page(findings, machine=machine))
    figures = [folder / f"{part}-learned" / "figures" / "boundaries.png" for part in ("recall", "english")]
    return [picture, report, *(path for path in figures if path.exists())]


def report_page(findings: dict[str, Any], *, machine: str) -> str:
    """Return the report in Markdown."""
    recall, english = findings["recall_findings"], findings["english_findings"]
    parts = {"recall": recall, "english": english}
    read = {part: f"{findings[part]['total_bytes']:,} bytes" for part in parts}
    results = [row for part, of_part in parts.items() for row in result_rows(part, of_part)]
    places = [row for part, of_part in parts.items() for row in place_rows(part, of_part)]
    continued = english["continuation"]
    prompt = continued["prompt"].encode("latin-1").decode("utf-8", errors="replace").replace("\n", " ")
    limits = [
        "One seed, and minutes of training: the interval covers the choice of held-out windows, not other seeds.",
        f"In the paired comparison the learned boundary logits are shifted by {english['paired']['shift']:+.2f}, so "
        "that both runs draw equally many boundaries. The rates above are without it.",
        "Both runs of a part read equally many bytes, if its time was enough. On the language the learned one spent "
        "more FLOPs, on trials of its estimator.",
    ]
    late = [part for part, of_part in parts.items() if of_part["ended"] == "late"]
    limits += [
        f"The time was up before the part {part!r} was done: its runs read different numbers of bytes." for part in late
    ]
    runs = [f"{part}-{name}" for part in parts for name in SYSTEMS]
    sections = [
        "# The demo",
        f"{clock(findings['seconds'])} on {machine}. Two parts; in each, two models with the same initial weights read "
        f"the same bytes: {recall['parameters']:,} parameters and {read['recall']} of the language, "
        f"{english['parameters']:,} parameters and {read['english']} of English.",
        "![Share of what tokens can earn, bits per byte, and text with its boundaries](demo.png)",
        "## Results\n\n" + markdown(["on held-out text", "learned", "evenly spaced"], results),
        english_verdict(english),
        "## Learned boundaries\n\n" + markdown(["a boundary", "here", "elsewhere or by chance"], places),
        "## Held-out text\n\nA `|` after each boundary.\n\n"
        + fenced(boundary_text(*_sample(english["after"]), colour=False)),
        "## A continuation\n\n" + fenced(f"{prompt} ... {boundary_text(*_sample(continued), colour=False)}"),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in limits),
        "## Runs\n\n" + "\n".join(f"- [{run}]({run}/report.md)" for run in runs),
    ]
    return "\n\n".join(sections) + "\n"


def _sample(sample: Mapping[str, Any]) -> tuple[bytes, list[bool]]:
    """The text without line breaks, and its boundaries."""
    return sample["text"].encode("latin-1").replace(b"\n", b" "), [b == "1" for b in sample["boundaries"]]


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
            left = _MARGIN + 0.1 + 4.35 * number
            box = (left / _WIDTH, 1 - (_TOP + _CURVES) / height, 3.0 / _WIDTH, _CURVES / height)
            draw(figure.add_axes(box), (recall, english)[number])
        y = _TOP + _CURVES + 0.5
        for label, sample, lines in strips:
            page.text(_MARGIN, y + 0.2, label, fontsize=8.5, va="center")
            y += _HEAD - 0.08
            text, boundaries = _sample(sample)
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
    axes.set_title("A language with a known answer: share of what tokens can earn", fontsize=8.5, pad=10)
    _draw_curves(axes, part, "share", "{:.1%}")


def _draw_losses(axes: Any, part: Mapping[str, Any]) -> None:
    curves = [part["curves"][name]["bits_per_byte"] for name in _COLOURS]
    late = [value for curve in curves for value in curve[len(curve) // 5 :]]
    room = 0.12 * max(0.02, max(late) - min(late))
    axes.set_ylim(min(late) - room, max(late) + room)
    axes.set_title("English: bits per byte on held-out text (lower is better)", fontsize=8.5, pad=10)
    _draw_curves(axes, part, "bits_per_byte", "{:.3f}")


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

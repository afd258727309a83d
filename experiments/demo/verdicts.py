"""Results of a finished demo in words and tables, and its ``report.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltok_rl.experiments.demo.parts import SYSTEMS
from rltok_rl.experiments.demo.picture import draw_demo
from rltok_rl.experiments.reports.markdown import fenced, markdown, with_error, with_unit

from rltok_rl.training.progress import clock
from rltok_rl.viz import boundary_text

_EDGES = {"last_letter": "last letter of a word", "space": "space after a word"}
_EDGES |= {"first_letter": "first letter of a word", "any": "any of these"}
_RESULTS = {
    "recall": {"known answer: share of what tokens can earn": "share", "known answer: boundaries per byte": "rate"},
    "english": {"English: bits per byte": "bits_per_byte", "English: boundaries per byte": "rate"},
}
"""Labels and metrics of the results, by part."""


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
        [f"share at the {label}, and by chance", *(f"{e[key]:.3f}" for key in ("share", "chance"))]
        for label, e in edges
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
        "Both runs read equally many bytes; the learned one spent more FLOPs, on trials of its estimator.",
    ]
    late = [part for part, of_part in parts.items() if of_part["ended"] == "late"]
    limits += [f"The time was up before the part {part!r} was done." for part in late]
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
        "## Held-out text\n\nA `|` after each boundary.\n\n" + fenced(_marked(english["after"])),
        "## A continuation\n\n" + fenced(f"{prompt} ... {_marked(continued)}"),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in limits),
        "## Runs\n\n" + "\n".join(f"- [{run}]({run}/report.md)" for run in runs),
    ]
    return "\n\n".join(sections) + "\n"


def _marked(sample: dict[str, Any]) -> str:
    text = sample["text"].encode("latin-1").replace(b"\n", b" ")
    return boundary_text(text, [b == "1" for b in sample["boundaries"]], colour=False)

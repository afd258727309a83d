"""Report of a finished demo, ``report.md``, and its verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltok_rl.experiments.demo.parts import SYSTEMS
from rltok_rl.experiments.demo.picture import draw_demo
from rltok_rl.experiments.reports.markdown import fenced, markdown, with_error, with_unit

from rltok_rl.training.progress import clock
from rltok_rl.viz import boundary_text

EDGES = {
    "last_letter": "last letter of a word",
    "space": "space after a word",
    "first_letter": "first letter of a word",
    "any": "any of these",
}
"""Word edges, by their keys in the findings."""


def learned_something(findings: dict[str, Any]) -> bool:
    """Whether learned boundaries earned more than evenly spaced ones, and more than nothing, on the language.

    Example:
        >>> learned_something({"recall_findings": {"learned": {"share": 0.9}, "uniform": {"share": 0.4}}})
        True
        >>> learned_something({"recall_findings": {"learned": {"share": -1.0}, "uniform": {"share": -2.0}}})
        False
    """
    recall = findings["recall_findings"]
    return recall["learned"]["share"] > max(recall["uniform"]["share"], 0.0)


def english_verdict(english: dict[str, Any]) -> str:
    """Return the verdict on English: the paired difference with its interval, or the reason that there is none.

    Example:
        >>> paired = {"difference": -0.05, "half_width": 0.01, "windows": 256, "equal_rates": True, "shift": -0.65}
        >>> paired |= {"rates": {"learned": 0.2, "uniform": 0.2}, "estimator": "`discounted_return`, gamma 0.9"}
        >>> paired |= {"total_flops": {"learned": 1.4e12, "uniform": 1e12}}
        >>> print(english_verdict({"paired": paired}))
        English: -0.050 ± 0.010 bits per byte for learned boundaries at equal rates, their logits shifted by -0.65
        (95 %, paired over 256 held-out windows, one seed), with discounted_return, gamma 0.9 and 1.40 TFLOPs in
        total; evenly spaced ones spent 1.00 TFLOPs.
    """
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


def write_record(folder: Path, findings: dict[str, Any], *, machine: str) -> list[Path]:
    """Write ``demo.png`` and ``report.md``; return the files worth opening."""
    picture, report = draw_demo(findings, folder / "demo.png"), folder / "report.md"
    report.write_text(report_page(findings, machine=machine))
    figures = [folder / f"{part}-learned" / "figures" / "boundaries.png" for part in ("recall", "english")]
    return [picture, report, *(path for path in figures if path.exists())]


def report_page(findings: dict[str, Any], *, machine: str) -> str:
    """Return the report in Markdown."""
    recall, english = findings["recall_findings"], findings["english_findings"]
    read = {part: f"{findings[part]['total_bytes']:,} bytes" for part in ("recall", "english")}
    rows = [
        ["known answer: share of what tokens can earn", *(f"{recall[name]['share']:.3f}" for name in SYSTEMS)],
        ["known answer: boundaries per byte", *(f"{recall[name]['rate']:.3f}" for name in SYSTEMS)],
        [
            "English: bits per byte",
            *(with_error(english[name]["bits_per_byte"], english[name].get("standard_error")) for name in SYSTEMS),
        ],
        ["English: boundaries per byte", *(f"{english[name]['rate']:.3f}" for name in SYSTEMS)],
    ]
    edges = [
        [place, f"{english['edges'][key]['share']:.3f}", f"{english['edges'][key]['chance']:.3f}"]
        for key, place in EDGES.items()
    ]
    places, continued = recall["places"], english["continuation"]
    prompt = continued["prompt"].encode("latin-1").decode("utf-8", errors="replace").replace("\n", " ")
    limits = [
        "One seed, and minutes of training: the interval covers the choice of held-out windows, not other seeds.",
        f"In the paired comparison the learned boundary logits are shifted by {english['paired']['shift']:+.2f}, so "
        "that both runs draw equally many boundaries. The rates above are without it.",
        "Both runs read equally many bytes; the learned one spent more FLOPs, on trials of its estimator.",
    ]
    late = [part for part in ("recall", "english") if findings[f"{part}_findings"]["ended"] == "late"]
    limits += [f"The time was up before the part {part!r} was done." for part in late]
    sections = [
        "# The demo",
        f"{clock(findings['seconds'])} on {machine}. Two parts; in each, two models with the same initial weights read "
        f"the same bytes: {recall['parameters']:,} parameters and {read['recall']} of the language, "
        f"{english['parameters']:,} parameters and {read['english']} of English.",
        "![Share of what tokens can earn, bits per byte, and text with its boundaries](demo.png)",
        "## Results\n\n" + markdown(["on held-out text", "learned", "evenly spaced"], rows),
        english_verdict(english),
        f"In the language a boundary right after a value is drawn with probability {places['after_value']:.3f}, "
        f"any other with {places['elsewhere']:.3f}. Reading byte by byte and in one forward pass agree to "
        f"{max(recall['stepping_gap'], english['stepping_gap']):.1e} nats.",
        "## Boundaries in English\n\n" + markdown(["place", "share of boundaries", "by chance"], edges),
        "## Held-out text\n\nA `|` after each boundary.\n\n" + fenced(_marked(english["after"])),
        "## A continuation\n\n" + fenced(f"{prompt} ... {_marked(continued)}"),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in limits),
        "## Runs\n\n"
        + "\n".join(
            f"- [{part}-{name}]({part}-{name}/report.md)" for part in ("recall", "english") for name in SYSTEMS
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _marked(sample: dict[str, Any]) -> str:
    text = sample["text"].encode("latin-1").replace(b"\n", b" ")
    return boundary_text(text, [b == "1" for b in sample["boundaries"]], colour=False)

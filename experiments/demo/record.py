"""What the demo leaves behind: one picture, and a report that leads to the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltok_rl.experiments.demo.ending import in_english
from rltok_rl.experiments.demo.picture import Curve, Panel, Strip, draw_demo
from rltok_rl.experiments.reports.markdown import fenced, markdown

from rltok_rl.training.progress import clock
from rltok_rl.viz import boundary_text

_NAMES = ("learned", "uniform")
_EDGES = {
    "last_letter": "last letter of a word",
    "space": "space after a word",
    "first_letter": "first letter of a word",
}
_EDGES |= {"any": "any of these"}


def leave(folder: Path, found: dict[str, Any], *, machine: str) -> list[Path]:
    """Write ``demo.png`` and ``report.md``; return what is worth looking at.

    Args:
        folder: of the demo.
        found: all findings.
        machine: in words.
    """
    picture = draw(found, folder / "demo.png")
    report = folder / "report.md"
    runs = [folder / f"{part}-{name}" for part in ("recall", "english") for name in _NAMES]
    report.write_text(page(found, [run.name for run in runs], machine=machine))
    figures = [run / "figures" / "boundaries.png" for run in runs if run.name.endswith("learned")]
    return [picture, report, *(path for path in figures if path.exists())]


def draw(found: dict[str, Any], path: Path) -> Path:
    """The picture of both parts.

    Args:
        found: all findings.
        path: the PNG to write.
    """
    recall, english = found["recall_findings"], found["english_findings"]
    shares = [_curve(recall, name, "share", "{:.0%}") for name in _NAMES]
    losses = [_curve(english, name, "bits_per_byte", "{:.3f}") for name in _NAMES]
    late = [value for curve in losses for value in curve.values[len(curve.values) // 5 :]]
    room = max(0.02, max(late) - min(late))
    panels = [
        Panel(
            "A language with a known answer: share of what tokens can earn",
            shares,
            goal=(1.0, "the best there is"),
            bottom=-0.3,
            top=1.15,
        ),
        Panel(
            "English: bits per byte on held-out text (lower is better)",
            losses,
            bottom=min(late) - 0.12 * room,
            top=max(late) + 0.12 * room,
        ),
    ]
    strips = [
        _strip("The language before training", recall["before"], 1),
        _strip("and after: a value is kept where a token ends after #v, to be known again at ?v", recall["after"], 1),
        _strip("English before training", english["before"], 1),
        _strip("and after: held-out text", english["after"], 2),
    ]
    title = f"Where should a token end? Learned from rewards, in {clock(found['seconds'])} on a CPU"
    return draw_demo(panels, strips, path, title=title)


def page(found: dict[str, Any], runs: list[str], *, machine: str) -> str:
    """The report, in Markdown.

    Args:
        found: all findings.
        runs: folders of the trainings.
        machine: in words.
    """
    recall, english = found["recall_findings"], found["english_findings"]
    rows = [
        ["known answer: share of what tokens can earn", *(f"{recall[n]['share']:.3f}" for n in _NAMES)],
        ["known answer: boundaries per byte", *(f"{recall[n]['rate']:.3f}" for n in _NAMES)],
        ["English: bits per byte", *(_with_error(english[n]) for n in _NAMES)],
        ["English: boundaries per byte", *(f"{english[n]['rate']:.3f}" for n in _NAMES)],
    ]
    edges = [
        [where, f"{english['edges'][key]['share']:.3f}", f"{english['edges'][key]['chance']:.3f}"]
        for key, where in _EDGES.items()
    ]
    places, sizes = recall["places"], {name: found[name] for name in ("recall", "english")}
    written = english["continuation"]
    parts = [
        "# The demo",
        f"{clock(found['seconds'])} on {machine}. Two parts; in each, two models from the same weights read the same "
        f"bytes: {recall['parameters']:,} parameters and {sizes['recall']['total_bytes']:,} bytes of the language, "
        f"{english['parameters']:,} parameters and {sizes['english']['total_bytes']:,} bytes of English.",
        "![Share of what tokens can earn, bits per byte, and text with its boundaries](demo.png)",
        "## Found\n\n" + markdown(["on held-out text", "learned", "evenly spaced"], rows),
        in_english(english),
        f"In the language a boundary right after a value is drawn with probability {places['after_value']:.3f}, "
        f"any other with {places['elsewhere']:.3f}. Reading byte by byte and in one forward pass agree to "
        f"{max(recall['stepping_gap'], english['stepping_gap']):.1e} nats.",
        "## Where boundaries lie in English\n\n" + markdown(["place", "share of boundaries", "by chance"], edges),
        "## Held-out text\n\nA `|` after each boundary.\n\n" + fenced(_marked(english["after"])),
        "## A continuation\n\n" + fenced(f"{_plain(written['prompt'])} ... {_marked(written)}"),
        "## What this does not say\n\n"
        "- One seed, and minutes of training: the interval covers the choice of held-out windows, not other seeds.\n"
        f"- In the paired comparison the learned boundary logits are shifted by {english['paired']['shift']:+.2f}, so "
        "that both runs draw equally many boundaries. The rates above are without it.\n"
        "- Both runs read equally many bytes; the learned one spent more FLOPs, on trials of its estimator.\n"
        + "".join(f"- The time was up before the part {name!r} was done.\n" for name in sizes if _late(found, name)),
        "## The trainings\n\n" + "\n".join(f"- [{run}]({run}/report.md)" for run in runs),
    ]
    return "\n\n".join(parts) + "\n"


def _late(found: dict[str, Any], name: str) -> bool:
    return bool(found[f"{name}_findings"]["ended"] == "late")


def _with_error(figures: dict[str, float]) -> str:
    error = figures.get("standard_error")
    return f"{figures['bits_per_byte']:.3f}" + (f" ± {error:.3f}" if error is not None else "")


def _curve(part: dict[str, Any], name: str, key: str, form: str) -> Curve:
    looks = part["curves"][name]
    return Curve(name, looks["megabytes"], looks[key], form.format(part[name][key]))


def _strip(title: str, line: dict[str, Any], lines: int) -> Strip:
    text, boundaries = _parts(line)
    return Strip(title, text, boundaries, line["probabilities"], lines)


def _parts(line: dict[str, Any]) -> tuple[bytes, list[bool]]:
    return line["text"].encode("latin-1").replace(b"\n", b" "), [b == "1" for b in line["boundaries"]]


def _marked(line: dict[str, Any]) -> str:
    return boundary_text(*_parts(line), colour=False)


def _plain(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", errors="replace").replace("\n", " ")

"""The last page of the demo: what came of it, where it lies, what to do next; or how to go on with a stopped one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.demo.screen import Screen
from rltok_rl.experiments.reports.markdown import with_unit

from rltok_rl.training.progress import clock


def stopped(screen: Screen, folder: Path, seconds: float) -> None:
    """What to do after Ctrl-C.

    Args:
        screen: to write on.
        folder: of the demo.
        seconds: since the start.
    """
    screen.say()
    screen.say(screen.paint(f"Stopped after {clock(seconds)}; everything so far is in {folder}.", "bold"))
    screen.say("The same command goes on from here.")


def in_english(english: dict[str, Any]) -> str:
    """Return the verdict on English: the paired difference with its interval, or why there is none.

    Args:
        english: findings of the part, with ``paired``.

    Example:
        >>> paired = {"difference": -0.05, "half_width": 0.01, "windows": 256, "equal_rates": True, "shift": -0.65}
        >>> paired |= {"rates": {"learned": 0.2, "uniform": 0.2}, "estimator": "`discounted_return`, gamma 0.9"}
        >>> paired |= {"total_flops": {"learned": 1.4e12, "uniform": 1e12}}
        >>> print(in_english({"paired": paired}))
        English: -0.050 ± 0.010 bits per byte for learned boundaries at equal rates, their logits shifted by -0.65
        (95 %, paired over 256 held-out windows, one seed), with discounted_return, gamma 0.9 and 1.40 TFLOPs in
        total; evenly spaced ones spent 1.00 TFLOPs.
    """
    paired = english["paired"]
    rates, flops = paired["rates"], paired["total_flops"]
    estimator = paired["estimator"].replace("`", "")
    spent = (
        f"with {estimator} and {with_unit(flops['learned'], 'FLOPs')} in total; evenly spaced ones spent "
        f"{with_unit(flops['uniform'], 'FLOPs')}."
    )
    if not paired["equal_rates"]:
        differing = f"{rates['learned']:.3f} learned, {rates['uniform']:.3f} evenly spaced"
        return f"English: no verdict, since the rates differ ({differing}); trained {spent}"
    apart = (
        f"{paired['difference']:+.3f} ± {paired['half_width']:.3f} bits per byte for learned boundaries at equal "
        f"rates, their logits shifted by {paired['shift']:+.2f}"
    )
    return f"English: {apart} (95 %, paired over {paired['windows']} held-out windows, one seed), {spent}"


def _rltok() -> str:
    """The command as it can be typed here: on the path, beside this interpreter, or as a module."""
    if shutil.which("rltok"):
        return "rltok"
    beside = Path(sys.executable).with_name("rltok")
    if beside.is_file() and beside.is_relative_to(Path.cwd()):
        return str(beside.relative_to(Path.cwd()))
    return "python -m rltok_rl.experiments.cli"


def learned_something(found: dict[str, Any]) -> bool:
    """Whether learned boundaries earned more than evenly spaced ones, and anything at all, where that can be said.

    Args:
        found: all findings.

    Example:
        >>> learned_something({"recall_findings": {"learned": {"share": 0.9}, "uniform": {"share": 0.4}}})
        True
        >>> learned_something({"recall_findings": {"learned": {"share": -1.0}, "uniform": {"share": -2.0}}})
        False
    """
    recall = found["recall_findings"]
    return recall["learned"]["share"] > max(recall["uniform"]["share"], 0.0)


def summary(screen: Screen, folder: Path, found: dict[str, Any], paths: Sequence[Path]) -> int:
    """The summary, where things are, and what to do next; returns the exit status.

    Args:
        screen: to write on.
        folder: of the demo.
        found: all findings.
        paths: that were written.
    """
    recall, english = found["recall_findings"], found["english_findings"]
    screen.heading(f"Done in {clock(found['seconds'])}")
    rows = [
        ("", "learned", "evenly spaced"),
        ("known answer: share of what tokens can earn", *(f"{recall[n]['share']:.3f}" for n in ("learned", "uniform"))),
        ("English as trained: bits per byte", *(f"{english[n]['bits_per_byte']:.3f}" for n in ("learned", "uniform"))),
        ("English as trained: tokens per byte", *(f"{english[n]['rate']:.3f}" for n in ("learned", "uniform"))),
    ]
    for label, one, two in rows:
        screen.say(f"  {label:<46}{screen.paint(f'{one:>10}', 'learned')}{two:>16}")
    learned = learned_something(found)
    screen.say()
    if learned:
        ours, evenly = (max(0.0, recall[name]["share"]) for name in ("learned", "uniform"))
        screen.tell(
            f"It learned: where rewards alone have placed the boundaries, tokens earn {ours:.0%} of what there is to "
            f"earn; evenly spaced ones earn {evenly:.0%}.",
            indent="  ",
        )
        screen.tell(in_english(english), indent="  ")
    else:
        screen.say(screen.paint("  It did not learn: its boundaries earned no more than evenly spaced ones.", "bad"))
        screen.tell("More time may do it, --seconds says how much. (--quick is too short for it, always.)", indent="  ")
    screen.say(f"\n{screen.paint('Look at', 'bold')}")
    notes = {"demo.png": "curves, and texts with their boundaries", "report.md": "the results, and a continuation"}
    for path in paths:
        screen.say(f"  {path}")
        if path.name in notes:
            screen.say(f"      {screen.paint(notes[path.name], 'quiet')}")
    screen.say(f"\n{screen.paint('Go on', 'bold')}")
    run = folder / "english-learned"
    rltok = _rltok()
    for command, what in (
        (f"{rltok} eval {run}", "bits per byte, and where boundaries lie"),
        (f"{rltok} generate 'The ' --model {run}", "write with it"),
        (f"{rltok} train experiment=lexicon", "words without spaces between them"),
        (f"{rltok} train experiment=recall estimator=discounted_return", "the same with another estimator"),
    ):
        screen.say(f"  {command}")
        screen.say(f"      {screen.paint(what, 'quiet')}")
    return 0 if learned else 1

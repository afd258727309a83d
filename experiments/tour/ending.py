"""The last page of the demo: what came of it, where it lies, what to do next; or how to go on with a stopped one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.tour.screen import Screen

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


def _in_english(english: dict[str, Any]) -> str:
    """The difference in bits per byte, whichever way it went.

    Example:
        >>> _in_english({"learned": {"bits_per_byte": 1.9}, "uniform": {"bits_per_byte": 2.0}})
        'In English learned boundaries save 0.100 bits per byte.'
    """
    saved = english["uniform"]["bits_per_byte"] - english["learned"]["bits_per_byte"]
    return f"In English learned boundaries {'save' if saved > 0 else 'cost'} {abs(saved):.3f} bits per byte."


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
        ("English: bits per byte", *(f"{english[n]['bits_per_byte']:.3f}" for n in ("learned", "uniform"))),
        ("English: tokens per byte", *(f"{english[n]['rate']:.3f}" for n in ("learned", "uniform"))),
    ]
    for label, one, two in rows:
        screen.say(f"  {label:<46}{screen.paint(f'{one:>10}', 'learned')}{two:>16}")
    learned = learned_something(found)
    screen.say()
    if learned:
        ours, evenly = (max(0.0, recall[name]["share"]) for name in ("learned", "uniform"))
        screen.tell(
            f"It learned: where rewards alone have placed the boundaries, tokens earn {ours:.0%} of what there is to "
            f"earn; evenly spaced ones earn {evenly:.0%}. {_in_english(english)}",
            indent="  ",
        )
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
        (f"{rltok} train experiment=recall estimator=return", "the same with another estimator"),
    ):
        screen.say(f"  {command}")
        screen.say(f"      {screen.paint(what, 'quiet')}")
    return 0 if learned else 1

"""Terminal output of the demo."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.theme import Theme
from rltok_rl.experiments.commands.arguments import use_colour
from rltok_rl.experiments.demo.parts import RunState
from rltok_rl.experiments.demo.verdicts import english_verdict, learned_something, place_rows, result_rows

from rltok_rl.training.progress import clock

_STYLES = {"learned": "dark_cyan", "good": "bold dark_cyan", "bad": "bold indian_red", "quiet": "grey54"}
_LINE_EVERY = 15.0  # seconds between lines without a terminal
_START = """\
A byte-level language model groups bytes into tokens, and thinks in tokens. Other models fix the groups before \
training. Here a policy decides after each byte whether a token ends, and is rewarded if it helps:

  bytes --> [good]does a token end here?[/] --> tokens --> the next bytes
  [quiet]reward: how much better the next bytes are predicted with tokens than without[/]

Four small models now train from scratch on this machine, two at a time. The models of a pair have the same initial \
weights and read the same bytes; one learns its boundaries, the other spaces them evenly. The first pair reads an \
artificial language with a known answer, the second English. Ctrl-C saves, and the same command resumes.
"""
_PARTS = {
    "recall": (
        "1 of 2  A language with a known answer",
        "  [bold]#3dbaccadb?3#0bdabcbdca?0#7...[/]\n"
        "After # comes a value, then random letters, then ? and the value again. By then the value is out of sight of "
        "the layers that read bytes: only a token that ended right after it can carry it. The policy has to find that "
        "out from rewards. 0 is what a model without tokens can reach, 1 is all that tokens can earn.",
    ),
    "english": (
        "2 of 2  English",
        "The Python language reference, which every Python brings along. There is no known answer here. Fewer bits per "
        "byte are better, and the policy has to keep to a budget of tokens.",
    ),
}


def make_console() -> Console:
    """Make a console on standard output, at most 100 columns wide."""
    terminal = sys.stdout.isatty()
    console = Console(force_terminal=terminal or use_colour("auto"), theme=Theme(_STYLES), highlight=False, emoji=False)
    console.width = min(console.width if terminal else 100, 100)
    return console


def show_start(console: Console, folder: Path, *, seconds: float, machine: str, resumed: bool) -> None:
    """Explain what the demo does, and how long it takes."""
    _heading(console, "rltok_rl: where should a token end? Learned, from rewards")
    console.print(_START)
    shown = f"{folder}{', resuming the demo that was stopped' if resumed else ''}"
    for name, value in (("machine", machine), ("time", f"about {clock(seconds)} in all"), ("folder", shown)):
        console.print(f"  {name:<8} {escape(value)}", soft_wrap=True)


def show_part(console: Console, part: str, plan: dict[str, Any]) -> None:
    """Introduce a part."""
    title, text = _PARTS[part]
    _heading(console, title)
    console.print(text)
    size = f"{plan['updates']} updates, {plan['total_bytes'] / 1e6:.2f} MB for each model"
    speed = f"{plan['bytes_per_second'] / 1e3:.0f} kB/s measured"
    console.print(f"  [quiet]{size} ({speed}): about {clock(plan['seconds'])}[/]\n")


class PartProgress(Bars):
    """Progress bars of both runs of a part; without a terminal, a line every 15 seconds."""

    def __init__(self, console: Console, part: str, total: int) -> None:
        label = TextColumn("  [{task.description}]{task.description:<8}[/]")
        note = TextColumn("{task.fields[note]}")
        super().__init__(label, BarColumn(30), TaskProgressColumn(), note, TimeRemainingColumn(), console=console)
        self.total, self.metric = total, "share" if part == "recall" else "bits_per_byte"
        self.runs = {name: self.add_task(name, total=total, note="") for name in ("learned", "uniform")}
        self.next_line = time.monotonic() + _LINE_EVERY

    def show(self, states: Sequence[RunState]) -> None:
        """Show the progress of both runs."""
        for state in states:
            values = [snapshot[f"held_out_{self.metric}"] for snapshot in state.snapshots[1:]]  # [0] is untrained
            note = f"{values[-1]:.3f} {'of 1' if self.metric == 'share' else 'bits/byte'}" if values else ""
            self.update(self.runs[state.name], completed=min(state.bytes_done, self.total), note=note)
        if not self.console.is_terminal and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + _LINE_EVERY
            runs = [f"{task.description} {task.percentage:.0f}% {task.fields['note']}".rstrip() for task in self.tasks]
            left = max((task.time_remaining or 0.0 for task in self.tasks), default=0.0)
            self.console.print(f"  {', '.join(runs)}; {clock(left)} left" if left else f"  {', '.join(runs)}")


def show_findings(console: Console, part: str, findings: dict[str, Any]) -> None:
    """Show the results of a part."""
    if findings["ended"] == "late":
        console.print("\nThe time was up before all bytes were read; these are the results so far.")
    _show_table(console, result_rows(part, findings), "learned", "evenly spaced")
    _show_table(console, place_rows(part, findings), "here", "else")


def _show_table(console: Console, rows: Sequence[Sequence[str]], *titles: str) -> None:
    table = Table(Column("  "), *(Column(title, justify="right") for title in titles), box=None)
    for label, first, second in rows:
        table.add_row(f"  {label}", f"[learned]{first}[/]", second)
    console.print("", table)


def show_stop(console: Console, folder: Path, seconds: float) -> None:
    """Explain how to resume after Ctrl-C."""
    text = f"Stopped after {clock(seconds)}; everything so far is in {escape(str(folder))}."
    console.print(f"\n[bold]{text}[/]\nThe same command resumes.", soft_wrap=True)


def show_end(console: Console, folder: Path, findings: dict[str, Any], paths: Sequence[Path]) -> None:
    """Show the results of both parts, the verdict, the files, and further commands."""
    recall, english = findings["recall_findings"], findings["english_findings"]
    _heading(console, f"Done in {clock(findings['seconds'])}")
    results = [row for part in ("recall", "english") for row in result_rows(part, findings[f"{part}_findings"])]
    _show_table(console, results, "learned", "evenly spaced")
    verdict = (
        "[bad]It did not learn: its boundaries earned no more than evenly spaced ones.[/]\n"
        "Try more time, with --seconds. (--quick is always too short.)"
    )
    if learned_something(findings):
        ours, evenly = (max(0.0, recall[name]["share"]) for name in ("learned", "uniform"))
        verdict = (
            f"It learned: with boundaries placed by rewards alone, tokens earn {ours:.1%} of what there is to earn; "
            f"with evenly spaced ones {evenly:.1%}.\n{escape(english_verdict(english))}"
        )
    console.print(Padding(verdict, (1, 2)))
    console.print("[bold]Look at[/]")
    notes = {"demo.png": "curves, and texts with their boundaries", "report.md": "the results, and a continuation"}
    for path in paths:
        _entry(console, str(path), notes.get(path.name))
    console.print("\n[bold]Next[/]")
    run = folder / "english-learned"
    rltok = "rltok" if shutil.which("rltok") else "python -m rltok_rl.experiments.cli"
    _entry(console, f"{rltok} eval {run}", "bits per byte, and where boundaries lie")
    _entry(console, f"{rltok} generate 'The ' --model {run}", "write with it")
    _entry(console, f"{rltok} train experiment=lexicon", "words without spaces between them")
    _entry(console, f"{rltok} train experiment=recall estimator=discounted_return", "the same with another estimator")


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]")
    console.rule(style="quiet")


def _entry(console: Console, text: str, note: str | None) -> None:
    """Print a path or command on a single line, and a note below."""
    console.print(f"  {escape(text)}", soft_wrap=True)
    if note:
        console.print(f"      [quiet]{note}[/]")

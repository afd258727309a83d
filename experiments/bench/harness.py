"""Timing two functions in turn, and a table of the ratios.

The two run A B A B ... in one process, so that a machine that slows down slows both. A ratio is taken per pair; the
median is what to quote, the quartiles say how steady it was.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rltok_rl.experiments.reports.markdown import without_nan

from rltok_rl.training.record import machine


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison."""

    section: str
    name: str
    ours_ms: float
    """NaN where something else than time is compared."""
    reference_ms: float
    ratio: float
    """Reference time over our time: how many times faster we are."""
    low: float
    """First quartile of the ratio over pairs."""
    high: float
    """Third quartile."""
    goal: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the goal; None where there is none."""
        return None if self.goal is None else self.ratio >= self.goal


def compare(
    section: str,
    name: str,
    ours: Callable[[], object],
    reference: Callable[[], object],
    *,
    pairs: int = 7,
    repeat: int = 1,
    goal: float | None = None,
    note: str = "",
) -> Row:
    """Time ``ours`` against ``reference``, in turn, after one warm-up of each.

    Args:
        section: where the row belongs.
        name: what is compared.
        ours: the fast path.
        reference: what it replaces; must do the same work.
        pairs: how many pairs to take.
        repeat: calls of ``ours`` per measurement, for calls too short for the clock.
        goal: the ratio to reach.
        note: anything that a reader of the row should know.
    """
    return compare_seconds(
        section,
        name,
        lambda: seconds(ours, repeat),
        lambda: seconds(reference),
        pairs=pairs,
        goal=goal,
        note=note,
    )


def compare_seconds(
    section: str,
    name: str,
    ours: Callable[[], float],
    reference: Callable[[], float],
    *,
    pairs: int,
    goal: float | None = None,
    note: str = "",
) -> Row:
    """As :func:`compare`, for functions that say themselves how many seconds their work takes."""
    ours(), reference()  # caches, compilers and memory pools warm up
    times = [(ours(), reference()) for _ in range(pairs)]
    return row_of_pairs(section, name, times, goal=goal, note=note)


def row_of_pairs(
    section: str, name: str, pairs: Sequence[tuple[float, float]], *, goal: float | None = None, note: str = ""
) -> Row:
    """The row of pairs that have been measured, said on standard error at once.

    Args:
        section: where the row belongs.
        name: what is compared.
        pairs: seconds of ours and of the reference, or another measure of both.
        goal: the ratio to reach.
        note: anything that a reader of the row should know.
    """
    low, median, high = quartiles([theirs / mine for mine, theirs in pairs])
    row = Row(
        section=section,
        name=name,
        ours_ms=1e3 * statistics.median(mine for mine, _ in pairs),
        reference_ms=1e3 * statistics.median(theirs for _, theirs in pairs),
        ratio=median,
        low=low,
        high=high,
        goal=goal,
        note=note,
    )
    print(f"  {section}: {name}: {ratio_text(row)}", file=sys.stderr, flush=True)
    return row


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def seconds(function: Callable[[], object], repeat: int = 1) -> float:
    """Seconds of a call, of the device's work too: the mean of ``repeat`` calls."""
    _synchronise()
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    _synchronise()
    return (time.perf_counter() - start) / repeat


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def ratio_text(row: Row) -> str:
    """``123x [110, 130]``, and the goal where there is one."""
    digits = 1 if row.ratio < 100 else 0
    text = f"{row.ratio:.{digits}f}x [{row.low:.{digits}f}, {row.high:.{digits}f}]"
    if row.goal is not None:
        text += f" (goal {row.goal:g}x: {'met' if row.met else 'MISSED'})"
    return text


def table(rows: Sequence[Row]) -> str:
    """A Markdown table, aligned so that it reads in a terminal as well."""
    header = ("section", "comparison", "ours, ms", "reference, ms", "ratio [quartiles]", "note")
    body = [(r.section, r.name, _told(r.ours_ms), _told(r.reference_ms), ratio_text(r), r.note) for r in rows]
    widths = [max(len(line[i]) for line in (header, *body)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, body)])


def _told(milliseconds: float) -> str:
    return "-" if math.isnan(milliseconds) else f"{milliseconds:.3g}"


def write(rows: Sequence[Row], folder: Path, *, command: str, device: str) -> None:
    """Write the table as Markdown and JSON, with the command and the machine that made it."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"`{command}`\n\n{machine(device)}\n\n"
    (folder / "bench.md").write_text(about + table(rows) + "\n")
    content = {"command": command, "machine": machine(device), "rows": [without_nan(asdict(row)) for row in rows]}
    (folder / "bench.json").write_text(json.dumps(content, indent=1) + "\n")

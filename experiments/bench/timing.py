"""Paired timing of two functions, and the table of ratios.

The two run A B A B ... in one process, so that a slower machine slows both. Each pair gives a ratio. The median is the
result; the quartiles show how steady it is.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.reports.markdown import markdown, without_nan

from rltok_rl.training.environment import machine

Pairs = Sequence[tuple[float, float]]
"""Seconds, or another cost, of ours and of the reference."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison."""

    section: str
    name: str
    ours_ms: float
    """NaN if the cost is not a time."""
    reference_ms: float
    ratio: float
    """Cost of the reference divided by ours: the speed-up."""
    low: float
    """First quartile of the ratio over pairs."""
    high: float
    """Third quartile."""
    goal: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the goal; None without a goal."""
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
    """Time two functions in turn, after one warm-up of each.

    Args:
        section: part of the table.
        name: shown in the row.
        ours: the fast path.
        reference: does the same work.
        pairs: number of measurements of each.
        repeat: calls of ``ours`` per measurement, for calls that are too short for the clock.
        goal: ratio to reach.
        note: shown in the row.
    """
    timed = (lambda: seconds(ours, repeat)), (lambda: seconds(reference))
    return compare_seconds(section, name, *timed, pairs=pairs, goal=goal, note=note)


def compare_seconds(
    section: str, name: str, ours: Callable[[], float], reference: Callable[[], float], *, pairs: int, **options: Any
) -> Row:
    """As :func:`compare`, for functions that return the seconds of their work."""
    ours(), reference()  # caches, compilers and memory pools warm up
    return row_of_pairs(section, name, [(ours(), reference()) for _ in range(pairs)], **options)


def row_of_pairs(
    section: str, name: str, pairs: Pairs, *, goal: float | None = None, note: str = "", timed: bool = True
) -> Row:
    """Make the row of measured pairs, and print it to standard error.

    Args:
        section: part of the table.
        name: shown in the row.
        pairs: measured costs.
        goal: ratio to reach.
        note: shown in the row.
        timed: whether the costs are seconds.
    """
    low, median, high = quartiles([theirs / mine for mine, theirs in pairs])
    ours, reference = (1e3 * statistics.median(side) if timed else math.nan for side in zip(*pairs, strict=True))
    options: dict[str, Any] = {"ratio": median, "low": low, "high": high, "goal": goal, "note": note}
    row = Row(section=section, name=name, ours_ms=ours, reference_ms=reference, **options)
    print(f"  {section}: {name}: {ratio_text(row)}", file=sys.stderr, flush=True)
    return row


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def seconds(function: Callable[[], object], repeat: int = 1) -> float:
    """Seconds per call, mean of ``repeat`` calls, with the work that they queue on a GPU."""
    _synchronise()
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    _synchronise()
    return (time.perf_counter() - start) / repeat


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def in_new_process(call: str, environment: Mapping[str, str] | None = None) -> Any:
    """Call a function in a new process and return the JSON that it prints last.

    Args:
        call: ``module.function(arguments)``, of a module of this package.
        environment: variables of the process; None inherits them.
    """
    code = f"from rltok_rl.experiments.bench import {call.partition('.')[0]}; {call}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if process.returncode != 0:
        raise RuntimeError(f"{call} ended with {process.returncode} (-9: out of memory): {process.stderr[-500:]}")
    return json.loads(process.stdout.splitlines()[-1])


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def peak_above(before: int) -> int:
    """Bytes by which the peak memory of this process exceeds an earlier :func:`resident`."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def ratio_text(row: Row) -> str:
    """``123x [110, 130]``, with the goal if there is one."""
    digits = 1 if row.ratio < 100 else 0
    text = f"{row.ratio:.{digits}f}x [{row.low:.{digits}f}, {row.high:.{digits}f}]"
    return text if row.goal is None else f"{text} (goal {row.goal:g}x: {'met' if row.met else 'MISSED'})"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    header = ["section", "comparison", "ours, ms", "reference, ms", "ratio [quartiles]", "note"]
    times = [["-" if math.isnan(ms) else f"{ms:.3g}" for ms in (row.ours_ms, row.reference_ms)] for row in rows]
    body = [[row.section, row.name, *ms, ratio_text(row), row.note] for row, ms in zip(rows, times, strict=True)]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]  # aligned, for a terminal
    header, *body = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (header, *body))
    return markdown(header, body)


def write(rows: Sequence[Row], folder: Path, *, command: str, device: str) -> None:
    """Write ``bench.md`` and ``bench.json`` with the command and the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.md").write_text(f"`{command}`\n\n{machine(device)}\n\n{table(rows)}\n")
    content = {"command": command, "machine": machine(device), "rows": [without_nan(asdict(row)) for row in rows]}
    (folder / "bench.json").write_text(json.dumps(content, indent=1) + "\n")

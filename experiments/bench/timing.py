"""Paired timing of two functions, the table of ratios, and the training that is timed.

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

import numpy as np
import torch
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.reports.markdown import markdown, without_nan

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.distributed import Processes
from rltok_rl.training.environment import machine

Pairs = Sequence[tuple[float, float]]
"""Seconds, or another cost, of ours and of the reference."""


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One comparison."""

    section: str
    name: str
    ours_ms: float  # NaN if the cost is not a time
    reference_ms: float
    ratio: float  # cost of the reference divided by ours: the speed-up, a median over pairs
    low: float  # its first and third quartile
    high: float
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
    **options: Any,
) -> BenchRow:
    """Time two functions in turn, after one warm-up of each; ``repeat`` calls of ``ours`` per measurement."""
    timed = (lambda: seconds(ours, repeat)), (lambda: seconds(reference))
    return compare_seconds(section, name, *timed, pairs=pairs, **options)


def compare_seconds(
    section: str, name: str, ours: Callable[[], float], reference: Callable[[], float], *, pairs: int, **options: Any
) -> BenchRow:
    """As :func:`compare`, for functions that return the seconds of their work."""
    ours(), reference()  # caches, compilers and memory pools warm up
    return row_of_pairs(section, name, [(ours(), reference()) for _ in range(pairs)], **options)


def row_of_pairs(
    section: str, name: str, pairs: Pairs, *, goal: float | None = None, note: str = "", timed: bool = True
) -> BenchRow:
    """Make the row of measured pairs (``timed``: of seconds), and print it to standard error."""
    ratios = [theirs / mine for mine, theirs in pairs]
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    ours, reference = (1e3 * statistics.median(side) if timed else math.nan for side in zip(*pairs, strict=True))
    options: dict[str, Any] = {"ratio": median, "low": low, "high": high, "goal": goal, "note": note}
    row = BenchRow(section=section, name=name, ours_ms=ours, reference_ms=reference, **options)
    print(f"  {section}: {name}: {ratio_text(row)}", file=sys.stderr, flush=True)
    return row


def seconds(function: Callable[[], object], repeat: int = 1) -> float:
    """Seconds per call, mean of ``repeat`` calls, with the work that they queue on a GPU."""
    synchronise = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    synchronise()
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    synchronise()
    return (time.perf_counter() - start) / repeat


def in_new_process(call: str, environment: Mapping[str, str] | None = None) -> Any:
    """Call ``module.function(arguments)`` of this package in a new process; return the JSON that it prints last."""
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


def ratio_text(row: BenchRow) -> str:
    """``123x [110, 130]``, with the goal if there is one, or ``failed``."""
    if math.isnan(row.ratio):
        return "failed"
    digits = 2 if row.ratio < 1 else 1 if row.ratio < 100 else 0
    text = f"{row.ratio:.{digits}f}x [{row.low:.{digits}f}, {row.high:.{digits}f}]"
    return text if row.goal is None else f"{text} (goal {row.goal:g}x: {'met' if row.met else 'MISSED'})"


def table(rows: Sequence[BenchRow]) -> str:
    """Return the rows as a Markdown table."""
    header = ["section", "comparison", "ours, ms", "reference, ms", "ratio [quartiles]", "note"]
    times = [["-" if math.isnan(ms) else f"{ms:.3g}" for ms in (row.ours_ms, row.reference_ms)] for row in rows]
    body = [[row.section, row.name, *ms, ratio_text(row), row.note] for row, ms in zip(rows, times, strict=True)]
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]  # aligned, for a terminal
    header, *body = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (header, *body))
    return markdown(header, body)


def write(rows: Sequence[BenchRow], folder: Path, *, command: str, device: str) -> None:
    """Write ``bench.md`` and ``bench.json`` with the command and the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.md").write_text(f"`{command}`\n\n{machine(device)}\n\n{table(rows)}\n")
    content = {"command": command, "machine": machine(device), "rows": [without_nan(asdict(row)) for row in rows]}
    (folder / "bench.json").write_text(json.dumps(content, indent=1) + "\n")


def fresh_model(name: str, device: str = "cpu") -> UNet:
    """Return a preset with the same weights in every call."""
    torch.manual_seed(0)
    return UNet(preset(name)).to(device)


def paper_trainer(
    model: UNet,
    num_rows: int,
    num_bytes: int,
    *,
    precision: str = "float32",
    processes: Processes | None = None,
    strategy: str = "none",
    **options: Any,
) -> Trainer:
    """Return a trainer with the paper's loss on prose; a single row has no batch mean and trains without a baseline."""
    options = {"num_steps": num_bytes, "batch_size": (num_rows,), "seed": 0, **options}
    env = ByteBoundaryEnv(model, local_prose(), **options)
    baseline = "batch_mean" if num_rows > 1 else "none"
    group = None if processes is None else processes.group
    loss = JointLoss.paper(target_rate=model.config.target_rate, baseline=baseline, process_group=group)
    loop = LoopOptions(total_bytes=10**12, precision=precision)
    return Trainer(model, env, loss, loop, processes=processes, strategy=strategy)

"""Run benchmark sections, each in its own process, and print their table.

A failed section is a row of the table; the others still run. With ``--out``, files are written after each section.
"""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments import bench
from rltok_rl.experiments.bench.timing import BenchRow, table, write
from rltok_rl.experiments.commands.parsers import SECTIONS, make_parser

from rltok_rl.training.environment import machine
from rltok_rl.utils import keep_memory

MODULES = {
    "rl_parts": ("sampler", "environment", "estimators"),
    "throughput": ("throughput",),
    "model_parts": ("attention", "decoding", "packing", "compiled"),
    "operations": ("counts",),
    "step": ("training", "updates"),
    "peers": ("peers",),
    "processes": ("processes",),
    "large": ("large",),
}
"""Sections by the module that has a function of their name; modules import their own packages only."""


def run_section(name: str, device: str) -> list[BenchRow]:
    """Run a section in a new process, and show what it prints; a failure is a row."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        code = f"from {__package__}.__main__ import write_section; write_section({name!r}, {device!r}, {str(file)!r})"
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        last = ""
        with subprocess.Popen([sys.executable, "-c", code], **pipes, errors="replace") as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                print(line, end="", file=sys.stderr, flush=True)
        if process.returncode == 0:
            return [BenchRow(**row) for row in json.loads(file.read_text())]
    nan = math.nan
    note = f"exit status {process.returncode}: {last[-200:]}"
    return [
        BenchRow(section=name, name="failed", ours_ms=nan, reference_ms=nan, ratio=nan, low=nan, high=nan, note=note)
    ]


def write_section(name: str, device: str, file: str) -> None:
    """Run a section in this process and write its rows."""
    keep_memory()
    module = next(module for module, sections in MODULES.items() if name in sections)
    section = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    Path(file).write_text(json.dumps([asdict(row) for row in section(device)]))


def main(arguments: list[str] | None = None) -> int:
    """Run the named sections, or all; return 1 if a section failed or a goal was missed."""
    options = make_parser("bench", bench.__doc__).parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    start, rows = time.perf_counter(), []
    for name in options.sections or SECTIONS:
        rows += run_section(name, options.device)
        if options.out:
            command = " ".join(["python -m rltok_rl.experiments.bench", *(arguments or sys.argv[1:])])
            write(rows, options.out, command=command, device=options.device)
    print(f"{machine(options.device)}\n{table(rows)}\n{time.perf_counter() - start:.0f} s")
    return int(any(row.met is False or math.isnan(row.ratio) for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Run benchmark sections and print their table."""

from __future__ import annotations

import importlib
import sys
import time

import torch
from rltok_rl.experiments.bench.harness import table, write
from rltok_rl.experiments.commands import parsers
from rltok_rl.experiments.commands.parsers import SECTIONS

from rltok_rl.training.record import machine
from rltok_rl.utils import keep_memory


def main(arguments: list[str] | None = None) -> int:
    """Run the named sections, or all; 1 if a goal was missed."""
    options = parsers.bench().parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    keep_memory()
    start, rows = time.perf_counter(), []
    for name in options.sections or SECTIONS:
        section = importlib.import_module(f"rltok_rl.experiments.bench.{name}")
        rows += section.rows(options.device)
    print(machine(options.device))
    print(table(rows))
    print(f"{time.perf_counter() - start:.0f} s")
    if options.out:
        command = " ".join(["python -m rltok_rl.experiments.bench", *(arguments or sys.argv[1:])])
        write(rows, options.out, command=command, device=options.device)
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Run benchmark sections and print their table."""

from __future__ import annotations

import importlib
import sys
import time

import torch
from rltok_rl.experiments import bench
from rltok_rl.experiments.bench.timing import table, write
from rltok_rl.experiments.commands.parsers import SECTIONS, make_parser

from rltok_rl.training.environment import machine
from rltok_rl.utils import keep_memory

MODULES = {
    "rl_parts": ("sampler", "environment", "estimators"),
    "throughput": ("throughput",),
    "model_parts": ("attention", "decoding", "packing", "compiled"),
    "step": ("training",),
    "peers": ("peers",),
    "processes": ("processes",),
}
"""Sections by the module that has a function of their name; modules import their own packages only."""


def main(arguments: list[str] | None = None) -> int:
    """Run the named sections, or all; return 1 if a goal was missed."""
    options = make_parser("bench", bench.__doc__).parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 0
    keep_memory()
    start, rows = time.perf_counter(), []
    for name in options.sections or SECTIONS:
        module = next(module for module, sections in MODULES.items() if name in sections)
        section = getattr(importlib.import_module(f"rltok_rl.experiments.bench.{module}"), name)
        rows += section(options.device)
    print(f"{machine(options.device)}\n{table(rows)}\n{time.perf_counter() - start:.0f} s")
    if options.out:
        command = " ".join(["python -m rltok_rl.experiments.bench", *(arguments or sys.argv[1:])])
        write(rows, options.out, command=command, device=options.device)
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())

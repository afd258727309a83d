"""Compiled layers against the same layers as they are: time of a step, and seconds of compiling.

    python -m rltok_rl.experiments.bench compiled

Runs when it is named, and not with the others: compiling takes a minute for each preset. Two processes for each: the
first finds the cache of the compiler empty, the second what the first has left there, and times steps in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import torch
from rltok_rl.experiments.bench.harness import Row, row_of_pairs, seconds
from rltok_rl.experiments.bench.trainers import fresh_model, paper_trainer

from rltok_rl.training import Trainer
from rltok_rl.training.options import compile_layers
from rltok_rl.utils import keep_memory

PRESETS = {"pocket": (8, 512), "small": (4, 1024), "released-18m": (1, 4096)}
"""Rows and steps of each: 4,096 bytes."""
PAIRS = 5


def make_trainer(name: str, device: str) -> Trainer:
    """A trainer of a preset with fresh weights.

    Args:
        name: of a preset.
        device: where.
    """
    precision = "float32" if device == "cpu" else "bfloat16"
    return paper_trainer(fresh_model(name, device), *PRESETS[name], precision=precision)


def tell(name: str, device: str, pairs: int) -> None:
    """Print the seconds that compiling took, how many programs it made, and pairs of steps.

    Args:
        name: of a preset.
        device: where.
        pairs: (compiled, as it is) to time, A B A B.
    """
    keep_memory()
    ours, usual = make_trainer(name, device), make_trainer(name, device)
    compile_layers(ours.model)
    first = [seconds(ours.update) for _ in range(2)]  # tokens of the second are others: nothing is made after it
    made = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    usual.update()
    times = [(seconds(ours.update), seconds(usual.update)) for _ in range(pairs)]
    later = torch._dynamo.utils.counters["stats"]["unique_graphs"] - made
    step = statistics.median(mine for mine, _ in times)
    print(json.dumps({"compiling": sum(first) - 2 * step, "programs": made, "later": later, "pairs": times}))


def rows(device: str) -> list[Row]:
    """A row for each preset."""
    out = []
    for name, (num_rows, num_steps) in PRESETS.items():
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (_run(name, device, pairs, folder) for pairs in (1, PAIRS))
        note = (
            f"{warm['programs']} programs, {warm['later']} after the second update; {cold['compiling']:.0f} s of "
            f"compiling, {warm['compiling']:.0f} s with a warm cache"
        )
        size = f"{name}, T={num_steps}, B={num_rows}"
        out.append(row_of_pairs("compiled", f"step, compiled layers / as they are, {size}", warm["pairs"], note=note))
    return out


def _run(name: str, device: str, pairs: int, folder: str) -> dict[str, Any]:
    code = f"from rltok_rl.experiments.bench import compiled; compiled.tell({name!r}, {device!r}, {pairs})"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-500:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told

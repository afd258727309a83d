"""What a step takes in memory and time where less is kept: layers that run again, predictions held in parts.

    python -m rltok_rl.experiments.bench.memory released-18m 1 4096
    python -m rltok_rl.experiments.bench.memory pocket 8 512 3

Every way runs in a process of its own, all of them in turn, so often as the last number says, so that a machine that
slows down slows all.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

from rltok_rl.experiments.bench.trainers import fresh_model, paper_trainer
from rltok_rl.experiments.bench.training import resident

from rltok_rl.training.options import recompute_layers
from rltok_rl.utils import keep_memory

WAYS: dict[str, tuple[str, int | None]] = {
    "all is kept": ("none", None),
    "recompute=layers": ("layers", None),
    "likelihood_chunk=1024": ("none", 1024),
    "both": ("layers", 1024),
}
"""What the backward pass computes again, and positions of a part."""


def measure(name: str, num_rows: int, num_bytes: int, way: str) -> tuple[float, float]:
    """CPU seconds of an update, median of two, and how far updates raise this process's memory, in bytes."""
    keep_memory()
    again, chunk = WAYS[way]
    model = fresh_model(name)
    trainer = paper_trainer(model, num_rows, num_bytes, likelihood_chunk=chunk)
    recompute_layers(model, again)
    before = resident()
    trainer.update()
    taken = []
    for _ in range(2):
        start = time.process_time()
        trainer.update()
        taken.append(time.process_time() - start)
    return statistics.median(taken), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def main(arguments: list[str]) -> None:
    """Print a table of all ways, or, with the name of one, its two figures."""
    name, num_rows, num_bytes, *more = arguments
    if more and more[0] in WAYS:
        print(json.dumps(measure(name, int(num_rows), int(num_bytes), more[0])))
        return
    found: dict[str, list[tuple[float, float]]] = {one: [] for one in WAYS}
    for _ in range(int(more[0]) if more else 1):
        for one, taken in found.items():
            command = [sys.executable, "-m", __spec__.name, name, num_rows, num_bytes, one]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(one, done.stdout.splitlines()[-1], file=sys.stderr, flush=True)
            taken.append(tuple(json.loads(done.stdout.splitlines()[-1])))
    print(f"| {name}, B = {num_rows}, T = {num_bytes} | CPU s a step | against all | GB | against all |")
    print("|---|---|---|---|---|")
    times, peaks = ([statistics.median(one[i] for one in found[way]) for way in WAYS] for i in (0, 1))
    for one, took, peak in zip(WAYS, times, peaks, strict=True):
        print(f"| {one} | {took:.2f} | {took / times[0]:.2f} | {peak / 1e9:.2f} | {peak / peaks[0]:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])

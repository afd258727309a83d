"""Memory and time of a step that recomputes layers or splits predictions.

    python -m rltok_rl.experiments.bench.memory released-18m 1 4096
    python -m rltok_rl.experiments.bench.memory pocket 8 512 3

The last number repeats the measurement. Every variant runs in a new process, and the variants take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from rltok_rl.experiments.bench.timing import fresh_model, in_new_process, paper_trainer, peak_above, resident
from rltok_rl.experiments.reports.markdown import markdown

from rltok_rl.training.options import recompute_layers
from rltok_rl.utils import keep_memory

VARIANTS: dict[str, tuple[str, int | None]] = {
    "all is kept": ("none", None),
    "recompute=layers": ("layers", None),
    "likelihood_chunk=1024": ("none", 1024),
    "both": ("layers", 1024),
}
"""``compute.recompute`` and ``likelihood_chunk`` of each."""


def print_costs(name: str, num_rows: int, num_bytes: int, variant: str) -> None:
    """Print CPU seconds of an update, median of two, and the bytes by which updates raise the peak memory."""
    keep_memory()
    recompute, chunk = VARIANTS[variant]
    model = fresh_model(name)
    trainer = paper_trainer(model, num_rows, num_bytes, likelihood_chunk=chunk)
    recompute_layers(model, recompute)
    before = resident()
    trainer.update()
    times = []
    for _ in range(2):
        start = time.process_time()
        trainer.update()
        times.append(time.process_time() - start)
    print(json.dumps([statistics.median(times), peak_above(before)]))


def main(arguments: list[str]) -> None:
    """Print a table of all variants."""
    name, num_rows, num_bytes, *repeats = arguments
    costs: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(int(repeats[0]) if repeats else 1):
        for variant in VARIANTS:
            call = f"memory.print_costs({name!r}, {int(num_rows)}, {int(num_bytes)}, {variant!r})"
            costs[variant].append(in_new_process(call))
            print(variant, costs[variant][-1], file=sys.stderr, flush=True)
    times, peaks = ([statistics.median(pair[n] for pair in costs[variant]) for variant in VARIANTS] for n in (0, 1))
    header = [f"{name}, B = {num_rows}, T = {num_bytes}", "CPU s a step", "against all", "GB", "against all"]
    body = [
        [variant, f"{took:.2f}", f"{took / times[0]:.2f}", f"{peak / 1e9:.2f}", f"{peak / peaks[0]:.2f}"]
        for variant, took, peak in zip(VARIANTS, times, peaks, strict=True)
    ]
    print(markdown(header, body))


if __name__ == "__main__":
    main(sys.argv[1:])

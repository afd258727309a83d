"""The least time of an update at 147M on a GPU, calculated from counted FLOPs, bytes and launches.

    python -m rltok_rl.experiments.bench.roofline

counts all variants (minutes), writes ``experiments/results/roofline/counts.json`` and prints the tables of
docs/roofline.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rltok_rl.experiments.bench.operations import FLIPS, GIB
from rltok_rl.experiments.bench.timing import in_new_process
from rltok_rl.experiments.reports.markdown import markdown

from rltok_rl.training.environment import peak_flops

MEMORY = {"H100 SXM": 3.35e12, "H200 SXM": 4.8e12}
"""Bytes per second of memory, of NVIDIA's data sheets."""
LAUNCH = 6e-6
"""Seconds of the host per eager launch: an assumption, which the first profile replaces."""

VARIANTS = {
    "B = 1": ["data.num_rows=1", "baseline=none"],
    "B = 8": [],
    "B = 8, local flips": list(FLIPS),
    "B = 16": ["data.num_rows=16"],
}
"""Options of :mod:`rltok_rl.experiments.bench.large` by their name in the tables."""
COUNTS = Path(__file__).parents[1] / "results" / "roofline" / "counts.json"


def least_times(step: dict[str, Any], gpu: str) -> dict[str, float]:
    """Return the seconds of a step that is bound by arithmetic, by memory, or by eager launches alone.

    Example:
        >>> step = {"flops": 989e12, "moved": 6.7e12, "calls": 1000}
        >>> {name: round(seconds, 3) for name, seconds in least_times(step, "H100 SXM").items()}
        {'arithmetic': 1.0, 'memory': 2.0, 'launches': 0.006}
    """
    return {
        "arithmetic": step["flops"] / (peak_flops(gpu) or 0.0),
        "memory": step["moved"] / MEMORY[gpu],
        "launches": LAUNCH * step["calls"],
    }


def tables(counts: dict[str, dict[str, Any]]) -> str:
    """Return the counts, and the times on each GPU, as Markdown."""
    counted = [
        [name, f"{step['calls']:,}", f"{step['written'] / GIB:.0f}", f"{step['moved'] / GIB:.0f}"]
        + [f"{step['flops'] / 1e12:.1f}"]
        for name, step in counts.items()
    ]
    parts = [markdown(["step", "launches", "GiB written", "GiB read and written", "TFLOP of products"], counted)]
    for gpu in MEMORY:
        body = []
        for name, step in counts.items():
            times = least_times(step, gpu)
            bound = max(times, key=lambda part: times[part])
            share = times["arithmetic"] / times[bound]
            body.append([name, *(f"{1e3 * value:.1f}" for value in times.values()), bound, f"{100 * share:.0f} %"])
        header = [f"{gpu}, ms", "arithmetic", "memory", "launches", "bound", "share of peak FLOP/s, at most"]
        parts.append(markdown(header, body))
    return "\n\n".join(parts)


def main() -> None:
    """Count all variants, each in its own process, and print the tables."""
    counts = {name: in_new_process(f"large.print_counts(*{options})") for name, options in VARIANTS.items()}
    COUNTS.parent.mkdir(parents=True, exist_ok=True)
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
    print(tables(counts))


if __name__ == "__main__":
    main()

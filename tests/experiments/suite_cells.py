"""Small suites, and cells without training, for tests of the boundary suite."""

from __future__ import annotations

from typing import Any

SMALL = "overrides=data.num_steps=32,data.num_rows=4"
TINY = ["tasks=delay,switch", "grades=1", "seeds=1", "flops=3e8", "workers=1", SMALL]


def suite_cell(task: str, entry: str, seed: int, share: float, rate: float = 0.1) -> dict[str, Any]:
    look = {"total_flops": 1e9, "cpu_seconds": 1.0, "share": share}
    times = {"cpu_seconds": 1.0, "total_flops": 1e9, "machine": "a machine", "target_rate": 0.1}
    final = {"share": share, "rate": rate}
    return {"task": task, "grade": 1, "entry": entry, "seed": seed, "final": final, "looks": [look, look], **times}


CELLS = [
    suite_cell(task, entry, seed, share + 0.01 * seed, rate)
    for task in ("delay", "pair")
    for seed in range(3)
    for entry, share, rate in (
        ("oracle", 0.9 if task == "delay" else 0.55, 0.2),
        ("uniform", 0.5, 0.12),
        ("good", 0.81 + 0.002 * seed, 0.104),
        ("bad", 0.6, 0.096),
        ("fast", 0.9, 0.106),
    )
]

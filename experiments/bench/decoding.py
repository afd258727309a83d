"""Writing through the cache against running the whole forward pass again for every byte."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from functools import partial

import torch
from rltok_rl.experiments.bench.harness import Row, compare_seconds

from rltok_rl.models import UNet, preset
from rltok_rl.models.generation import stream

SAMPLES = 5  # lengths at which the slow way is timed; in full, 4,000 bytes of it would take many minutes


@torch.no_grad()
def rerun_seconds(model: UNet, num_bytes: int, device: str) -> float:
    """Seconds that the slow way needs for all positions 1 .. num_bytes, from a sample of them.

    One forward pass over t bytes yields byte t + 1. The pass is timed at evenly spread lengths, and their mean is
    taken for all (midpoint rule; the cost grows nearly linearly in t). Boundaries are given: drawing them costs nothing
    here, and only the last position's logits are made.
    """
    total = 0.0
    for sample in range(SAMPLES):
        length = round((sample + 0.5) / SAMPLES * num_bytes)
        byte_ids = torch.randint(256, (1, length), device=device)
        boundaries = torch.rand(1, length, device=device) < model.config.target_rate
        boundaries[:, 0] = True
        start = time.perf_counter()
        states = model.encode(byte_ids)
        model.final_logits(model.decode(states, boundaries)[:, -1]).argmax(-1).item()
        total += time.perf_counter() - start
    return total / SAMPLES * num_bytes


def cached_seconds(model: UNet, num_bytes: int) -> tuple[float, float]:
    """Seconds for writing ``num_bytes`` through the cache; cost per byte in the last tenth over that in the second."""
    marks = [time.perf_counter()]
    for step in stream(model, "x", max_bytes=num_bytes):
        step.byte_ids.tolist()
        marks.append(time.perf_counter())
    tenth = num_bytes // 10
    growth = (marks[-1] - marks[-1 - tenth]) / (marks[2 * tenth] - marks[tenth])
    return marks[-1] - marks[0], growth


def rows(device: str) -> list[Row]:
    """1,000 and 4,000 bytes with the ``small`` preset."""
    torch.manual_seed(0)
    model = UNet(preset("small")).to(device).eval()
    out = []
    for num_bytes, goal in ((1000, 8.0), (4000, 30.0)):
        growths: list[float] = []

        def cached(num_bytes: int = num_bytes, growths: list[float] = growths) -> float:
            seconds, growth = cached_seconds(model, num_bytes)
            growths.append(growth)
            return seconds

        row = compare_seconds(
            "decoding",
            f"cache / full forward per byte, {num_bytes} bytes",
            cached,
            partial(rerun_seconds, model, num_bytes, device),
            pairs=3,
            goal=goal,
        )
        growth = statistics.median(growths)
        note = f"{1e3 * num_bytes / row.ours_ms:.0f} bytes/s; the last tenth costs {growth:.2f}x the second, per byte"
        out.append(replace(row, note=note))
    return out

"""An update at 147M: counted on a GPU without values, and timed on a GPU.

    python -m rltok_rl.experiments.bench.large estimator=local_flips baseline=none

counts an update of ``experiment=paper-147m-fineweb`` with 8 rows of 4,096 bytes and packed tokens in fixed room, in
eager operations; arguments are further options.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rltok_rl.experiments.bench.fake_gpu import fake_gpu
from rltok_rl.experiments.bench.operations import GIB, CountOperations
from rltok_rl.experiments.bench.timing import BenchRow, in_new_process, row_of_pairs, seconds
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.runs.build import make_trainer
from torch import Tensor

from rltok_rl.training.distributed import Processes
from rltok_rl.training.environment import peak_flops

TEXT = ["data.source=python-docs", "data.held_out=0.02", "data.min_bytes=1", "data.max_bytes=null", "data.limit=null"]
STEP = ["experiment=paper-147m-fineweb", *TEXT, "data.num_rows=8", "data.num_steps=4096", "compute.micro_batches=1"]
"""Options of the step; its text is one that every machine has."""
PACKED = ["compute.tokens=packed", "compute.token_room=0.25"]
EAGER = "compute.compile=false"
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm"}
VARIANTS = {"eager": [EAGER], "compiled": ["compute.compile=true"]}
RECOMPUTED = {f"{name}, recomputed": [*options, "compute.recompute=layers"] for name, options in VARIANTS.items()}
STEPS = {1: VARIANTS, 8: VARIANTS, 16: VARIANTS | RECOMPUTED}
"""Options of each step by its rows; memory decides about recomputing, so it is timed with the most rows."""
PROFILED = 2  # steps of a profile
GOAL = 0.4  # of the peak; an H100's on a GPU that is not known


class CountProducts(CountOperations):
    """Counts matrix products by type, too."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[str] = Counter()

    def _add(self, name: str, read: Sequence[Tensor], *others: Sequence[Tensor]) -> None:
        super()._add(name, read, *others)
        if name in PRODUCTS:
            self.products[str(read[0].dtype).removeprefix("torch.")] += 1


def count_step(overrides: Sequence[str]) -> dict[str, Any]:
    """Count a whole update, in a process of its own: launches, bytes, FLOPs and types of matrix products."""
    config = compose_config([*STEP, *PACKED, EAGER, *overrides])
    with fake_gpu(number=round(config.data.num_steps / 4)) as device:
        trainer, _ = make_trainer(config, Processes(device=device))
        trainer.model.train()
        for parameter in trainer.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        trainer.optimizer.step()  # makes its state
        counted = CountProducts()
        with counted:
            trainer.advance()
    totals = {name: getattr(counted, name).total() for name in ("calls", "moved", "written")}
    return {**totals, "flops": counted.flops, "products": dict(counted.products)}


def print_counts(*overrides: str) -> None:
    """Print :func:`count_step` as JSON."""
    print(json.dumps(count_step(overrides)))


def large(device: str) -> list[BenchRow]:
    """Seconds of a step against its least seconds by arithmetic; the ratio is the share of peak FLOP/s."""
    if device != "cuda":
        print("  large: skipped, it needs a GPU", file=sys.stderr, flush=True)
        return []
    peak = peak_flops(torch.cuda.get_device_name()) or peak_flops("H100") or 0.0
    rows = []
    for num_rows, variants in STEPS.items():
        for variant, options in variants.items():
            name = f"step, 147M, B={num_rows}, T=4096, {variant}"
            try:
                step = in_new_process(f"large.print_step({num_rows}, {options})")
            except RuntimeError as error:  # the others still run
                nan = {field: math.nan for field in ("ours_ms", "reference_ms", "ratio", "low", "high")}
                rows.append(BenchRow(section="large", name=name, **nan, note=str(error)[-200:].replace("\n", " ")))
                continue
            speed = f"{num_rows * 4096 / step['seconds']:,.0f} bytes/s, {step['memory'] / GIB:.1f} GiB"
            work = f"{step['kernels']:,.0f} kernels that take {1e3 * step['busy']:.1f} ms"
            note = f"{speed}; {work}; ratio: MFU of {peak / 1e12:.0f} TFLOP/s"
            rows.append(row_of_pairs("large", name, [(step["seconds"], step["flops"] / peak)], goal=GOAL, note=note))
    return rows


def print_step(num_rows: int, options: list[str], device: str = "cuda") -> None:
    """Print what a step costs, as JSON: seconds, FLOPs of matrix products, memory, kernels and their seconds.

    Steps follow each other without a wait, as in training, where the host runs ahead.
    """
    options = [*options, *(["baseline=none"] if num_rows == 1 else [])]  # a batch mean needs more rows
    config = compose_config([*STEP, *PACKED, f"data.num_rows={num_rows}", f"compute.device={device}", *options])
    trainer, _ = make_trainer(config, Processes(device=torch.device(device)))
    trainer.model.train()
    for _ in range(3):
        trainer.update()
    before = trainer.flops_done
    took = statistics.median(seconds(trainer.advance, repeat=5) for _ in range(4))
    updates = len(trainer.fetch_metrics())  # without those that have to be repeated
    flops = (trainer.flops_done - before) / updates
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    kernels, busy = device_work(trainer.advance)
    print(json.dumps({"seconds": took, "flops": flops, "memory": peak, "kernels": kernels, "busy": busy}))


def device_work(step: Callable[[], object]) -> tuple[float, float]:
    """Return the number of kernels that a GPU runs for a step, and the seconds of kernels, copies and fills."""
    with torch.profiler.profile(activities=[*torch.profiler.supported_activities()]) as profile:
        for _ in range(PROFILED):
            step()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    on_gpu = [event for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    events = [event for event in on_gpu if not event.is_user_annotation]  # names of blocks cover kernels
    kernels = sum(event.count for event in events if not event.key.startswith(("Memcpy", "Memset")))
    busy = sum(event.self_device_time_total for event in events) / 1e6
    return kernels / PROFILED, busy / PROFILED


if __name__ == "__main__":
    print_counts(*sys.argv[1:])

"""Two processes against one: seconds of an update, peak memory, and bytes sent.

Groups of processes take turns: one with all rows; two that train separately with half of the rows each; two under
``ddp``; two under ``fsdp``. Each process has one thread. The gain of two separate processes is the value of a second
core; what ``ddp`` needs beyond them is communication.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys

import torch
from rltok_rl.experiments.bench.timing import (
    BenchRow,
    fresh_model,
    paper_trainer,
    peak_above,
    resident,
    row_of_pairs,
    seconds,
)
from rltok_rl.experiments.bench.traffic import CountTraffic, update_traffic

from rltok_rl.models import UNet, preset
from rltok_rl.training.distributed import Processes, init_processes
from rltok_rl.utils import keep_memory

PRESET, NUM_ROWS, NUM_STEPS = "small", 8, 512
ROUNDS, UPDATES = 3, 2
GROUPS = {"none": 1, "apart": 2, "ddp": 2, "fsdp": 2}
"""Number of processes of each group."""


def print_costs(group: str) -> None:
    """Train a few updates and print the seconds of one, the peak memory and the bytes sent, as JSON."""
    torch.set_num_threads(1)
    keep_memory()
    before, together = resident(), group in ("ddp", "fsdp")
    with init_processes("cpu") if together else Processes() as processes:
        num_rows, strategy = NUM_ROWS // GROUPS[group], group if together else "none"
        trainer = paper_trainer(fresh_model(PRESET), num_rows, NUM_STEPS, processes=processes, strategy=strategy)
        trainer.update()
        took = statistics.median(seconds(trainer.update) for _ in range(UPDATES))
        memory = peak_above(before)
        with CountTraffic() as count:
            trainer.update()
        if processes.main:
            print(json.dumps({"seconds": took, "memory": memory, "sent": count.traffic.sent(GROUPS[group])}))


def _run(group: str) -> dict[str, float]:
    """Start a group and return what its main process prints."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    code = f"from rltok_rl.experiments.bench import processes; processes.print_costs({group!r})"
    children = []
    for rank in range(GROUPS[group]):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": GROUPS[group], "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        environment |= {"MASTER_ADDR": "localhost", "OMP_NUM_THREADS": "1"}
        command, pipe = [sys.executable, "-c", code], subprocess.PIPE
        children.append(subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe))
    outputs = [child.communicate() for child in children]
    for child, (_, error) in zip(children, outputs, strict=True):
        if child.returncode != 0:
            raise RuntimeError(f"a process of {group!r} ended with {child.returncode}: {error[-500:]}")
    costs: dict[str, float] = json.loads(outputs[0][0].splitlines()[-1])
    shown = f"{costs['seconds']:.2f} s, {costs['memory'] / 1e6:.0f} MB"
    print(f"  processes: {group}: {shown}", file=sys.stderr, flush=True)
    return costs


def processes(device: str) -> list[BenchRow]:
    """Two separate processes, ``ddp`` and ``fsdp`` against one process."""
    if device != "cpu" or not torch.distributed.is_available():
        return []  # several GPUs are another machine
    costs: dict[str, list[dict[str, float]]] = {group: [] for group in GROUPS}
    for _ in range(ROUNDS):
        for group in GROUPS:
            costs[group].append(_run(group))
    size = f"{PRESET}, B={NUM_ROWS}, T={NUM_STEPS}"
    with torch.device("meta"):
        model = UNet(preset(PRESET))

    def times(ours: str, theirs: str) -> list[tuple[float, float]]:
        return [(a["seconds"], b["seconds"]) for a, b in zip(costs[ours], costs[theirs], strict=True)]

    def memory(group: str) -> str:
        return f"{statistics.median(cost['memory'] for cost in costs[group]) / 1e6:.0f} MB"

    note = f"value of a second core; peak memory of each {memory('apart')}, of one process {memory('none')}"
    rows = [row_of_pairs("processes", f"two apart / one process, {size}", times("apart", "none"), note=note)]
    for group in ("ddp", "fsdp"):
        planned = update_traffic(model, NUM_STEPS, strategy=group).sent(2) / 1e6
        share = statistics.median(1 - apart / ours for ours, apart in times(group, "apart"))
        note = f"{share:.0%} more than two apart; sends {costs[group][-1]['sent'] / 1e6:.2f} MB an update "
        note += f"(calculated {planned:.2f}); peak memory of each {memory(group)}"
        rows.append(row_of_pairs("processes", f"two, {group} / one process, {size}", times(group, "none"), note=note))
    return rows

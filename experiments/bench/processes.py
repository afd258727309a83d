"""Two processes against one: seconds of an update, peak memory of a process, and bytes that it sends.

Paired runs, a group of processes each: one alone with all rows; two that train apart, with half of the rows each and no
word between them; two under ``ddp``; two under ``fsdp``. Each process has one thread. What two apart gain is what a
second core is worth here (two threads of one core are worth little); what ``ddp`` takes longer than they do is talking.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass

import torch
from rltok_rl.experiments.bench.harness import Row, row_of_pairs, seconds
from rltok_rl.experiments.bench.traffic import CountTraffic, Traffic, update_traffic
from rltok_rl.experiments.bench.trainers import fresh_model, paper_trainer

from rltok_rl.models import UNet, preset
from rltok_rl.training.parallel import Processes, init_processes
from rltok_rl.utils import keep_memory

PRESET, NUM_ROWS, NUM_STEPS = "small", 8, 512
ROUNDS, UPDATES = 3, 2
ARRANGEMENTS = {"none": 1, "apart": 2, "ddp": 2, "fsdp": 2}
"""How many processes each has."""


@dataclass(frozen=True)
class Told:
    """What a process says of its updates."""

    seconds: float
    """Median of an update."""
    memory: float
    """Bytes by which building and training raised its peak memory."""
    traffic: dict[str, float]
    """Fields of the :class:`~rltok_rl.experiments.bench.traffic.Traffic` of an update."""


def tell(arrangement: str) -> None:
    """Train a few updates in this process, and print what it has to say.

    Args:
        arrangement: a key of ``ARRANGEMENTS``.
    """
    torch.set_num_threads(1)
    keep_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    together = arrangement in ("ddp", "fsdp")
    with init_processes("cpu") if together else Processes() as processes:
        num_rows, strategy = NUM_ROWS // ARRANGEMENTS[arrangement], arrangement if together else "none"
        trainer = paper_trainer(fresh_model(PRESET), num_rows, NUM_STEPS, processes=processes, strategy=strategy)
        trainer.update()
        took = statistics.median(seconds(trainer.update) for _ in range(UPDATES))
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        with CountTraffic() as count:
            trainer.update()
        if processes.main:
            print(json.dumps(asdict(Told(took, peak, asdict(count.traffic)))))


def run(arrangement: str) -> Told:
    """What the main process of an arrangement says.

    Args:
        arrangement: a key of ``ARRANGEMENTS``.
    """
    world_size = ARRANGEMENTS[arrangement]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    code = f"from rltok_rl.experiments.bench import processes; processes.tell({arrangement!r})"
    started = []
    for rank in range(world_size):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in numbers.items()}}
        environment |= {"MASTER_ADDR": "localhost", "OMP_NUM_THREADS": "1"}
        command, pipe = [sys.executable, "-c", code], subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe))
    said = [process.communicate() for process in started]
    for process, (_, error) in zip(started, said, strict=True):
        if process.returncode != 0:
            raise RuntimeError(f"a process of {arrangement!r} ended with {process.returncode}: {error[-500:]}")
    told = Told(**json.loads(said[0][0].splitlines()[-1]))
    print(f"  processes: {arrangement}: {told.seconds:.2f} s, {told.memory / 1e6:.0f} MB", file=sys.stderr, flush=True)
    return told


def rows(device: str) -> list[Row]:
    """Time of two that do not talk, of ``ddp`` and of ``fsdp``, against one; what they send, and their memory."""
    if device != "cpu" or not torch.distributed.is_available():
        return []  # several GPUs are another machine
    taken: dict[str, list[Told]] = {name: [] for name in ARRANGEMENTS}
    for _ in range(ROUNDS):
        for name in ARRANGEMENTS:
            taken[name].append(run(name))
    size = f"{PRESET}, B={NUM_ROWS}, T={NUM_STEPS}"
    with torch.device("meta"):
        model = UNet(preset(PRESET))

    def times(ours: str, theirs: str) -> list[tuple[float, float]]:
        return [(a.seconds, b.seconds) for a, b in zip(taken[ours], taken[theirs], strict=True)]

    def memory(name: str) -> float:
        return statistics.median(one.memory for one in taken[name]) / 1e6

    alone = f"one process {memory('none'):.0f} MB"
    note = f"what a second core is worth here; peak memory of each {memory('apart'):.0f} MB, of {alone}"
    out = [row_of_pairs("processes", f"two apart / one process, {size}", times("apart", "none"), note=note)]
    for name in ("ddp", "fsdp"):
        counted = Traffic(**taken[name][-1].traffic).sent(2) / 1e6
        planned = update_traffic(model, NUM_STEPS, strategy=name).sent(2) / 1e6
        talking = statistics.median(1 - apart / ours for ours, apart in times(name, "apart"))
        note = (
            f"{talking:.0%} of it more than two apart need; sends {counted:.2f} MB an update (calculated {planned:.2f})"
            f"; peak memory of each {memory(name):.0f} MB"
        )
        out.append(row_of_pairs("processes", f"two, {name} / one process, {size}", times(name, "none"), note=note))
    return out

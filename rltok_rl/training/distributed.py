"""Process group for distributed training: setup, barriers, collectives and errors.

    torchrun --nproc-per-node 2 -m rltok_rl.experiments.train compute.strategy=ddp

Shapes: B rows of the batch of all processes, W processes; rank r has rows r B/W to (r + 1) B/W.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, Store
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from rltok_rl.renamed import renamed_names
from rltok_rl.training.checkpoint import put_together, take_apart
from rltok_rl.training.watchdog import watching

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others, in collectives and at the start."""
HANG_SECONDS = 45.0
"""How long a rank may compute nothing while others wait for it, before it is named and ends the job."""
PREPARATION_TIMEOUT = timedelta(hours=24)
"""How long ranks wait for each other outside collectives: during downloads and work of rank 0 alone."""
_GRACE = 10.0  # seconds in which torchrun ends all ranks after the first failure
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


class Refused(Exception):
    """The user asked for something that cannot be done: printed without a traceback."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; by default, one that trains alone.

    As a context, it watches for ranks that hang, and leaves the process group at the end of the block. If the block
    fails, the error is recorded for torchrun, which prints the one of the rank that failed first. Ranks that only lost
    their connection to it wait for torchrun to end them.

    Example:
        >>> alone = Processes()
        >>> alone.main, alone.share(6), alone.any(False), alone.mean({"loss": 2.0})
        (True, 6, False, {'loss': 2.0})
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")
    group: ProcessGroup | None = None
    """For collectives; None for one process."""
    store: Store | None = None
    """For waiting outside collectives; None waits in one."""
    hang_seconds: float | None = None
    """See :data:`HANG_SECONDS`; None watches no rank."""
    _meetings: Iterator[int] = field(default_factory=count, repr=False, compare=False)
    _watch: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    @property
    def main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def first_here(self) -> bool:
        """Whether this is the first rank of its machine."""
        return os.environ.get("LOCAL_RANK", "0") == "0"

    @property
    def part(self) -> tuple[int, int]:
        """Rank and world size, as ``parallel_rollout`` takes them."""
        return self.rank, self.world_size

    def share(self, num_rows: int, *, name: str = "num_rows") -> int:
        """Return the rows of this process, B/W; ``name`` stands in the error if B is no multiple of W."""
        if num_rows < 1 or num_rows % self.world_size:
            raise ValueError(
                f"{name} counts the rows of all processes and must be a multiple of their number, {self.world_size}, "
                f"got {num_rows}"
            )
        return num_rows // self.world_size

    def meet(self) -> None:
        """Wait for all ranks at a barrier through the store, for up to :data:`PREPARATION_TIMEOUT`.

        It is not a collective: those time out after :data:`TIMEOUT`, which work of one rank may outlast.
        """
        if self.store is None:
            self.any(False)
            return
        number, end = next(self._meetings), time.monotonic() + PREPARATION_TIMEOUT.total_seconds()
        keys = [f"meeting {number} {rank}" for rank in range(self.world_size)]
        self.store.set(keys[self.rank], "here")
        while not self.store.check(keys):  # one request for all ranks
            if time.monotonic() > end:
                missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
                raise RuntimeError(
                    f"processes {missing} of {self.world_size} were not ready within {PREPARATION_TIMEOUT}"
                )
            time.sleep(0.1)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        if self.group is None:
            return flag
        flags = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        return bool(flags)

    def mean(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Average metrics over processes; the same names in the same order in all of them."""
        if self.group is None:
            return dict(metrics)
        values = torch.tensor(list(metrics.values()), dtype=torch.float64, device=self.device)
        return dict(zip(metrics, self.average(values).tolist(), strict=True))

    def average(self, values: Tensor) -> Tensor:
        """Average float64 numbers [n] over processes, without waiting for the device; the input is overwritten.

        Equal float32 numbers keep their value: float64 holds a sum of a few of them exactly.
        """
        if self.group is None:
            return values
        dist.all_reduce(values, group=self.group)
        return values / self.world_size

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, anything that a checkpoint can hold, in all processes; tensors arrive on the CPU."""
        if self.group is None:
            return value
        self.meet()  # rank 0 may have worked on the value for long
        tensors: dict[str, Tensor] = {}
        message: list[Any] = [None]
        if self.main:
            skeleton = take_apart(value, tensors, "value")
            message = [(skeleton, {name: (x.shape, x.dtype) for name, x in tensors.items()})]
        dist.broadcast_object_list(message, src=0, group=self.group, device=self.device)
        skeleton, shapes = message[0]
        # One by one: a pickled optimizer state would be in memory several times.
        for name, (shape, dtype) in shapes.items():
            tensor = tensors[name] if self.main else torch.empty(shape, dtype=dtype)
            sent = tensor.to(self.device)
            dist.broadcast(sent, src=0, group=self.group)
            tensors[name] = sent.cpu()
        return put_together(skeleton, tensors)

    def __enter__(self) -> Processes:
        if self.store is not None and self.hang_seconds is not None:
            store = PrefixStore("watchdog", self.store)
            self._watch.enter_context(watching(store, self.rank, self.world_size, self.hang_seconds))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._watch.close()
        if self.group is None:
            return
        if error is None:
            dist.destroy_process_group()
        elif isinstance(error, Refused):
            wait_for_main_error()
        elif isinstance(error, Exception):
            words = ("gloo", "nccl", "peer")  # of an error whose cause is the end of another rank
            if isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words):
                time.sleep(_GRACE)
            get_error_handler().record_exception(error)


def is_main_rank() -> bool:
    """Return whether this process is rank 0, or will be after :func:`init_processes`."""
    return os.environ.get("RANK", "0") == "0"


def wait_for_main_error() -> None:
    """Wait, on other ranks than 0, until rank 0 has printed an error that all ranks raise.

    torchrun ends all ranks after the first failure, perhaps before rank 0 has printed its message.
    """
    if not is_main_rank():
        time.sleep(_GRACE)


def init_processes(
    device: str | torch.device = "cpu", *, timeout: timedelta = TIMEOUT, hang_seconds: float | None = HANG_SECONDS
) -> Processes:
    """Join the process group that torchrun has started; without torchrun, or with one process, return a lone process.

    On ``cuda`` each process takes the GPU of its local rank. Collectives use NCCL there and Gloo on the CPU. A rank
    waits for others for up to ``timeout``; one that hangs for ``hang_seconds`` is named and ends the job.
    """
    device = torch.device(device)
    variables = {name: os.environ[name] for name in (*_VARIABLES, *_ADDRESS) if name in os.environ}
    if not any(name in variables for name in _VARIABLES) or variables.get("WORLD_SIZE") == "1":
        return Processes(device=device)
    missing = [name for name in (*_VARIABLES, *_ADDRESS) if name not in variables]
    if missing:
        raise RuntimeError(
            f"the environment must have all of {[*_VARIABLES, *_ADDRESS]} or none of {[*_VARIABLES]}, got {variables} "
            f"without {missing}; start with torchrun, which sets them, or unset them to train in one process"
        )
    for name in _VARIABLES:
        if not variables[name].isdecimal():
            raise RuntimeError(f"{name} must be an integer of at least 0, got {variables[name]!r}")
    rank, world_size, local_rank = (int(variables[name]) for name in _VARIABLES)
    if rank >= world_size:
        raise RuntimeError(f"RANK must be less than WORLD_SIZE, got RANK={rank} and WORLD_SIZE={world_size}")
    if device.type == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise RuntimeError(
                f"every process needs its own GPU: --nproc-per-node must be at most {torch.cuda.device_count()} here, "
                f"got LOCAL_RANK={local_rank}"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    shared, rank, world_size = next(dist.rendezvous("env://"))
    store = PrefixStore("group", fresh_store(shared, rank, world_size, timeout))
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    return Processes(rank, world_size, device, dist.group.WORLD, PrefixStore("meetings", store), hang_seconds)


def fresh_store(store: Store, rank: int, world_size: int, timeout: timedelta = TIMEOUT) -> Store:
    """Agree on an unused prefix of the store: torchrun keeps the addresses of dead ranks through restarts.

    It counts restarts per machine, so ``env://`` alone connects to dead ranks, or hangs. Here each rank sends a random
    word and waits for rank 0 to answer that word with a prefix.
    """
    if rank > 0:
        word = uuid4().hex
        store.set(f"hello {rank}", word)
        store.wait([f"answer {word}"], timeout)
        prefix = store.get(f"answer {word}").decode()
        store.set(f"met {prefix} {rank}", "yes")
        return PrefixStore(prefix, store)
    prefix, missing = uuid4().hex, set(range(1, world_size))
    end = time.monotonic() + timeout.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"processes {sorted(missing)} of {world_size} did not come within {timeout}")
        for other in sorted(missing):  # a word may be from an earlier attempt: answer until the rank has arrived
            if store.check([f"hello {other}"]):
                store.set(f"answer {store.get(f'hello {other}').decode()}", prefix)
            if store.check([f"met {prefix} {other}"]):
                missing.discard(other)
        time.sleep(0.01)
    return PrefixStore(prefix, store)


__getattr__ = renamed_names(globals(), {"main_speaks": "is_main_rank"})

"""Several processes that train one model: finding each other, agreeing, ending together.

    torchrun --nproc-per-node 2 -m rltok_rl.experiments.train compute.strategy=ddp

Shapes: B rows of the batch of all processes, W processes; process r has rows r B/W to (r + 1) B/W.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Store, Work
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from rltok_rl.models.layers import TransformerLayer
from rltok_rl.models.unet import UNet
from rltok_rl.training.checkpoint import put_together, take_apart

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
_PATIENCE = timedelta(seconds=10)
_MEETING = timedelta(minutes=5)


class Refused(Exception):
    """What was asked for is wrong, not the code: the message is all that there is to say."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train together; without arguments, one that is alone.

    As a context, it takes leave of the others at the end of the block. Where the block fails, the process that failed
    first says why and all others end without a word: all that they know is that one was lost. :class:`Refused` is said
    in its own words, anything else with its traceback.

    Args:
        rank: number of this process.
        world_size: W, how many there are.
        device: where this process computes.
        group: for collectives; None where there is one process.
        store: small values that all processes see; None where there is one process.

    Example:
        >>> alone = Processes()
        >>> alone.main, alone.share(6), alone.any(False), alone.mean({"loss": 2.0})
        (True, 6, False, {'loss': 2.0})
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")
    group: ProcessGroup | None = None
    store: Store | None = None

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int]:
        """Which of how many parts of a batch this process has, as ``parallel_rollout`` wants it."""
        return self.rank, self.world_size

    def share(self, num_rows: int, *, name: str = "num_rows") -> int:
        """Rows of this process, B/W.

        Args:
            num_rows: B, rows of all processes.
            name: what the caller calls B, for the message.
        """
        if num_rows < 1 or num_rows % self.world_size:
            raise ValueError(
                f"{name} counts the rows of all processes and must be a multiple of their number, {self.world_size}, "
                f"got {num_rows}"
            )
        return num_rows // self.world_size

    def any(self, flag: bool) -> bool:
        """Whether a flag is set in any process; all get one answer."""
        if self.group is None:
            return flag
        given = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(given, dist.ReduceOp.MAX, group=self.group)
        return bool(given)

    def mean(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Figures averaged over processes; those that are equal everywhere stay what they are.

        Args:
            figures: the same names in the same order in all processes.
        """
        if self.group is None:
            return dict(figures)
        values = torch.tensor(list(figures.values()), dtype=torch.float64, device=self.device)
        return dict(zip(figures, self.average(values).tolist(), strict=True))

    def average(self, values: torch.Tensor) -> torch.Tensor:
        """Numbers averaged over processes, on the device and without waiting for it; those given are written over.

        Args:
            values: [n] float64, which holds the sum of a few equal float32 numbers exactly, so that a W-th of it is
                the number again.
        """
        if self.group is None:
            return values
        dist.all_reduce(values, group=self.group)
        return values / self.world_size

    def broadcast(self, value: Any) -> Any:
        """The main process's value, in all; tensors come on the CPU.

        Args:
            value: what a checkpoint can hold; not looked at in other processes.
        """
        if self.group is None:
            return value
        tensors: dict[str, torch.Tensor] = {}
        sent: list[Any] = [None]
        if self.main:
            skeleton = take_apart(value, tensors, "value")
            sent = [(skeleton, {name: (x.shape, x.dtype) for name, x in tensors.items()})]
        dist.broadcast_object_list(sent, src=0, group=self.group, device=self.device)
        skeleton, kinds = sent[0]
        # One by one: a whole optimizer state that is pickled would be in memory several times.
        for name, (shape, dtype) in kinds.items():
            held = tensors[name] if self.main else torch.empty(shape, dtype=dtype)
            moved = held.to(self.device)
            dist.broadcast(moved, src=0, group=self.group)
            tensors[name] = moved.cpu()
        return put_together(skeleton, tensors)

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.group is None:
            return
        if error is None:
            dist.destroy_process_group()
        elif isinstance(error, Exception):
            if self._first_to_fail():
                if isinstance(error, Refused):
                    print(error, file=sys.stderr, flush=True)
                else:
                    traceback.print_exception(kind, error, trace, file=sys.stderr)
                    print(f"\n{_last_words(error, self.rank, self.world_size)}", file=sys.stderr, flush=True)
                self._ask_store(lambda store: store.set("said", "yes"))
            else:  # the launcher ends all when one has ended: not before the first has had its say
                self._ask_store(lambda store: store.wait(["said"], _PATIENCE))
            raise SystemExit(1) from None

    def _first_to_fail(self) -> bool:
        number = self._ask_store(lambda store: store.add("failed", 1))
        return number is None or number == 1  # where nobody can be asked any more: better said twice than never

    def _ask_store(self, question: Callable[[Store], Any]) -> Any:
        """An answer of the store; None where it went away with the process that held it."""
        assert self.store is not None
        try:
            return question(self.store)
        except RuntimeError:
            return None


def _last_words(error: Exception, rank: int, world_size: int) -> str:
    text = f"process {rank} of {world_size} failed and all end with it: {type(error).__name__}: {error}"
    lost = isinstance(error, RuntimeError) and any(name in str(error).lower() for name in ("gloo", "nccl", "peer"))
    return (
        f"{text}\n(this is how a process that was killed, for want of memory say, looks to another)" if lost else text
    )


def main_speaks() -> bool:
    """Whether this is the main process, or will be: before :func:`init_processes` has met the others."""
    return os.environ.get("RANK", "0") == "0"


def init_processes(device: str | torch.device = "cpu") -> Processes:
    """Meet the other processes that torchrun has started; without torchrun, or with one process, nothing is done.

    On ``cuda`` each process takes the GPU of its number on the machine; collectives are NCCL's there and Gloo's on the
    CPU.

    Args:
        device: where to compute, ``"cpu"`` or ``"cuda"``.
    """
    device = torch.device(device)
    given = {name: os.environ[name] for name in (*_NUMBERS, *_ADDRESS) if name in os.environ}
    if not any(name in given for name in _NUMBERS):
        return Processes(device=device)
    missing = [name for name in (*_NUMBERS, *_ADDRESS) if name not in given]
    # A world of one needs no address.
    if missing and not (given.get("WORLD_SIZE") == "1" and set(missing) <= set(_ADDRESS)):
        raise RuntimeError(
            f"the environment must have all of {[*_NUMBERS, *_ADDRESS]} or none of {[*_NUMBERS]}, got {given} without "
            f"{missing}; start with torchrun, which sets them, or unset them to train in one process"
        )
    rank, world_size, local_rank = (_number(name, given[name]) for name in _NUMBERS)
    if world_size < 1 or rank >= world_size:
        raise RuntimeError(f"RANK must be less than WORLD_SIZE, got RANK={rank} and WORLD_SIZE={world_size}")
    if world_size == 1:
        return Processes(device=device)
    if device.type == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise RuntimeError(
                f"every process needs a GPU of its own: --nproc-per-node must be at most "
                f"{torch.cuda.device_count()} here, got LOCAL_RANK={local_rank}"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    shared, rank, world_size = next(dist.rendezvous("env://"))
    store = fresh_store(shared, rank, world_size)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=rank, world_size=world_size)
    return Processes(rank, world_size, device, dist.group.WORLD, store)


def fresh_store(store: Store, rank: int, world_size: int) -> Store:
    """A part of a store that nobody has written into before; the same for all who ask together.

    torchrun keeps one store through restarts. Addresses of processes that are gone stand in it, and whoever reads one
    before it is written anew waits for nobody. The number of restarts would tell attempts apart on one machine, but
    every machine counts its own. Hence a greeting: each process says a word that was never said before, and takes the
    main process's answer to this very word.

    Args:
        store: seen by all processes.
        rank: of this one.
        world_size: how many there are.
    """
    if rank > 0:
        word = uuid4().hex
        store.set(f"hello {rank}", word)
        store.wait([f"answer {word}"], _MEETING)
        name = store.get(f"answer {word}").decode()
        store.set(f"met {name} {rank}", "yes")
        return dist.PrefixStore(name, store)
    name, missing = uuid4().hex, set(range(1, world_size))
    end = time.monotonic() + _MEETING.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"processes {sorted(missing)} of {world_size} did not come within {_MEETING}")
        for other in sorted(missing):  # one that has greeted may be of an earlier attempt: answer until it is met
            if store.check([f"hello {other}"]):
                store.set(f"answer {store.get(f'hello {other}').decode()}", name)
            if store.check([f"met {name} {other}"]):
                missing.discard(other)
        time.sleep(0.01)
    return dist.PrefixStore(name, store)


def _number(name: str, value: str) -> int:
    if not value.isdigit():
        raise RuntimeError(f"{name} must be a number, got {value!r}")
    return int(value)


class EarlyAverages:
    """Averages whole gradients of a model, each bucket as soon as the backward pass has its last gradient.

    The first update says in which order buckets are filled; from the second one on they are sent in that order, the
    main process's, by all processes. A bucket that is not filled in a pass (where boundaries are drawn at random to
    begin with, say) is averaged after it, with whatever else has a gradient, and the order is taken anew.

    Args:
        model: what is trained.
        group: the processes; None does nothing.
    """

    def __init__(self, model: nn.Module, group: ProcessGroup | None) -> None:
        self._group = group
        whole = [] if group is None else [p for p in model.parameters() if not isinstance(p, DTensor)]
        self._parameters = whole
        self._number = {id(p): number for number, p in enumerate(whole)}
        self._plan: list[list[int]] = []  # numbers of the parameters in each bucket, in the order of sending
        self._came: dict[int, int] = {}  # how many gradients had come before that of each parameter, by its number
        self._under_way: list[tuple[list[Tensor], Tensor, Work]] = []
        self._open = False
        for parameter in whole:
            parameter.register_post_accumulate_grad_hook(self._note)

    @contextmanager
    def last_pass(self, is_last: bool = True) -> Iterator[None]:
        """Within the block, gradients that a parameter gets are final.

        Args:
            is_last: otherwise nothing is sent early.
        """
        self._came, self._under_way, self._open = {}, [], is_last
        try:
            yield
        finally:
            self._open = False

    def finish(self) -> int:
        """Wait for all averages and write them into gradients; what was not sent is averaged now.

        Returns:
            How many buckets had been sent before.
        """
        if self._group is None:
            return 0
        sent, self._under_way = self._under_way, []
        early = {number for numbers in self._plan[: len(sent)] for number in numbers}
        for bucket, flat, work in sent:
            write_average(bucket, flat, work, self._group)
        late = [p for number, p in enumerate(self._parameters) if number not in early and p.grad is not None]
        average_gradients(late, self._group)
        if late and self._came:
            self._make_plan()
        self._came = {}
        return len(sent)

    def _note(self, parameter: Tensor) -> None:
        if not self._open:
            return
        self._came[self._number[id(parameter)]] = len(self._came)
        while len(self._under_way) < len(self._plan):
            numbers = self._plan[len(self._under_way)]
            if any(number not in self._came for number in numbers):
                return
            self._send(numbers)

    @torch.no_grad()
    def _send(self, numbers: list[int]) -> None:
        gradients = self._gradients(numbers)
        flat = torch.cat([gradient.flatten() for gradient in gradients])  # [n]
        self._under_way.append((gradients, flat, dist.all_reduce(flat, group=self._group, async_op=True)))

    def _gradients(self, numbers: list[int]) -> list[Tensor]:
        return [gradient for number in numbers if (gradient := self._parameters[number].grad) is not None]

    def _make_plan(self) -> None:
        """Buckets of all that has a gradient, by when the last of each came; in the main process's order."""
        having = [number for number, p in enumerate(self._parameters) if p.grad is not None]
        plan, start = [], 0
        for bucket in buckets(self._gradients(having)):
            plan.append(having[start : start + len(bucket)])
            start += len(bucket)
        # What got its gradient in another pass is not sent early.
        plan = [numbers for numbers in plan if all(number in self._came for number in numbers)]
        plan.sort(key=lambda numbers: max(self._came[number] for number in numbers))
        agreed = [plan]
        dist.broadcast_object_list(agreed, src=0, group=self._group)
        self._plan = agreed[0]


STRATEGIES = ("none", "ddp", "fsdp")
"""``none`` is one process; ``ddp`` and ``fsdp`` with one process are the same as none."""
BUCKET_BYTES = 32 << 20
"""Gradients are reduced in pieces of about this size: few enough calls, and little memory beside the gradients."""
_CALLED = ("encode", "early_logits", "early_log_prob", "decode", "decode_levels", "final_logits", "final_log_prob")


def prepare_model(model: UNet, strategy: str, processes: Processes) -> None:
    """Make a model, the same in all processes afterwards, ready to be trained by all of them; in place.

    Optimizers are made afterwards: FSDP2 puts pieces in the place of parameters.

    Args:
        model: whole, on the device of its process.
        strategy: one of :data:`STRATEGIES`.
        processes: that train together.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {list(STRATEGIES)}, got {strategy!r}")
    if processes.group is None:
        return
    if strategy == "none":
        raise ValueError(
            f"strategy must be 'ddp' or 'fsdp' with {processes.world_size} processes, got 'none', which is one process"
        )
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, src=0, group=processes.group)
    if strategy == "fsdp":
        _shard(model, processes)


def _shard(model: UNet, processes: Processes) -> None:
    """Cut every module that is called on its own; what a rollout calls is a call of the whole model's.

    Heads and norms are apart because actor and early exit call them outside the byte layers, in any order. Nothing is
    left for the model as a whole: its calls tell FSDP2 what belongs together, the first of a rollout being ``encode``.
    The boundary terms are views of what their projection makes, of which FSDP2 warns; the projection alone is cut.
    """
    mesh = init_device_mesh(processes.device.type, (processes.world_size,))
    layers = [module for module in model.modules() if isinstance(module, TransformerLayer)]
    norms, projection = (model.encoder_norm, model.decoder_norm), model.boundary_head.projection
    routing = (
        [] if model.second_level is None or model.second_level.routing is None else _own(model.second_level.routing)
    )
    for module in (model.embedding, *layers, *norms, projection, *routing, model.early_head, model.final_head, model):
        fully_shard(module, mesh=mesh)
    for name in _CALLED:
        register_fsdp_forward_method(model, name)


def _own(module: nn.Module) -> list[nn.Module]:
    """Parts of a module that have parameters."""
    return [part for part in module.children() if any(True for _ in part.parameters())]


@torch.no_grad()
def average_gradients(parameters: Iterable[Tensor], group: ProcessGroup | None) -> None:
    """Average the gradients of whole parameters over processes; those of pieces are averages already.

    Args:
        parameters: after their backward pass; the same have a gradient in all processes.
        group: the processes; None does nothing.
    """
    if group is None:
        return
    gradients = [p.grad for p in parameters if p.grad is not None and not isinstance(p, DTensor)]
    under_way = []
    for bucket in buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])  # [n]
        under_way.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in under_way:
        write_average(bucket, flat, work, group)


@torch.no_grad()
def write_average(bucket: Sequence[Tensor], total: Tensor, work: dist.Work, group: ProcessGroup) -> None:
    """Wait for a sum over processes, and write the average into the gradients that it was made of.

    Args:
        bucket: the gradients.
        total: [n] their sums, flat, once they are there.
        work: on them.
        group: the processes.
    """
    work.wait()
    parts = total.div_(group.size()).split([gradient.numel() for gradient in bucket])
    for gradient, part in zip(bucket, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in their order, as many together as fit, of one dtype each.

    Args:
        tensors: gradients.
    """
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(x.nbytes for x in bucket)
        if bucket and (size + tensor.nbytes > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def whole(state: Any) -> Any:
    """A state with tensors in the place of pieces, the same whatever the strategy; all processes have to ask.

    Args:
        state: nested dicts, lists and tuples.
    """
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole(value) for value in state)
    return state


def whole_model(model: UNet) -> UNet:
    """A model that one process can run alone: itself, or a copy that is in one piece; all processes have to ask."""
    if not isinstance(model.embedding.weight, DTensor):
        return model
    weights = whole(model.state_dict())
    with torch.device("meta"):
        copy = UNet(model.config)
    copy.load_state_dict(weights, assign=True)
    return copy.train(model.training)


@torch.no_grad()
def load_whole(
    model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Load what :func:`whole` made, cut as the parameters are now.

    Args:
        model: whole or in pieces.
        optimizer: over its parameters.
        weights: the model's state, of one in one piece.
        state: the optimizer's.
    """
    own = dict(model.state_dict())
    model.load_state_dict({name: _cut_like(x, own[name]) if name in own else x for name, x in weights.items()})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        number: {name: _cut_like(x, parameters[number]) for name, x in entry.items()}
        for number, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def _cut_like(value: Any, parameter: Tensor) -> Any:
    """A tensor of a parameter's shape in pieces, if the parameter is; anything else as it is."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)

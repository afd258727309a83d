"""Averages of gradients over processes, under way while the backward pass still runs.

``DistributedDataParallel`` does this for models whose ``forward`` it wraps, which a rollout does not call
(:mod:`rltok_rl.training.sharding`). Parameters tell themselves when their gradient is there. Buckets are those of
:func:`~rltok_rl.training.sharding.average_gradients`, so that results are equal to the last bit: a sum of several
processes depends on where a gradient lies in its bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Work
from torch.distributed.tensor import DTensor

from rltok_rl.training.sharding import average_gradients, buckets, write_average


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

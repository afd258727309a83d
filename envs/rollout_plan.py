"""Which texts a rollout reads, and where their bytes lie in it.

Shapes: B rows, T steps, n texts, L steps of the longest text.

Rows whose text ends early start another one. Each text becomes one row of a forward pass. If no text ends early, texts
are the rows; if lengths differ much, texts of similar length are read together, so that little is computed on padding.
Processes that share a batch each draw the places of all its texts and read their own. They run the model equally often:
with a sharded model, a forward pass is a collective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from rltok_rl.envs.text_env import TextEnv
from torch import Tensor

from rltok_rl.data.windows import Documents, Places, given_windows
from rltok_rl.utils import is_gpu, joined


@dataclass(frozen=True)
class Plan:
    """Texts and their places in a rollout."""

    byte_ids: Tensor  # [n, L + 1]
    steps: Tensor  # [n] decisions in each text within the rollout
    ends: Tensor  # [n] bool, whether the last step reveals the last byte of a document
    cut: Tensor  # [n] bool, whether the last step ends the episode
    row: Tensor  # [n] row of the rollout
    start: Tensor  # [n] step of the rollout at which it begins
    num_steps: int  # T
    num_groups: int  # most forward passes
    aligned: bool  # whether each row of the rollout is one text, in the order of rows
    target_rate: Tensor | None = None  # [n] of models with rate_embedding

    @property
    def longest(self) -> int:
        """L."""
        return self.byte_ids.shape[1] - 1

    def groups(self, *, equal: bool = False) -> list[Plan]:
        """Split into at most ``num_groups`` plans of texts of similar length; with ``equal``, of exactly one length."""
        if self.aligned and (int(self.steps.min()) == self.longest if equal else self.num_groups == 1):
            return [self]
        order = self.steps.argsort(descending=True, stable=True)
        lengths = self.steps[order].tolist()
        starts = group_starts(lengths, factor=1) if equal else group_starts(lengths)[: self.num_groups]
        return [self._select(order[a:b]) for a, b in zip(starts, [*starts[1:], len(order)], strict=True)]

    def _select(self, texts: Tensor) -> Plan:
        """Keep some texts, cut to the longest of them."""
        plan = self._map(lambda x: x[texts])
        in_order = torch.equal(plan.row, torch.arange(len(texts)))  # groups are sorted by length, not by row
        aligned = in_order and bool((plan.start == 0).all())
        return replace(plan, byte_ids=plan.byte_ids[:, : int(plan.steps.max()) + 1], num_groups=1, aligned=aligned)

    def to(self, device: torch.device) -> Plan:
        """Copy the tensors to a device without making the host wait; texts travel as one byte per byte if they can."""
        if device.type == "cpu":
            return self
        largest = int(self.byte_ids.max())  # marks and other special ids need two bytes
        kind = next(kind for kind in (torch.uint8, torch.int16, torch.int64) if largest <= torch.iinfo(kind).max)
        moved = replace(self, byte_ids=self.byte_ids.to(kind))._map(lambda x: to_device(x, device))
        return replace(moved, byte_ids=moved.byte_ids.long())

    def _map(self, function: Callable[[Tensor], Tensor]) -> Plan:
        changed: dict[str, Any] = {name: function(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **changed)

    def to_texts(self, values: Tensor) -> Tensor:
        """Rearrange [B, T] to [n, L]; values past the end of a text are arbitrary."""
        if self.aligned and len(self.row) == len(values):
            return values[:, : self.longest]
        when = self.start[:, None] + torch.arange(self.longest, device=values.device)  # [n, L] step of the rollout
        return values[self.row[:, None], when.clamp(max=self.num_steps - 1)]


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device through pinned memory, without making the host wait."""
    return (x.pin_memory() if is_gpu(device) else x).to(device, non_blocking=True)


def group_starts(steps: list[int], *, factor: int = 2) -> list[int]:
    """Return where groups begin in descending lengths; ``factor`` is the largest ratio of lengths within a group.

    Example:
        >>> group_starts([9, 8, 5, 4, 2, 1])
        [0, 3, 5]
    """
    starts: list[int] = []
    for place, length in enumerate(steps):
        if not starts or length * factor < steps[starts[-1]]:
            starts.append(place)
    return starts


def plan_texts(
    env: TextEnv, max_steps: int, texts: Documents | None, *, stop_at_end: bool, part: tuple[int, int] = (0, 1)
) -> Plan:
    """Draw the texts of a rollout, in the same order as stepping; the plan is on the CPU.

    Args:
        env: the environment.
        max_steps: most steps.
        texts: first texts of the rows; None draws them.
        stop_at_end: end the rollout when any row's episode ends, instead of restarting the row.
        part: (r, W): draw for W times as many rows, and read those of the r-th part.
    """
    index, count = part
    num_rows, window, marks = env.num_rows * count, env.window_bytes, env.model.config.num_marks
    first_texts = None if texts is None else env.mark(given_windows(texts, num_rows, window))
    places: list[Places] = []  # of texts that were drawn
    measured: list[tuple[Tensor, Tensor]] = []  # lengths and ends
    rates: list[Tensor | None] = []

    def draw(num_texts: int) -> Tensor:
        """Draw the next texts [m]; returns their decisions."""
        if first_texts is not None and not measured:
            measured.append((first_texts.lengths, first_texts.ends))
        else:
            places.append(env.pick_places(num_texts))
            lengths, ends = env.source.measure(places[-1], window)
            measured.append((lengths + marks, ends))
        rates.append(env.pick_rates(num_texts))
        return measured[-1][0] - 1

    rows, starts = [torch.arange(num_rows)], [torch.zeros(num_rows, dtype=torch.int64)]
    over = draw(num_rows)  # [B] step at which each row's text ends
    while (now := int(over.min())) < max_steps and not stop_at_end:
        ending = (over == now).nonzero().squeeze(1)
        rows.append(ending)
        starts.append(torch.full_like(ending, now))
        over[ending] += draw(len(ending))
    num_steps = min(max_steps, now) if stop_at_end else max_steps
    row, start = joined(rows), joined(starts)  # [all texts]
    length, ends = (joined(parts) for parts in zip(*measured, strict=True))
    steps = torch.minimum(length - 1, num_steps - start)
    mine: slice | Tensor = slice(None)  # all of them in one process
    sorted_steps = [steps.sort(descending=True).values.tolist()]
    if count > 1:
        part_of = row // env.num_rows
        mine = (part_of == index).nonzero().squeeze(1)
        sorted_steps = [steps[part_of == r].sort(descending=True).values.tolist() for r in range(count)]
    byte_ids = [] if first_texts is None else [first_texts.byte_ids]
    if places:  # texts of the first rows may be given: only in one process, which reads all places
        chosen = Places.cat(places)[mine]
        byte_ids.append(env.mark(env.source.read(chosen, window)).byte_ids)
    drawn_rates = [rate for rate in rates if rate is not None]
    return Plan(
        byte_ids=joined(byte_ids)[:, : int(steps[mine].max()) + 1],
        steps=steps[mine],
        ends=ends[mine],
        cut=(steps == length - 1)[mine],
        row=(row - index * env.num_rows)[mine],
        start=start[mine],
        num_steps=num_steps,
        num_groups=min(len(group_starts(lengths)) for lengths in sorted_steps),
        aligned=bool((start[mine] == 0).all()),
        target_rate=joined(drawn_rates)[mine] if drawn_rates else None,
    )


def step_places(groups: list[Plan], num_rows: int) -> Tensor | None:
    """Return the index [B * T] of each step of a rollout among the n x L places of all groups; None for identity."""
    if len(groups) == 1 and groups[0].aligned:
        return None
    num_steps = groups[0].num_steps
    places = torch.empty(num_rows * num_steps, dtype=torch.int64, device=groups[0].row.device)
    before = 0
    for plan in groups:
        offset = torch.arange(plan.longest, device=plan.row.device)
        inside = (offset < plan.steps[:, None]).flatten()
        step = (plan.row * num_steps + plan.start)[:, None] + offset  # [n, L]
        places[step.flatten()[inside]] = before + inside.nonzero().squeeze(1)
        before += len(inside)
    return places

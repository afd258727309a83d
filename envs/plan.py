"""Which texts a rollout reads, and where each of their bytes lies in it.

Shapes: B rows, T steps, n texts, L steps of the longest text.

Rows whose text ends before the rollout does start another one. Each text, from its first byte to its end, becomes one
row of a forward pass, so that texts never see each other. Where no text ends early, texts are the rows and nothing is
moved. Where lengths differ much, texts of about one length are read together, so that little is computed on padding.

Several processes that share a batch each draw the places of all its texts, and read their own. They run the model
equally often: where a model lies in pieces, a forward pass is something that all of them make together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rltok_rl.data.given import given_windows
from rltok_rl.data.windows import Places

if TYPE_CHECKING:
    from rltok_rl.envs.byte_boundary import ByteBoundaryEnv, Texts


@dataclass(frozen=True)
class Plan:
    """Texts, and their places in a rollout."""

    byte_ids: Tensor  # [n, L + 1]
    steps: Tensor  # [n] decisions in each text, as far as the rollout goes
    ends: Tensor  # [n] bool, whether its last step reveals the last byte of a document
    cut: Tensor  # [n] bool, whether its last step ends the episode at all
    row: Tensor  # [n] row of the rollout
    start: Tensor  # [n] step of the rollout at which it begins
    num_steps: int  # T
    num_groups: int  # how often the model is run at most
    aligned: bool  # whether each row of the rollout is one text, and texts are in the order of rows
    target_rate: Tensor | None = None  # [n] where the model is told the rate of each text

    @property
    def longest(self) -> int:
        """L."""
        return self.byte_ids.shape[1] - 1

    def groups(self, *, equal: bool = False) -> list[Plan]:
        """Plans of texts that are read together, in at most ``num_groups`` of about one length each.

        Args:
            equal: read texts of one length together only, in as many groups as that takes, so that none is padded.
        """
        if self.aligned and (int(self.steps.min()) == self.longest if equal else self.num_groups == 1):
            return [self]
        order = self.steps.argsort(descending=True, stable=True)
        lengths = self.steps[order].tolist()
        first = group_starts(lengths, factor=1) if equal else group_starts(lengths)[: self.num_groups]
        return [self._of(order[a:b]) for a, b in zip(first, [*first[1:], len(order)], strict=True)]

    def _of(self, texts: Tensor) -> Plan:
        """The plan of some texts, cut to the longest of them."""
        picked = {name: getattr(self, name)[texts] for name in ("steps", "ends", "cut", "row", "start")}
        if self.target_rate is not None:
            picked["target_rate"] = self.target_rate[texts]
        longest = int(picked["steps"].max())
        # Groups are in the order of lengths, which need not be that of rows.
        in_order = torch.equal(picked["row"], torch.arange(len(texts)))
        aligned = in_order and bool((picked["start"] == 0).all())
        return replace(self, byte_ids=self.byte_ids[texts, : longest + 1], num_groups=1, aligned=aligned, **picked)

    def to(self, device: torch.device) -> Plan:
        """The plan with its tensors on a device; the host does not wait for it.

        Plans are made on the CPU, where looking at numbers is free. Memory that is not pinned has been read when a copy
        that does not block returns, so that it may be written over.
        """
        names = ("byte_ids", "steps", "ends", "cut", "row", "start", "target_rate")
        given = {name: getattr(self, name) for name in names}
        moved: dict[str, Any] = {
            name: None if x is None else x.to(device, non_blocking=True) for name, x in given.items()
        }
        return replace(self, **moved)

    def to_texts(self, values: Tensor) -> Tensor:
        """[B, T] to [n, L]; past the end of a text, anything."""
        if self.aligned and len(self.row) == len(values):
            return values[:, : self.longest]
        when = self.start[:, None] + torch.arange(self.longest, device=values.device)  # [n, L] step of the rollout
        return values[self.row[:, None], when.clamp(max=self.num_steps - 1)]


def group_starts(steps: list[int], *, factor: int = 2) -> list[int]:
    """Where groups begin in lengths that fall: a text at least half as long as the first of a group belongs to it.

    Args:
        steps: lengths, the longest first.
        factor: how often a text may fit into the first of its group; 1 for groups of one length.

    Example:
        >>> group_starts([9, 8, 5, 4, 2, 1])
        [0, 3, 5]
    """
    found: list[int] = []
    for place, length in enumerate(steps):
        if not found or length * factor < steps[found[-1]]:
            found.append(place)
    return found


def plan_texts(
    env: ByteBoundaryEnv, max_steps: int, texts: Texts | None, *, stop_at_end: bool, part: tuple[int, int] = (0, 1)
) -> Plan:
    """Draw the texts of a rollout in the order in which stepping would draw them.

    Args:
        env: the environment.
        max_steps: steps at most.
        texts: first texts of the rows; None draws them.
        stop_at_end: end the rollout when any row's episode ends, instead of starting the row anew.
        part: (r, W): draw for W times as many rows, and read those of the r-th W-th of them.

    Returns:
        The plan, on the CPU.
    """
    index, count = part
    num_rows = env.num_rows * count
    window = env.num_steps + 1
    given = None if texts is None else given_windows(texts, num_rows, window)
    picked: list[Places] = []  # of all texts but those that were given
    rows, starts = [torch.arange(num_rows)], [torch.zeros(num_rows, dtype=torch.int64)]
    lengths: list[Tensor] = []
    ends: list[Tensor] = []
    rates: list[Tensor | None] = []  # of all texts

    def measure(num_texts: int) -> None:
        picked.append(env.pick_places(num_texts))
        length, end = env.source.measure(picked[-1], window)
        lengths.append(length)
        ends.append(end)
        rates.append(env.pick_rates(num_texts))

    if given is None:
        measure(num_rows)
    else:
        lengths, ends = [given.lengths], [given.ends]
        rates.append(env.pick_rates(num_rows))
    over = lengths[0] - 1  # [B] step at which each row's text ends
    while int(over.min()) < max_steps and not stop_at_end:
        now = int(over.min())
        ending = (over == now).nonzero().squeeze(1)
        measure(len(ending))
        rows.append(ending)
        starts.append(torch.full_like(ending, now))
        over[ending] += lengths[-1] - 1
    num_steps = min(max_steps, int(over.min())) if stop_at_end else max_steps
    row, start, length = torch.cat(rows), torch.cat(starts), torch.cat(lengths)  # [all texts]
    steps = torch.minimum(length - 1, num_steps - start)
    of = row // env.num_rows  # whose text it is
    mine = (of == index).nonzero().squeeze(1)
    sorted_steps = (steps[of == r].sort(descending=True).values.tolist() for r in range(count))
    num_groups = min(len(group_starts(one)) for one in sorted_steps)
    own = [] if given is None else [given.byte_ids]  # given texts come first
    before = 0 if given is None else num_rows
    if picked:
        own.append(env.source.read(Places.cat(picked)[mine[mine >= before] - before], window).byte_ids)
    told = [rate for rate in rates if rate is not None]
    return Plan(
        byte_ids=torch.cat(own)[:, : int(steps[mine].max()) + 1],
        steps=steps[mine],
        ends=torch.cat(ends)[mine],
        cut=(steps == length - 1)[mine],
        row=(row - index * env.num_rows)[mine],
        start=start[mine],
        num_steps=num_steps,
        num_groups=num_groups,
        aligned=bool((start[mine] == 0).all()),
        target_rate=torch.cat(told)[mine] if told else None,
    )


def where_steps_lie(groups: list[Plan], num_rows: int) -> Tensor | None:
    """Where each step of a rollout lies among the places of its texts.

    Args:
        groups: the texts, group by group, on the CPU; each has n x L places.
        num_rows: B.

    Returns:
        [B * T] indices into all places, one group after the other; None where they are the same.
    """
    if len(groups) == 1 and groups[0].aligned:
        return None
    num_steps = groups[0].num_steps
    found = torch.empty(num_rows * num_steps, dtype=torch.int64, device=groups[0].row.device)
    before = 0
    for plan in groups:
        place = torch.arange(plan.longest, device=plan.row.device)
        inside = (place < plan.steps[:, None]).flatten()
        step = (plan.row * num_steps + plan.start)[:, None] + place  # [n, L]
        found[step.flatten()[inside]] = before + inside.nonzero().squeeze(1)
        before += len(inside)
    return found

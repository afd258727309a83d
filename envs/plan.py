"""Which texts a rollout reads, and where each of their bytes lies in it.

Shapes: B rows, T steps, n texts, L steps of the longest text.

Rows whose text ends before the rollout does start another one. Each text, from its first byte to its end, becomes one
row of a forward pass, so that texts never see each other. Where no text ends early, texts are the rows and nothing is
moved. Where lengths differ much, texts of about one length are read together, so that little is computed on padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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

    @property
    def aligned(self) -> bool:
        """Whether each row of the rollout is one text."""
        return bool((self.start == 0).all())

    @property
    def longest(self) -> int:
        """L."""
        return self.byte_ids.shape[1] - 1

    def groups(self, *, equal: bool = False) -> list[Plan]:
        """Plans of texts that are read together: at least half as long as the longest of them, or all of one length.

        Args:
            equal: read texts of one length together only, so that none is padded.
        """
        factor = 1 if equal else 2
        if self.aligned and int(self.steps.min()) * factor >= self.longest:
            return [self]
        order = self.steps.argsort(descending=True, stable=True)
        lengths, parts, first = self.steps[order].tolist(), [], 0
        for place, length in enumerate(lengths):
            if length * factor < lengths[first]:
                parts.append(order[first:place])
                first = place
        parts.append(order[first:])
        return [self._of(part) for part in parts]

    def _of(self, texts: Tensor) -> Plan:
        """The plan of some texts, cut to the longest of them."""
        picked = {name: getattr(self, name)[texts] for name in ("steps", "ends", "cut", "row", "start")}
        longest = int(picked["steps"].max())
        return Plan(byte_ids=self.byte_ids[texts, : longest + 1], num_steps=self.num_steps, **picked)

    def to_texts(self, values: Tensor) -> Tensor:
        """[B, T] to [n, L]; past the end of a text, anything."""
        if self.aligned and len(self.row) == len(values):
            return values[:, : self.longest]
        when = self.start[:, None] + torch.arange(self.longest, device=values.device)  # [n, L] step of the rollout
        return values[self.row[:, None], when.clamp(max=self.num_steps - 1)]


def plan_texts(
    env: ByteBoundaryEnv, max_steps: int, texts: Texts | None, *, stop_at_end: bool, part: tuple[int, int] = (0, 1)
) -> Plan:
    """Draw the texts of a rollout in the order in which stepping would draw them.

    Args:
        env: the environment.
        max_steps: steps at most.
        texts: first texts of the rows; None draws them.
        stop_at_end: end the rollout when any row's episode ends, instead of starting the row anew.
        part: (r, W): draw for W times as many rows, and keep the r-th W-th of them.
    """
    index, count = part
    num_rows = env.num_rows * count
    windows = [env.draw_windows(num_rows, texts)]
    rows, starts = [torch.arange(num_rows)], [torch.zeros(num_rows, dtype=torch.int64)]
    over = windows[0].lengths - 1  # [B] step at which each row's text ends
    while int(over.min()) < max_steps and not stop_at_end:
        now = int(over.min())
        ending = (over == now).nonzero().squeeze(1)
        windows.append(env.draw_windows(len(ending)))
        rows.append(ending)
        starts.append(torch.full_like(ending, now))
        over[ending] += windows[-1].lengths - 1
    num_steps = min(max_steps, int(over.min())) if stop_at_end else max_steps
    row = torch.cat(rows) - index * env.num_rows
    mine = ((row >= 0) & (row < env.num_rows)).nonzero().squeeze(1)
    start, length = torch.cat(starts)[mine], torch.cat([w.lengths for w in windows])[mine]
    steps = torch.minimum(length - 1, num_steps - start)
    longest = int(steps.max())
    return Plan(
        byte_ids=torch.cat([w.byte_ids for w in windows])[mine, : longest + 1].to(env.device),
        steps=steps.to(env.device),
        ends=torch.cat([w.ends for w in windows])[mine].to(env.device),
        cut=(steps == length - 1).to(env.device),
        row=row[mine].to(env.device),
        start=start.to(env.device),
        num_steps=num_steps,
    )


def where_steps_lie(groups: list[Plan], num_rows: int) -> Tensor | None:
    """Where each step of a rollout lies among the places of its texts.

    Args:
        groups: the texts, group by group; each has n x L places.
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

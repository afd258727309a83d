"""Figures of updates, left where they were computed until they are wanted, and then fetched in one copy.

A figure that the host looks at is a wait: an accelerator works through a queue, and ``float(loss)`` ends only when all
before it is done. An update therefore leaves its figures on the device, and what they decide at once (whether a
gradient is a number) is decided there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rltok_rl.training.distributed import Processes


@dataclass(frozen=True)
class Told:
    """An update, as it is told of."""

    update: int
    """Its number, from 1."""
    bytes_done: int
    """Bytes trained on with it, and before."""
    figures: dict[str, float]
    warnings: list[str]
    """What the alarms said."""


@dataclass
class Pending:
    """An update whose figures are still where they were computed."""

    update: int
    bytes_done: int
    lr: float
    names: list[list[str]] = field(default_factory=list)
    """Of each optimizer step that it made."""
    values: list[Tensor] = field(default_factory=list)
    """[n] float64, as many as there are names."""

    def add(self, figures: Mapping[str, Tensor]) -> None:
        """Note the figures of an optimizer step.

        Args:
            figures: tensors of one element each.
        """
        self.names.append(list(figures))
        # Float64 holds what is narrower as it is, so that nothing is lost on the way.
        wide = [value.detach().double().reshape(()) for value in figures.values()]
        device = next((value.device for value in wide if value.device.type != "cpu"), torch.device("cpu"))
        self.values.append(torch.stack([value.to(device, non_blocking=True) for value in wide]))


def fetch(pending: Sequence[Pending], processes: Processes) -> list[list[dict[str, float]]]:
    """The figures of updates: of each, those of its optimizer steps; the host waits once.

    Args:
        pending: the updates, the same in all processes.
        processes: over which figures are averaged.
    """
    if not pending:
        return []
    values = torch.cat([one for update in pending for one in update.values])
    numbers = iter(processes.average(values).tolist())
    return [[{name: next(numbers) for name in names} for names in update.names] for update in pending]


def broken(figures: Mapping[str, Tensor], before: Tensor | None) -> Tensor:
    """Whether a step must not be made: 1 where its loss or its gradient is no number, or an earlier one's was; else 0.

    Args:
        figures: of the step.
        before: what this said of the step before; None of the first.
    """
    watched = torch.stack(
        [figures[name].detach().float().reshape(()) for name in ("loss", "grad_norm") if name in figures]
    )
    wrong = (~watched.isfinite()).any().float()
    return wrong if before is None else torch.maximum(before, wrong)

"""A file with a line of JSON for each thing that happened, by update."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltok_rl.training.atomic_files import replace_text
from rltok_rl.training.parallel import Processes


class UpdateLog:
    """A file of JSON lines, each with the update it belongs to.

    A training that resumes goes on after the last update that it keeps, as
    :class:`~rltok_rl.training.progress.MetricsTable` does: lines of updates that will be done again are cut, and so is
    a line that a killed process left half written.

    Args:
        path: of the file; made with the first line.
        resume_after: the last update to keep; None begins anew and refuses a file that is there.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "looks.jsonl"
        >>> log = UpdateLog(path)
        >>> for update in (0, 10, 20):
        ...     log.add(update, rate=0.5)
        >>> UpdateLog(path, resume_after=10).updates
        [0, 10]
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = path
        if not path.exists():
            return
        if resume_after is None:
            raise FileExistsError(f"{path} holds another run; resume it, or choose another folder")
        kept = [line for line in read_lines(path) if line["update"] <= resume_after]
        if kept:
            replace_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        else:
            path.unlink()

    @property
    def updates(self) -> list[int]:
        """Of every line."""
        return [line["update"] for line in self.read()]

    def add(self, update: int, **content: Any) -> None:
        """Write a line.

        Args:
            update: number of the update.
            **content: what JSON can hold.
        """
        with self.path.open("a") as file:
            file.write(json.dumps({"update": update, **content}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return read_lines(self.path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of :class:`UpdateLog` that are whole; none where there is no file.

    Args:
        path: of the file.
    """
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # half written: a process was killed, and nothing comes after it
            break
    return found


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

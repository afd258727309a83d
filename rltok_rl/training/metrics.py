"""Metrics of updates: how they are fetched from the device, FLOPs, and files with a line per update."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rltok_rl.agents.segmenters import Segmenter, own_parameters
from rltok_rl.models.flops import update_flops
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import JointLoss
from rltok_rl.renamed import RenamedAttribute
from rltok_rl.training.alarms import Alarms
from rltok_rl.training.atomic_files import replace_text
from rltok_rl.training.distributed import Processes

_LAST_EPOCH = ("ESS", "kl_approx", "clip_fraction")  # how far the policy has moved


@dataclass(frozen=True)
class UpdateMetrics:
    """Metrics and warnings of one update."""

    update: int
    """Its number, from 1."""
    bytes_done: int
    """Bytes trained on so far, this update included."""
    metrics: dict[str, float]
    warnings: list[str]
    """Messages of the alarms."""
    figures = RenamedAttribute("metrics")


@dataclass
class Pending:
    """An update whose metrics are still on the device."""

    update: int
    bytes_done: int
    lr: float
    names: list[list[str]] = field(default_factory=list)
    """Of each optimizer step."""
    values: list[Tensor] = field(default_factory=list)
    """Of each optimizer step, [n] float64, which holds narrower numbers exactly."""

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Append the metrics of an optimizer step, tensors of one element each."""
        self.names.append(list(metrics))
        wide = [value.detach().double().reshape(()) for value in metrics.values()]
        device = next((value.device for value in wide if value.device.type != "cpu"), torch.device("cpu"))
        self.values.append(torch.stack([value.to(device, non_blocking=True) for value in wide]))


def fetch(
    pending: Sequence[Pending], processes: Processes, alarms: Alarms
) -> Iterator[tuple[Pending, dict[str, float], list[str]]]:
    """Yield each update with its metrics, averaged over processes, and its warnings; the host waits once.

    Of further PPO epochs, losses and gradient norms are checked, and the last epoch's policy metrics reported.
    """
    if not pending:
        return
    values = torch.cat([step for update in pending for step in update.values])
    numbers = iter(processes.average(values).tolist())
    for update in pending:
        metrics, *epochs = [{name: next(numbers) for name in names} for names in update.names]
        warnings = alarms.check(metrics, update.update)
        for epoch in epochs:  # alarms count a batch once
            losses: dict[str, float] = {name: epoch[name] for name in ("loss", "grad_norm") if name in epoch}
            warnings += alarms.check(losses, update.update)
            metrics |= {name: epoch[name] for name in _LAST_EPOCH if name in epoch}
        yield update, {**metrics, "lr": update.lr}, warnings


def is_broken(metrics: Mapping[str, Tensor], before: Tensor | None) -> Tensor:
    """Return 1 if the loss or the gradient norm of this or an earlier step is not finite, else 0; on the device.

    Args:
        metrics: of the step.
        before: the result of the step before; None for the first.
    """
    watched = [metrics[name].detach().float().reshape(()) for name in ("loss", "grad_norm") if name in metrics]
    wrong = (~torch.stack(watched).isfinite()).any().float()
    return wrong if before is None else torch.maximum(before, wrong)


@dataclass(frozen=True)
class UpdateFlops:
    """FLOPs of an update's passes, and of the trials of an estimator, per byte, per token and per token of tokens."""

    passes: tuple[float, ...]
    trials: tuple[float, ...] = (0.0, 0.0, 0.0)

    @classmethod
    def of(cls, model: UNet, loss: JointLoss, segmenter: Segmenter | None = None) -> UpdateFlops:
        """Count them, before the model is sharded. Trials are those of the policy term's estimator, if it has any."""
        policy = loss.terms["policy"] if "policy" in loss.terms else None
        trial_flops = getattr(getattr(policy, "_value_estimator", None), "flops", None)
        units = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # a byte, a token, a token of tokens
        per_byte, *levels = [update_flops(model, n, tokens, num_second=second) for n, tokens, second in units]
        if segmenter is not None:
            per_byte += 6.0 * segmenter_matrices(segmenter, model)
        if trial_flops is None:
            return cls((per_byte, *levels))
        trials = [trial_flops(n, tokens, num_second=second) for n, tokens, second in units]
        return cls((per_byte, *levels), tuple(trials))

    def total(self, costs: tuple[float, ...], num_bytes: float, rate: float, second_rate: float = 0.0) -> float:
        """Return the FLOPs of an update.

        Args:
            costs: ``passes`` or ``trials``.
            num_bytes: bytes of the batch.
            rate: tokens per byte, with or without padding.
            second_rate: tokens of tokens per token, likewise.
        """
        per_byte, per_token, per_second = costs
        return num_bytes * (per_byte + rate * (per_token + per_second * second_rate))


def segmenter_matrices(segmenter: Segmenter, model: UNet) -> int:
    """Count the entries of a segmenter's weight matrices that a byte passes, without those of the model.

    Example:
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> from rltok_rl.models import preset
        >>> model = UNet(preset("tiny"))
        >>> segmenter_matrices(make_segmenter("hnet", model), model) == 3 * 64**2
        True
    """
    ignored = {id(m.weight) for m in segmenter.modules() if isinstance(m, nn.Embedding)}
    # A byte passes one of the alternatives.
    ignored |= {id(p) for other in segmenter.alternatives[1:] for p in other.parameters()}
    return sum(p.numel() for p in own_parameters(segmenter, model) if p.dim() == 2 and id(p) not in ignored)


class UpdateLog:
    """A file of JSON lines, each with the number of its update.

    Args:
        path: the file, written with the first line.
        resume_after: the last update to keep, without lines that a killed process left half written; None starts a new
            file, and is an error if it exists.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "samples.jsonl"
        >>> log = UpdateLog(path)
        >>> for update in (0, 10, 20):
        ...     log.add(update, rate=0.5)
        >>> UpdateLog(path, resume_after=10).updates
        [0, 10]
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = path
        lines = _kept(path, read_lines, resume_after)
        if lines:
            replace_text(path, "".join(json.dumps(line) + "\n" for line in lines))

    @property
    def updates(self) -> list[int]:
        """The update of every line."""
        return [line["update"] for line in self.read()]

    def add(self, update: int, **content: Any) -> None:
        """Append a line of JSON values."""
        with self.path.open("a") as file:
            file.write(json.dumps({"update": update, **content}) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Return all lines."""
        return read_lines(self.path)


class MetricsTable:
    """A CSV file with a line per update, written before the next update begins.

    Args:
        path: the file, written with the first line.
        resume_after: the last update to keep; None starts a new file, and is an error if it exists.
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = path
        rows = _kept(path, _whole_rows, resume_after)
        self.columns = list(rows[0]) if rows else []
        if rows:
            text = io.StringIO()
            writer = csv.DictWriter(text, self.columns)
            writer.writeheader()
            writer.writerows(rows)
            replace_text(path, text.getvalue())

    def add(self, update: int, bytes_done: int, metrics: Mapping[str, float]) -> None:
        """Append a line; the names of the metrics are the same in all lines."""
        row = {"update": update, "bytes": bytes_done, **metrics}
        is_first = not self.columns
        self.columns = self.columns or list(row)
        if set(row) != set(self.columns):
            raise ValueError(f"metrics must be {self.columns[2:]}, got {list(metrics)}")
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            if is_first:
                writer.writeheader()
            writer.writerow(row)

    def read(self) -> dict[str, list[float]]:
        """Return all lines, one list per column."""
        return read_table(self.path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of an :class:`UpdateLog`; none if there is no file."""
    lines: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:  # half written by a process that was killed, so the last
            break
    return lines


def read_table(path: Path) -> dict[str, list[float]]:
    """Read the complete lines of a :class:`MetricsTable`, one list per column; none if there is no file."""
    rows = _whole_rows(path) if path.exists() else []
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else [])}


def _whole_rows(path: Path) -> list[dict[str, str]]:
    text = path.read_text()
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def _kept(path: Path, read: Any, resume_after: int | None) -> list[dict[str, Any]]:
    """Lines up to the update that a run resumes after; the file is deleted if there are none."""
    if not path.exists():
        return []
    if resume_after is None:
        raise FileExistsError(f"{path} holds another run; resume it, or choose another folder")
    lines = [line for line in read(path) if int(line["update"]) <= resume_after]
    if not lines:
        path.unlink()
    return lines

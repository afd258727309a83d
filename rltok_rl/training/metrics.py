"""Metrics of updates: how they are fetched from the device, FLOPs, and files with a line per update."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rltok_rl.agents.segmenters import Segmenter, own_parameters
from rltok_rl.data.disk import replace_text
from rltok_rl.data.languages import Language
from rltok_rl.foreign import MOST_LINES, read_limited
from rltok_rl.functional.episodes import NUM_MOMENTS, ratio_moments, ratio_with_error
from rltok_rl.models.flops import count_matrices, decoding_flops, scoring_flops, update_flops
from rltok_rl.models.unet import UNet
from rltok_rl.objectives import JointLoss
from rltok_rl.renamed import RenamedAttribute
from rltok_rl.training.alarms import Alarms
from rltok_rl.training.distributed import Processes
from rltok_rl.utils import joined

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
    state_to_repeat: dict[str, Any] | None = None
    """The state before it, if it may have to be repeated."""
    judged: bool = True
    """Whether advantages were computed."""
    tried: bool = True
    """Whether the estimator's trials ran."""
    warnings: list[str] = field(default_factory=list)
    """Warnings besides those of the alarms."""
    names: list[list[str]] = field(default_factory=list)
    """Of each optimizer step."""
    values: list[Tensor] = field(default_factory=list)
    """Of each optimizer step, [n] float64, which holds narrower numbers exactly."""
    row_sums: list[dict[str, Tensor]] = field(default_factory=list)
    """Of each rollout, sums [B, 2] of returns by metric."""
    texts: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Of each rollout on a language, bytes and their log-likelihoods."""

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Append the metrics of an optimizer step, tensors of one element each."""
        self.names.append(list(metrics))
        values = [value.detach().reshape(()) for value in metrics.values()]
        if len({value.dtype for value in values}) > 1:
            values = [value.double() for value in values]
        device = next((value.device for value in values if value.device.type != "cpu"), torch.device("cpu"))
        self.values.append(torch.stack([value.to(device, non_blocking=True) for value in values]).double())

    def moments(self, language: Language | None) -> tuple[dict[str, Tensor], int]:
        """Return moments [5] of the returns by metric, with the share of a language's optimum, and the rows."""
        sums = {name: joined([part[name] for part in self.row_sums]) for name in self.row_sums[0]}
        if language is not None:
            byte_ids, log_prob = (joined(parts) for parts in zip(*self.texts, strict=True))
            sums["share"] = language.share_sums(byte_ids, log_prob).to(byte_ids.device, non_blocking=True)
        moments = ratio_moments(torch.stack([*sums.values()]))  # [metrics, 5]
        return dict(zip(sums, moments.unbind(), strict=True)), len(sums["reward"])


def fetch(
    pending: Sequence[Pending], processes: Processes, alarms: Alarms, language: Language | None = None
) -> Iterator[UpdateMetrics]:
    """Yield the metrics of each update, averaged over processes, and its warnings; the host waits once.

    Returns have standard errors over rows; on a ``language``, the share of its optimum is added.

    Stops after the first update whose tokens overflowed their room; its metric ``token_need`` is the factor by which,
    else 0. Alarms check losses and gradient norms of further PPO epochs; policy metrics are those of the last epoch.
    """
    if not pending:
        return
    returns = [update.moments(language) for update in pending]
    parts = zip(pending, returns, strict=True)
    values = torch.cat([part for update, (moments, _) in parts for part in (*update.values, *moments.values())])
    numbers = iter(processes.average(values).tolist())
    for update, (moments, num_rows) in zip(pending, returns, strict=True):
        metrics, *epochs = [{name: next(numbers) for name in names} for names in update.names]
        if metrics.get("token_need", 0.0) > 0:  # nothing else of it counts: the trainer repeats it
            yield UpdateMetrics(update.update, update.bytes_done, metrics, [])
            return
        for name in moments:
            ratio = ratio_with_error([next(numbers) for _ in range(NUM_MOMENTS)], num_rows * processes.world_size)
            metrics[name], metrics[f"{name}_standard_error"] = ratio
        warnings = update.warnings + alarms.check(metrics, update.update)
        for epoch in epochs:  # alarms count a batch once
            losses: dict[str, float] = {name: epoch[name] for name in ("loss", "grad_norm") if name in epoch}
            warnings += alarms.check(losses, update.update)
            metrics |= {name: epoch[name] for name in _LAST_EPOCH if name in epoch}
        yield UpdateMetrics(update.update, update.bytes_done, {**metrics, "lr": update.lr}, warnings)


def is_broken(metrics: Mapping[str, Tensor], before: Tensor | None) -> Tensor:
    """Return 1 if a step's loss or gradient norm is not finite, its tokens lack room, or ``before`` is 1, else 0."""
    watched = [metrics[name].detach().float().reshape(()) for name in ("loss", "grad_norm") if name in metrics]
    wrong = (0.0 * torch.stack(watched)).sum().isnan()  # 0 times infinity is NaN too
    wrong = (wrong | (metrics["token_need"] > 0) if "token_need" in metrics else wrong).float()
    return wrong if before is None else torch.maximum(before, wrong)


@dataclass(frozen=True)
class UpdateFlops:
    """FLOPs of an update's parts, each per byte, per token, and per token of tokens."""

    passes: tuple[float, ...]
    trials: tuple[float, ...] = (0.0, 0.0, 0.0)
    reference: tuple[float, ...] = (0.0, 0.0, 0.0)
    learning: tuple[float, ...] = (0.0, 0.0, 0.0)

    @classmethod
    def of(
        cls,
        model: UNet,
        loss: JointLoss,
        segmenter: Segmenter | None = None,
        *,
        reference: bool = False,
        policy_epochs: int = 1,
    ) -> UpdateFlops:
        """Count them, before the model is sharded.

        Trials are those of the policy term's estimator, if it has any. A ``reference`` is one decoding of every
        rollout, counted at its rate. ``learning`` is the critic, the fit of a control variate, and the encoder and the
        boundary head in further ``policy_epochs``. Updates without advantages have neither trials nor learning.
        """
        estimator = loss.policy_estimator
        trial_flops = getattr(estimator, "flops", None)
        critic = getattr(estimator, "value_network", None)
        values = 0.0 if critic is None else 2.0 * count_matrices(critic)  # one pass
        # The estimator reads values before and after each step once; every epoch trains critic and policy.
        learning = 2 * values + 3 * policy_epochs * values + 3 * (policy_epochs - 1) * scoring_flops(model, 1)
        fit_flops = getattr(estimator, "fit_flops", None)
        learning += 0.0 if fit_flops is None else fit_flops(model.config.width)
        units = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # a byte, a token, a token of tokens
        per_byte, *levels = [update_flops(model, n, tokens, num_second=second) for n, tokens, second in units]
        if segmenter is not None:
            per_byte += 6.0 * segmenter_matrices(segmenter, model)
        decoding = partial(decoding_flops, model) if reference else None
        trials, decodings = (
            tuple(0.0 if count is None else count(n, tokens, num_second=second) for n, tokens, second in units)
            for count in (trial_flops, decoding)
        )
        return cls((per_byte, *levels), trials, decodings, (learning, 0.0, 0.0))

    @property
    def parts(self) -> tuple[tuple[float, ...], ...]:
        """All parts, which add up to an update."""
        return self.passes, self.trials, self.reference, self.learning

    def total(self, costs: tuple[float, ...], num_bytes: float, rate: float, second_rate: float) -> float:
        """Return the FLOPs of an update, from its tokens per byte and its tokens of tokens per token."""
        per_byte, per_token, per_second = costs
        return num_bytes * (per_byte + rate * (per_token + per_second * second_rate))


def segmenter_matrices(segmenter: Segmenter, model: UNet) -> int:
    """Count the entries of a segmenter's weight matrices that a byte passes, without those of the model."""
    ignored = {id(m.weight) for m in segmenter.modules() if isinstance(m, nn.Embedding)}
    # A byte passes one of the alternatives.
    ignored |= {id(p) for other in segmenter.alternatives[1:] for p in other.parameters()}
    return sum(p.numel() for p in own_parameters(segmenter, model) if p.dim() == 2 and id(p) not in ignored)


class UpdateLog:
    """A file of JSON lines, each with the number of its update, written with the first line.

    ``resume_after`` is the last update to keep; None starts a new file, and is an error if it exists.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "samples.jsonl"
        >>> log = UpdateLog(path)
        >>> for update in (0, 10, 20):
        ...     log.add(update, rate=0.5)
        >>> log = UpdateLog(path, resume_after=10)
        >>> [line["update"] for line in read_lines(path)]
        [0, 10]
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = path
        _cut(path, lambda line: int(json.loads(line)["update"]), resume_after)

    def add(self, update: int, **content: Any) -> None:
        """Append a line of JSON values."""
        with self.path.open("a") as file:
            file.write(json.dumps({"update": update, **content}) + "\n")


class MetricsTable:
    """A CSV file with a line per update, written before the next update begins; resumed as an :class:`UpdateLog`."""

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = path
        header = _cut(path, lambda line: int(line.partition(",")[0]), resume_after, header=1)
        self.columns = next(csv.reader(header), [])

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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of an :class:`UpdateLog`; none if there is no file."""
    try:
        return [json.loads(line) for line in _complete_lines(path)]
    except RecursionError:
        raise ValueError(f"{path} must hold a line of JSON per update, got one with too many levels") from None


def read_table(path: Path) -> dict[str, list[float]]:
    """Read the complete lines of a :class:`MetricsTable`, one list per column; none if there is no file."""
    rows = list(csv.DictReader(_complete_lines(path)))
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else [])}


def _complete_lines(path: Path) -> list[str]:
    """Lines with their ends, without one that a killed process left half written."""
    lines = read_limited(path, MOST_LINES).splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith("\n")]


def _cut(path: Path, update_of: Callable[[str], int], resume_after: int | None, *, header: int = 0) -> list[str]:
    """Remove the lines after an update, and the file if none are left; returns the lines that are left."""
    if not path.exists():
        return []
    if resume_after is None:
        raise FileExistsError(f"{path} holds another run; resume it, or choose another folder")
    lines = _complete_lines(path)
    try:
        kept = lines[:header] + [line for line in lines[header:] if update_of(line) <= resume_after]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        message = f"{path} must hold lines with the number of an update; restore it, or choose another folder"
        raise ValueError(message) from None
    if len(kept) <= header:
        path.unlink()
        return []
    if path.stat().st_size != sum(map(len, map(str.encode, kept))):
        replace_text(path, "".join(kept))
    return kept

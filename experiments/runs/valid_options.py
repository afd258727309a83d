"""Reject invalid or contradictory options before any file is touched."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any

import torch
from rltok_rl.experiments.run_config import DataConfig, LossConfig, TrainConfig, check_out
from rltok_rl.experiments.texts import BUILT_IN, LANGUAGES

_MINIMA = {
    "data.num_rows": 1,
    "data.num_steps": 1,
    "baseline.rows_per_text": 1,
    "compute.threads": 0,
    "snapshots.count": 1,
    "snapshots.batches": 1,
    "snapshots.num_bytes": 2,
    "checkpoint_every": 1,
    "seed": 0,
}
"""Smallest values of options."""
_BATCH_BASELINES = ("leave_one_out", "batch_mean")
_FILE_OPTIONS = ("column", "min_bytes", "max_bytes", "limit", "cache", "short_documents", "split_by")
_OBJECTIVES = {
    "clip_low": ("ppo",),
    "clip_high": ("ppo",),
    "max_weight": ("importance",),
    "average": ("reinforce", "importance"),
}
"""Options of the policy's loss, and the objectives that use them."""


def check_options(config: TrainConfig) -> None:
    """Reject numbers that are too small, options that would be ignored, and devices that do not exist."""
    for name, minimum in _MINIMA.items():
        value = attrgetter(name)(config)
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")
    check_out(config.out)
    data, loss = config.data, config.loss
    compares_rows = config.estimator.name == "discounted_return" and config.baseline.name in _BATCH_BASELINES
    if data.num_rows == 1 and compares_rows and config.actor.name == config.segmenter.name == "learned":
        raise ValueError(
            f"data.num_rows must be at least 2 with baseline={config.baseline.name}, which compares rows, got 1; "
            f"write baseline=running_mean for one row"
        )
    endless = data.source in LANGUAGES
    if endless or data.source in BUILT_IN:
        ignored = _changed(data, DataConfig, (*_FILE_OPTIONS, *(("held_out",) if endless else ())))
        if ignored:
            raise ValueError(
                f"data.{ignored} belongs to files and corpora, got data.source={data.source!r} (data={data.source} "
                f"instead of data.source= drops an experiment's options of files)"
            )
    for name, objectives in _OBJECTIVES.items():
        if loss.objective not in objectives and _changed(loss, LossConfig, (name,)):
            raise ValueError(
                f"loss.{name} belongs to {' and '.join(objectives)}, got loss.objective={loss.objective!r}"
            )
    if config.estimator.name == "local_flips" and config.baseline.options:
        raise ValueError(f"baseline.options must be empty with 'local_flips', got {config.baseline.options}")
    _check_device(config.compute.device)


def _changed(options: Any, schema: Any, names: tuple[str, ...]) -> str | None:
    """The first of these options that differs from its default."""
    defaults = {field.name: field.default for field in fields(schema)}
    return next((name for name in names if getattr(options, name) != defaults[name]), None)


def read_device(name: str) -> torch.device:
    """Return the device of a name, whether it exists or not.

    Example:
        >>> read_device("cuda:1")
        device(type='cuda', index=1)
    """
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"compute.device {name!r} cannot be used: {error}") from None


def _check_device(name: str) -> None:
    device = read_device(name)
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"compute.device {name!r} cannot be used: {str(error).splitlines()[0]}") from None

"""Reject invalid or contradictory options before any file is touched."""

from __future__ import annotations

from typing import Any

import torch
from rltok_rl.experiments.recipes import check_recipe
from rltok_rl.experiments.run_config import DataConfig, LossConfig, TrainConfig, check_out
from rltok_rl.experiments.texts import BUILT_IN, LANGUAGES

from rltok_rl.ranges import check_fields

_FILE_OPTIONS = ("column", "min_bytes", "max_bytes", "limit", "cache", "short_documents", "split_by", "revision")
_OBJECTIVES = {
    "clip_low": ("ppo",),
    "clip_high": ("ppo",),
    "max_weight": ("importance",),
    "policy_epochs": ("ppo", "importance"),
    "average": ("reinforce", "importance"),
}
"""Options of the policy's loss, and the objectives that use them."""


def check_options(config: TrainConfig) -> None:
    """Reject numbers outside their ranges, options that would be ignored, and devices that do not exist."""
    check_fields(config)
    check_out(config.out)
    check_recipe(config)
    data, loss, baseline = config.data, config.loss, config.baseline
    compares_rows = config.estimator.name == "discounted_return" and baseline.name in ("leave_one_out", "batch_mean")
    if data.num_rows == 1 and compares_rows and config.actor.name == config.segmenter.name == "learned":
        raise ValueError(
            f"data.num_rows must be at least 2 with baseline={baseline.name}, which compares rows, got 1; "
            f"write baseline=running_mean for one row"
        )
    if data.source in (*LANGUAGES, *BUILT_IN):
        for name in (*_FILE_OPTIONS, *(("held_out",) if data.source in LANGUAGES else ())):
            if _changed(data, DataConfig, name):
                raise ValueError(
                    f"data.{name} belongs to files and corpora, got data.source={data.source!r} (data={data.source} "
                    f"instead of data.source= drops an experiment's options of files)"
                )
    for name, objectives in _OBJECTIVES.items():
        if loss.objective not in objectives and _changed(loss, LossConfig, name):
            raise ValueError(
                f"loss.{name} belongs to {' and '.join(objectives)}, got loss.objective={loss.objective!r}"
            )
    if config.estimator.always_runs_trials and baseline.options:
        raise ValueError(f"baseline.options must be empty with {config.estimator.name!r}, got {baseline.options}")
    if config.logger.name == "csv" and config.logger.options:
        raise ValueError(f"logger.options must be empty with logger.name='csv', got {dict(config.logger.options)}")
    if read_device(config.compute.device).type == "meta":
        raise ValueError("compute.device must be one that computes, such as 'cpu' or 'cuda', got 'meta'")
    try:
        torch.zeros(1, device=read_device(config.compute.device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        problem = str(error).splitlines()[0].partition(". ")[0]
        raise ValueError(f"compute.device {config.compute.device!r} cannot be used: {problem}") from None


def _changed(options: Any, schema: type, name: str) -> bool:
    """Whether an option differs from its default."""
    return bool(getattr(options, name) != getattr(schema, name))


def read_device(name: str) -> torch.device:
    """Return the device of a name, whether it exists or not."""
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"compute.device {name!r} cannot be used: {error}") from None

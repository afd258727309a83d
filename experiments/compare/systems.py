"""Systems of a comparison by word: what each changes in one configuration, and what all of them may spend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.experiments.commands.option_errors import nearest
from rltok_rl.experiments.commands.schema import CONF, choices
from rltok_rl.experiments.config import ActorConfig, BaselineConfig, CompareConfig, SegmenterConfig, TrainConfig
from rltok_rl.experiments.runs.build import loop_options, make_loss
from rltok_rl.experiments.runs.segmenters import (
    TOKENIZERS,
    check_segmenter_options,
    learned,
    model_overrides,
    segmenter_options,
)

from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import update_flops

PAPER = "learned-paper"
"""The learned policy with the paper's estimator, whatever the configuration says."""


def system_names() -> list[str]:
    """Words that a comparison knows.

    Example:
        >>> {"learned", "learned-paper", "hnet"} <= set(system_names())
        True
    """
    return sorted([*choices("segmenter"), PAPER])


def system_config(config: TrainConfig, system: str) -> TrainConfig:
    """The training of one system: a run of its own, in a folder below the comparison's.

    Args:
        config: of the comparison.
        system: one of :func:`system_names`.
    """
    if system not in system_names():
        near = nearest(system, system_names())
        raise ValueError(f"compare.systems must be among {system_names()}, got {system!r}{near}")
    changed: dict[str, Any] = {
        "segmenter": _segmenter(config, "learned" if system == PAPER else system, system),
        "optim": replace(config.optim, total_flops=budget(config)),
        "compare": CompareConfig(),
        "out": str(Path(config.out) / system),
        "resume": True,
    }
    if system == PAPER:  # Section 2.5 and Table 2
        changed |= {
            "actor": ActorConfig(),
            "estimator": replace(
                config.estimator, name="discounted_return", gamma=0.99, reward="early_exit", price=0.0, options={}
            ),
            "baseline": BaselineConfig(name="batch_mean"),
            "loss": replace(config.loss, objective="reinforce", policy_epochs=1, policy=0.01),
            "rate": replace(config.rate, control="logit_pressure", coefficient=0.01, options={}),
        }
    return replace(config, **changed)


def budget(config: TrainConfig) -> float:
    """FLOPs that each system may spend.

    Args:
        config: of the comparison; without ``compare.flops``, what ``optim.total_bytes`` cost the model at its target
            rate.
    """
    if config.compare.flops is not None:
        return float(config.compare.flops)
    model = _without_numbers(config)
    num_bytes = config.optim.total_bytes
    return update_flops(model, num_bytes, num_bytes * model.config.target_rate)


def check_system(config: TrainConfig, system: str) -> None:
    """Refuse what the training of a system would refuse as it begins, which may be hours after that of the first.

    Args:
        config: of its training.
        system: its word.
    """
    try:
        check_training(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"system {system!r} cannot be trained: {error}") from error


def check_training(config: TrainConfig) -> None:
    """Refuse a configuration whose model, segmenter or loss cannot be built; no weights are made.

    Args:
        config: of a run.
    """
    check_segmenter_options(config)
    loop_options(config)
    model, segmenter = _without_numbers(config), None
    with torch.device("meta"):
        if not learned(config):
            whole = {"tokenizer": lambda text: [len(text)]} if config.segmenter.name in TOKENIZERS else {}
            segmenter = make_segmenter(config.segmenter.name, model, **segmenter_options(config), **whole)
        make_loss(config, model, segmenter=segmenter)


def _without_numbers(config: TrainConfig) -> UNet:
    """The model of a training, all shapes and no weights."""
    with torch.device("meta"):
        return UNet(preset(config.model.preset, **model_overrides(config)))


def _segmenter(config: TrainConfig, word: str, system: str) -> SegmenterConfig:
    held: Any = OmegaConf.to_container(OmegaConf.load(CONF / "segmenter" / f"{word}.yaml"))
    held.pop("defaults", None)
    options = {**held.pop("options", {}), **config.compare.options.get(system, {})}
    return SegmenterConfig(**held, options=options, stage_factors=config.segmenter.stage_factors)

"""Systems of a comparison: the configuration of each, and their common budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.experiments.commands.option_errors import nearest
from rltok_rl.experiments.commands.schema import CONF, choices
from rltok_rl.experiments.recipes import follow_policy
from rltok_rl.experiments.run_config import CompareConfig, SegmenterConfig, TrainConfig
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

BY_RECIPE: dict[str, tuple[str, dict[str, Any]]] = {
    "learned-paper": ("paper", {}),
    "learned-paper-0.9": ("paper", {"estimator.gamma": 0.9}),
    "learned-released": ("released", {}),
    "learned-ours": ("ours", {}),
}
"""Learned policies by recipe, and what they change of it, whatever the configuration. The paper has gamma 0.99, but
three of four stored versions of the released training step use 0.9; which one trained the paper's models is unknown."""


def system_names() -> list[str]:
    """Return the names of all systems.

    Example:
        >>> {"learned", "learned-paper", "hnet"} <= set(system_names())
        True
    """
    return sorted([*choices("segmenter"), *BY_RECIPE])


def system_config(config: TrainConfig, system: str) -> TrainConfig:
    """Return the configuration of a system's run, in a subfolder of the comparison's."""
    if system not in system_names():
        suggestion = nearest(system, system_names())
        raise ValueError(f"compare.systems must be among {system_names()}, got {system!r}{suggestion}")
    file: Any = OmegaConf.to_container(
        OmegaConf.load(CONF / "segmenter" / f"{'learned' if system in BY_RECIPE else system}.yaml")
    )
    file.pop("defaults", None)
    options = {**file.pop("options", {}), **config.compare.options.get(system, {})}
    changed: dict[str, Any] = {
        "segmenter": SegmenterConfig(**file, options=options, stage_factors=config.segmenter.stage_factors),
        "optim": replace(config.optim, total_flops=budget(config)),
        "compare": CompareConfig(),
        "out": str(Path(config.out) / system),
        "resume": True,
    }
    if system in BY_RECIPE:
        recipe, others = BY_RECIPE[system]
        config = follow_policy(config, recipe, others)
    return replace(config, **changed)


def budget(config: TrainConfig) -> float:
    """Return the FLOPs of each system: ``compare.flops``, or the cost of ``optim.total_bytes`` at the target rate."""
    if config.compare.flops is not None:
        return float(config.compare.flops)
    model = _meta_model(config)
    num_bytes = config.optim.total_bytes
    return update_flops(model, num_bytes, num_bytes * model.config.target_rate)


def check_system(config: TrainConfig, system: str) -> None:
    """Raise the errors of a system's configuration now, not hours later when its run begins."""
    try:
        check_training(config)
    except (ValueError, TypeError) as error:
        raise ValueError(f"system {system!r} cannot be trained: {error}") from error


def check_training(config: TrainConfig) -> None:
    """Refuse a configuration whose model, segmenter or loss cannot be built; no weights are made."""
    check_segmenter_options(config)
    loop_options(config)
    model, segmenter = _meta_model(config), None
    with torch.device("meta"):
        if not learned(config):
            tokenizer = {"tokenizer": lambda text: [len(text)]} if config.segmenter.name in TOKENIZERS else {}
            segmenter = make_segmenter(config.segmenter.name, model, **segmenter_options(config), **tokenizer)
        make_loss(config, model, segmenter=segmenter)


def _meta_model(config: TrainConfig) -> UNet:
    """The model without weights."""
    with torch.device("meta"):
        return UNet(preset(config.model.preset, **model_overrides(config)))

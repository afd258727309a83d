"""Configurations for tests, composed as on the command line."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Literal

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from rltok_rl.experiments.commands.overrides import allow_new, compose_config
from rltok_rl.experiments.commands.schema import CONF
from rltok_rl.experiments.run_config import GROUPS, WHOLE, TrainConfig

QUICK = [
    "optim.total_bytes=512",
    "optim.warm_up_bytes=0",
    "data.num_rows=4",
    "data.num_steps=32",
    "data.source=python-docs",
]
"""Four updates of a small model."""


def composed(*overrides: str) -> TrainConfig:
    """Compose options as the command line does."""
    config = compose_config(overrides)
    assert isinstance(config, TrainConfig)
    return config


@cache
def _files(chosen: tuple[str, ...]) -> DictConfig:
    """Hydra composes whole configurations; files of groups alone replace those of the default."""
    if not chosen or any(one.partition("=")[0] in WHOLE for one in chosen):
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            return compose("train", list(chosen))
    config = copy.deepcopy(_files(()))
    for group, name in (one.split("=") for one in chosen):
        file = OmegaConf.load(CONF / group / f"{name}.yaml")
        assert file.pop("defaults") == ["schema", "_self_"]
        config[group] = OmegaConf.merge(GROUPS[group], file)
    return config


def configured(*overrides: str) -> TrainConfig:
    """Compose options in a tenth of the time: files are read once, single options are set on a copy."""
    chosen, single = _split(allow_new(overrides))
    train = OmegaConf.to_object(_with_options(_files(chosen), single))
    assert isinstance(train, TrainConfig)
    return train


@cache
def _with_hydra(name: str, chosen: tuple[str, ...]) -> DictConfig:
    return compose(name, list(chosen), return_hydra_config=True)


def compose_once(name: str, overrides: Sequence[str], *, return_hydra_config: Literal[True]) -> DictConfig:
    """Stand in for Hydra's function, for correct command lines: each choice of files is composed once."""
    chosen, single = _split(overrides)
    return _with_options(_with_hydra(name, chosen), single)


def _split(overrides: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    chosen = tuple(one for one in overrides if one.partition("=")[0] in (*GROUPS, *WHOLE))
    return chosen, [one for one in overrides if one not in chosen]


def _with_options(config: DictConfig, single: list[str]) -> DictConfig:
    config = copy.deepcopy(config)
    for one in OverridesParser.create().parse_overrides(single):
        OmegaConf.update(config, one.key_or_group, one.value(), force_add=one.is_add() or one.is_force_add())
    return config

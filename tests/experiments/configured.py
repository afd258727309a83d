"""Configurations as the command line makes them."""

from __future__ import annotations

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.names import CONF, allow_new

QUICK = [
    "optim.total_bytes=512",
    "optim.warm_up_bytes=0",
    "data.num_rows=4",
    "data.num_steps=32",
    "data.source=python-docs",
]
"""Four updates of a small model."""


def configured(*overrides: str) -> TrainConfig:
    """What Hydra makes of these options."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        made = OmegaConf.to_object(compose("train", allow_new(overrides)))
    assert isinstance(made, TrainConfig)
    return made

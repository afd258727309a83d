"""What a training is made of, declared: every key is checked, and a wrong one is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class ModelConfig:
    """The U-Net."""

    preset: str = MISSING
    """A key of ``rltok_rl.models.PRESETS``."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of ``UNetConfig`` to replace."""


@dataclass
class DataConfig:
    """Text, and how it is cut."""

    source: str = MISSING
    """``python-code``, ``python-docs``, or the path of a UTF-8 text file."""
    num_rows: int = 32
    """Rows of a rollout, of all processes."""
    num_steps: int = 256
    """Decisions per row; a window has one byte more."""
    held_out: float = 0.05
    """Share of the text, at its end, that is never trained on."""


@dataclass
class EstimatorConfig:
    """Advantages."""

    name: str = MISSING
    """A registered value estimator, or ``local_flips``."""
    gamma: float = 0.99
    rows_per_text: int = 1
    """Rows that read one text; ``group_centred`` compares them."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the estimator."""


@dataclass
class RateConfig:
    """Rate control."""

    control: str = MISSING
    coefficient: float = 0.01
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of ``RateLoss``."""


@dataclass
class LossConfig:
    """Coefficients of the joint loss; the language model's is 1."""

    policy: float = 0.01
    early_exit: float = 0.1
    entropy: float = 0.0
    """Weight of an entropy bonus; 0 leaves it out."""


@dataclass
class OptimConfig:
    """AdamW and its schedule."""

    total_bytes: int = MISSING
    lr: float = 2e-3
    warm_up_bytes: int = 0
    lr_floor: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip_norm: float = 1.0


@dataclass
class ComputeConfig:
    """Where and how."""

    device: str = "cpu"
    strategy: str = "none"
    """With several processes: ``ddp`` (the model whole in each) or ``fsdp`` (in pieces). ``none`` is one process."""
    precision: str = "float32"
    micro_batches: int = 1
    threads: int = 0
    """Threads of torch on the CPU; 0 leaves it to torch."""


@dataclass
class LoggerConfig:
    """Where figures go besides ``metrics.csv``."""

    name: str = "csv"
    """``csv`` for nowhere else, ``tensorboard``, ``wandb``, or a registered one."""
    project: str = "rltok_rl"
    """For loggers that keep runs by project."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the logger."""


@dataclass
class SnapshotConfig:
    """Looks at held-out text while training: bits per byte, and a sample with its boundaries."""

    count: int = 8
    """How many over the run, besides one before it; the last update always has one."""
    spacing: str = "log"
    """``log``, each after twice as many updates as the one before it, or ``linear``."""
    batches: int = 8
    """Batches of ``data.num_rows`` x ``data.num_steps`` bytes that held-out figures are taken over."""
    num_bytes: int = 240
    """Length of the sample."""


@dataclass
class TrainConfig:
    """A training."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    rate: RateConfig = field(default_factory=RateConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)
    seed: int = 0
    out: str = "runs/train"
    """Folder of the run."""
    resume: bool = False
    """Go on from the newest checkpoint of the folder; begin anew where there is none."""
    checkpoint_every: int = 200
    """Updates between checkpoints; the last update always has one."""


GROUPS = {
    "model": ModelConfig,
    "data": DataConfig,
    "estimator": EstimatorConfig,
    "rate": RateConfig,
    "optim": OptimConfig,
    "compute": ComputeConfig,
    "logger": LoggerConfig,
}
"""Groups of options, a folder of yaml files each."""


def register() -> None:
    """Make the schemas known to Hydra; yaml files begin with them and may hold no other keys."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=TrainConfig)
    for group, schema in GROUPS.items():
        store.store(group=group, name="schema", node=schema)

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
    weights: str | None = None
    """A trained model to begin with: a folder of ``save_pretrained``, a run's folder, a hub id, or ``pocket``. Its
    configuration must be this one, apart from what ``overrides`` replaces. Null draws fresh weights."""


@dataclass
class DataConfig:
    """Text, and how it is cut."""

    source: str = MISSING
    """``python-code``, ``python-docs``, a language (``recall``, ``lexicon``), a corpus (a key of
    ``rltok_rl.data.CORPORA``), or the path of a file or a folder."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of a language, or of ``datasets.load_dataset`` for a corpus."""
    column: str | None = None
    """Column of local tables; null takes ``text``, or else ``content``."""
    split_by: str | None = None
    """Column of local tables that names a group of documents, such as a book; ``held_out`` then holds out whole groups.
    Null holds out single documents."""
    min_bytes: int = 2
    """Shorter documents are dropped, and counted."""
    max_bytes: int | None = None
    """Longer documents are cut to this, and counted."""
    limit: int | None = None
    """Documents to look at, from the start; null for all."""
    cache: str | None = None
    """Folder of the byte cache of files and corpora; null is one in ``caches``, by what it holds."""
    short_documents: str = "error"
    """What is done with a document shorter than a window: ``error``, or ``whole``."""
    order: str = "random"
    """``random`` windows, or ``epochs``: each window once before any comes again."""
    num_rows: int = 32
    """Rows of a rollout, of all processes."""
    num_steps: int = 256
    """Decisions per row; a window has one byte more."""
    held_out: float = 0.05
    """Share of the documents or groups, or of the end of a single text, that is never trained on."""


@dataclass
class ActorConfig:
    """Who draws the boundaries that are trained on."""

    name: str = "learned"
    """``learned``, or one that learns nothing: ``random``, ``uniform``, ``whitespace``."""
    rate: float | None = None
    """Boundaries per byte of ``random`` and ``uniform``; null is the model's target rate."""
    rates: list[float] | None = None
    """[low, high] of the target rates that texts are read at, each drawn uniformly in its logarithm, of ``learned``
    with ``model.overrides.rate_embedding=true``; null is the model's target rate for all."""
    warm_start_bytes: int = 0
    """Bytes to begin with whose boundaries are drawn at random at the target rate. ``reinforce`` learns nothing about
    the policy from them, ``importance`` and ``ppo`` do."""


@dataclass
class SegmenterConfig:
    """Who draws the boundaries, where it is not the policy that is learned by rewards."""

    name: str = "learned"
    """A key of ``rltok_rl.agents.segmenters.SEGMENTERS``, of which ``learned`` leaves it to ``actor``, or
    ``module:Class``, one of your own."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the segmenter; ``num_lags`` of ``learned``; ``vocabulary``, ``num_bytes`` and ``rate`` of tokenizers that are
    trained at the start of a run."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of ``UNetConfig`` that the segmenter needs; those of ``model.overrides`` go before."""
    stage_factors: bool = True
    """Multiply learning rates with the factors of the stages that a segmenter was published with (``hnet``)."""


@dataclass
class EstimatorConfig:
    """What decisions are judged by."""

    name: str = MISSING
    """``discounted_return``, ``control_variate``, ``local_flips``, ``critic_advantage`` (with ``loss=ppo``), or
    ``module:Class``, one of your own."""
    gamma: float = 0.99
    """Discount in [0, 1] of rewards that come later."""
    reward: str = "early_exit"
    """A key of ``rltok_rl.functional.rewards.REWARDS``."""
    price: float = 0.0
    """Nats per boundary."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the estimator."""


@dataclass
class BaselineConfig:
    """What returns are compared with."""

    name: str = "none"
    """``none``, ``batch_mean``, ``leave_one_out``, ``group_mean``, ``running_mean``, ``z_score``, or a custom baseline:
    ``module:function``, or ``module:Class`` with a memory."""
    rows_per_text: int = 1
    """Rows that read one text; ``group_mean`` compares them."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the baseline."""


@dataclass
class RateConfig:
    """Rate control."""

    control: str = MISSING
    """A key of ``rltok_rl.functional.rate.RATE_CONTROLS``, or one that remembers: ``pi``, ``price``."""
    coefficient: float = 0.01
    """0 leaves the rate alone."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of ``RateLoss``."""


@dataclass
class LossConfig:
    """The joint loss."""

    objective: str = "reinforce"
    """``reinforce``, ``importance`` (each decision weighted by how likely it has become), or ``ppo`` (clipped)."""
    policy_epochs: int = 1
    """Updates of the policy per batch; more than one with ``importance`` or ``ppo``."""
    clip_low: float = 0.2
    """A ratio below 1 - this gains nothing more (``ppo``)."""
    clip_high: float = 0.2
    """A ratio above 1 + this gains nothing more (``ppo``)."""
    max_weight: float | None = None
    """Largest weight of a decision (``importance``)."""
    average: str = "free"
    """Over ``free`` decisions, ``all``, or ``released`` as in the authors' code (``reinforce``, ``importance``)."""
    language_model: float = 1.0
    """Weight of the next-byte loss."""
    policy: float = 0.01
    """Weight of the policy's loss."""
    early_exit: float = 0.1
    """Weight of the early exit's next-byte loss."""
    entropy: float = 0.0
    """Weight of an entropy bonus; 0 leaves it out."""
    critic: float = 0.5
    """Weight of the critic's loss, where there is one."""


@dataclass
class OptimConfig:
    """AdamW and its schedule."""

    total_bytes: int = MISSING
    """Bytes to train on in all."""
    total_flops: float | None = None
    """End once so many FLOPs are spent instead, an estimator's trials included; the schedule then goes by the FLOPs, as
    if ``total_bytes`` were the bytes that they suffice for."""
    lr: float = 2e-3
    """Peak learning rate of AdamW."""
    warm_up: float = 0.0
    """Share of the run in which the learning rate rises linearly to its peak."""
    warm_up_bytes: int | None = None
    """The same in bytes, in place of ``warm_up``; null leaves it to that."""
    lr_floor: float = 0.1
    """Share of the learning rate that is left at the end of the cosine."""
    beta1: float = 0.9
    """How much of the mean gradient an update keeps."""
    beta2: float = 0.95
    """How much of the mean square gradient an update keeps."""
    weight_decay: float = 0.1
    """Of weight matrices."""
    clip_norm: float = 1.0
    """Largest norm of the gradient."""


@dataclass
class ComputeConfig:
    """Where and how."""

    device: str = "cpu"
    """As torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
    strategy: str = "none"
    """With several processes: ``ddp`` (the model whole in each) or ``fsdp`` (in pieces). ``none`` is one process."""
    precision: str = "float32"
    """Of matrix products: ``float32`` or ``bfloat16``."""
    compile: bool = False
    """Compile the byte and token layers (``torch.compile``)."""
    tokens: str = "padded"
    """How rows of tokens are laid out: ``padded`` to the longest, or ``packed`` one after the other, which leaves at
    most 1/64 of them empty from 1,024 tokens on. Trainings are equal to rounding; evaluation pads."""
    token_room: float | None = None
    """With packed tokens: how many more tokens than the target rate has there is room for, 0.25 for a quarter more. A
    batch with more tokens ends the training; a device is never waited for to count them. Null counts them."""
    recompute: str = "none"
    """What the backward pass computes again instead of keeping it: ``none``, or ``layers``, whose insides are most of
    an update's memory. Results are the same."""
    likelihood_chunk: int | None = None
    """Bytes whose predictions over all 256 values are held at a time, for less memory; the rest is computed again in
    the backward pass. null holds all. Segmenters and rewards that read whole predictions hold them all the same."""
    micro_batches: int = 1
    """Rollouts per update; batch means and rates are those of all of them."""
    threads: int = 0
    """Threads of torch on the CPU; 0 leaves it to torch."""
    figures_every: int | None = None
    """Updates whose figures are fetched from the device, and written, together: the host of an accelerator waits for it
    that often. null is 1 on the CPU and 16 elsewhere. Looks and checkpoints fetch what there is."""


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
class CompareConfig:
    """Several systems, trained with equal total FLOPs (``experiment=compare``)."""

    systems: list[str] = field(default_factory=list)
    """Words of ``segmenter``, or ``learned-paper``; none is a training of its own."""
    flops: float | None = None
    """FLOPs that each may spend, trials included; null is what ``optim.total_bytes`` cost at the target rate."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further options of segmenters, by system."""
    windows: int = 4096
    """Windows of held-out documents that finished systems are judged on, evenly spread."""
    apart: bool = True
    """Train each system in a process of its own, so that its memory can be told."""


@dataclass
class TrainConfig:
    """A training."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    segmenter: SegmenterConfig = field(default_factory=SegmenterConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    rate: RateConfig = field(default_factory=RateConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    seed: int = 0
    """Of weights, texts and boundaries."""
    out: str = "runs/train"
    """Folder of the run."""
    resume: bool = False
    """Go on from the newest checkpoint of the folder; begin anew where there is none."""
    checkpoint_every: int = 200
    """Updates between checkpoints; the last update always has one."""


GROUPS = {
    "model": ModelConfig,
    "data": DataConfig,
    "actor": ActorConfig,
    "segmenter": SegmenterConfig,
    "estimator": EstimatorConfig,
    "baseline": BaselineConfig,
    "loss": LossConfig,
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


register()  # compositions need the schemas, whoever asks


def check_out(out: str) -> None:
    """Refuse an empty name of a folder: the run would be scattered over the working folder.

    Args:
        out: the option.
    """
    if not out.strip():
        raise ValueError("out must be a folder, got an empty name; write out=runs/NAME, or out=. for this folder")

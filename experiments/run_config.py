"""Options of a run, as the dataclasses that Hydra checks them with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from rltok_rl.ranges import option


@dataclass
class ModelConfig:
    """The U-Net."""

    preset: str = MISSING
    """A key of ``rltok_rl.models.PRESETS``."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of ``UNetConfig`` to replace."""
    weights: str | None = None
    """A trained model to start from: a folder, a run, a hub id, or ``pocket``. Its configuration must equal this one,
    except for ``overrides``. Null draws new weights."""


@dataclass
class DataConfig:
    """Text, and its windows."""

    source: str = MISSING
    """``python-code``, ``python-docs``, a language (``recall``, ``lexicon``), a corpus, or a file or a folder."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a language, or of ``datasets.load_dataset`` for a corpus."""
    revision: str | None = None
    """Commit or tag of a corpus on the hub; null is the corpus's own, else that of a cache, else the current one. A run
    records it."""
    column: str | None = None
    """Column of local tables; null takes ``text``, else ``content``."""
    split_by: str | None = None
    """Column of local tables that names a group, such as a book, to hold out as a whole; null for documents."""
    min_bytes: int = option(2, "[2, inf)", "bytes")
    """Shorter documents are dropped and counted."""
    max_bytes: int | None = option(None, "[2, inf)", "bytes")
    """Longer documents are cut to this length and counted."""
    limit: int | None = option(None, "[1, inf)", "documents")
    """Documents to read, from the start; null for all."""
    cache: str | None = None
    """Folder of the byte cache of files and corpora; null names a folder in ``caches`` by its content."""
    short_documents: str = "error"
    """For a document shorter than a window: ``error`` stops, ``whole`` keeps it as a shorter row."""
    order: str = "random"
    """``random`` windows, or ``epochs``: every window once before any is repeated."""
    num_rows: int = option(32, "[1, 1e6]", "rows")
    """Rows of a rollout, over all processes."""
    num_steps: int = option(256, "[1, 1e7]", "bytes")
    """Decisions per row; a window has one more byte."""
    held_out: float = option(0.05, "(0, 1)", "share")
    """Share of the documents or groups that is held out; of a single text, its end."""


@dataclass
class ActorConfig:
    """The actor, which draws the boundaries in training."""

    name: str = "learned"
    """``learned``, or a fixed rule: ``random``, ``uniform``, ``whitespace``."""
    rate: float | None = option(None, "(0, 1]", "boundaries per byte")
    """Boundaries per byte of ``random`` and ``uniform``; null is the model's target rate."""
    rates: list[float] | None = option(None, "(0, 1)", "boundaries per byte")
    """[low, high] of log-uniform target rates, for ``learned`` with ``model.overrides.rate_embedding=true``."""
    warm_start_bytes: int = option(0, "[0, inf)", "bytes")
    """First bytes, on which no advantages reach the policy, only the control of its rate and an entropy bonus; with
    ``importance`` and ``ppo`` it learns from random boundaries there."""
    warm_start_rule: str | None = None
    """Rule that draws the boundaries of the warm start and that the policy imitates: ``spacebyte``, ``third-letter``,
    ``whitespace``, ``uniform`` or ``stride``. Needs ``loss=reinforce``."""


@dataclass
class SegmenterConfig:
    """The segmenter, which draws the boundaries instead of a policy learned from rewards."""

    name: str = "learned"
    """A segmenter of the library or ``module:Class``; ``learned`` leaves the boundaries to ``actor``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Its options: ``num_lags`` of ``learned``; ``vocabulary``, ``num_bytes``, ``rate`` of tokenizers (``bpe`` also has
    ``most_bytes``, ``pre_tokenizer``); and so on."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of ``UNetConfig`` that the segmenter needs; ``model.overrides`` replaces them."""
    stage_factors: bool = True
    """Multiply learning rates by the published factors of the segmenter's stages (``hnet``)."""


@dataclass
class EstimatorConfig:
    """The advantage estimator and its reward."""

    name: str = MISSING
    """``discounted_return``, ``natural_gradient``, ``control_variate``, ``local_flips``, ``budgeted_flips``,
    ``token_gain``, ``disarm``, ``critic_advantage`` (``loss=ppo``), or a custom estimator, ``module:Class``."""
    gamma: float = option(0.99, "[0, 1]")
    """Discount in [0, 1] of later rewards."""
    reward: str = "early_exit"
    """A key of ``rltok_rl.functional.rewards.REWARDS``; ``relative``, ``early_exit`` minus that of evenly spaced
    boundaries; or a custom ``module:function``."""
    price: float = option(0.0, "[0, 1e6]", "nats per boundary")
    """Price of a boundary in nats, subtracted from the reward."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the estimator."""

    @property
    def always_runs_trials(self) -> bool:
        """Whether the estimator measures effects of decisions in every update, so that a baseline would be ignored."""
        return self.name in ("local_flips", "token_gain", "disarm") and self.options.get("settled") is None


@dataclass
class BaselineConfig:
    """The baseline of returns (variance reduction)."""

    name: str = "none"
    """``none``, ``batch_mean``, ``leave_one_out``, ``group_mean``, ``running_mean``, ``z_score``, or a custom one:
    ``module:function``, or ``module:Class`` with a memory."""
    rows_per_text: int = option(1, "[1, 1e6]", "rows")
    """Rows with the same text, which ``group_mean`` compares."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the baseline."""


@dataclass
class RateConfig:
    """Control of the boundary rate."""

    control: str = MISSING
    """A key of ``rltok_rl.functional.rate.RATE_CONTROLS``, or a controller with memory: ``pi``, ``price``."""
    coefficient: float = option(0.01, "[0, 1e6]")
    """Weight of the rate's loss; 0 disables it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of ``RateLoss``."""


@dataclass
class LossConfig:
    """The joint loss."""

    objective: str = "reinforce"
    """``reinforce``, ``importance`` (weighted by the ratio of new to old probability), or ``ppo`` (clipped)."""
    policy_epochs: int = option(1, "[1, 1e4]", "updates")
    """Policy updates per batch; more than one needs ``importance`` or ``ppo``."""
    clip_low: float = option(0.2, "[0, 1]")
    """Ratios are clipped below 1 - this (``ppo``)."""
    clip_high: float = option(0.2, "[0, inf)")
    """Ratios are clipped above 1 + this (``ppo``)."""
    max_weight: float | None = option(None, "(0, inf]")
    """Largest importance weight of a decision (``importance``)."""
    average: str = "free"
    """Average over ``free`` decisions, over ``all`` (forced ones count 0), or over all bytes of a ``window``, whose
    last one predicts nothing; not for ``ppo``."""
    rows_per_mean: int | None = option(None, "[1, inf)", "rows")
    """Consecutive rows over which baselines and the rate's control take their means, such as the 8 rows of a device's
    micro-batch in the released code; null is all rows of an update. ``pi`` and ``price`` always use all rows."""
    language_model: float = option(1.0, "[0, 1e6]")
    """Weight of the next-byte loss."""
    policy: float = option(0.01, "[0, 1e6]")
    """Weight of the policy's loss."""
    early_exit: float = option(0.1, "[0, 1e6]")
    """Weight of the early exit's next-byte loss."""
    entropy: float = option(0.0, "[0, 1e6]")
    """Weight of an entropy bonus; 0 disables it."""
    critic: float = option(0.5, "[0, 1e6]")
    """Weight of the critic's loss (``critic_advantage``)."""


@dataclass
class OptimConfig:
    """AdamW and its schedule."""

    total_bytes: int = option(MISSING, "[1, inf)", "bytes")
    """Total bytes to train on."""
    total_flops: float | None = option(None, "(0, inf)", "FLOPs")
    """FLOPs, trials of the estimator included, after which the run and its schedule end instead."""
    lr: float = option(2e-3, "(0, 10]")
    """Peak learning rate of AdamW."""
    warm_up: float = option(0.0, "[0, 1)", "share")
    """Share of the run during which the learning rate rises linearly to its peak."""
    warm_up_bytes: int | None = option(None, "[0, inf)", "bytes")
    """Warm-up in bytes; null uses ``warm_up``."""
    warm_up_start: float = option(0.0, "[0, 1]", "share")
    """Share of the peak at which warm-up begins. The released code has 0.1."""
    lr_floor: float = option(0.1, "[0, 1]", "share")
    """Final learning rate of the cosine schedule, as a share of the peak."""
    lr_at: str = "end"
    """Read the schedule at the ``end`` of an update, so that the first one learns without ``warm_up_start``; or at its
    ``start``, as torch's schedulers do."""
    beta1: float = option(0.9, "[0, 1)")
    """Decay rate of the first moment (mean gradient)."""
    beta2: float = option(0.95, "[0, 1)")
    """Decay rate of the second moment (mean squared gradient)."""
    weight_decay: float = option(0.1, "[0, 1e3]")
    """Weight decay."""
    decayed: str = "matrices"
    """Parameters with weight decay: ``matrices`` (without norms, biases, the embedding), or ``all`` (released code)."""
    clip_norm: float = option(1.0, "(0, inf]")
    """Gradients are clipped to this norm."""


@dataclass
class ComputeConfig:
    """Device, parallelism and memory."""

    device: str = "cpu"
    """Device of torch: ``cpu``, ``cuda``, ``cuda:1``."""
    strategy: str = "none"
    """Several processes: ``ddp`` (replicated model) or ``fsdp`` (sharded model). ``none`` is one process."""
    precision: str = "float32"
    """Precision of matrix products: ``float32`` or ``bfloat16``."""
    compile: bool = False
    """Compile the byte and token layers (``torch.compile``)."""
    fused: str = "auto"
    """Fused operations, in float32 on the CPU: ``auto`` uses them if numba is installed, ``off`` does not. Results are
    equal up to rounding."""
    tokens: str = "padded"
    """Layout of token rows: ``padded`` to the longest, or ``packed`` one after the other, with at most 1/64 padding
    from 1,024 tokens on. Results are equal up to rounding; evaluation pads."""
    token_room: float | None = option(None, "(0, 1000]", "share")
    """Room for packed tokens beyond the target rate, 0.25 for a quarter more, instead of counting them (null). An
    update with more tokens is repeated with more room."""
    recompute: str = "none"
    """Activations that the backward pass recomputes to save memory: ``none`` or ``layers``. Results are equal."""
    likelihood_chunk: int | None = option(None, "[1, inf)", "bytes")
    """Bytes whose predictions over 256 values are kept at a time, to save memory; null keeps all, as do segmenters and
    rewards that read whole predictions."""
    micro_batches: int = option(1, "[1, 4096]", "rollouts")
    """Rollouts per update; batch means and rates are taken over all of them."""
    threads: int = option(0, "[0, 1024]", "threads")
    """Threads of torch on the CPU; 0 is torch's default."""
    timeout_minutes: float = option(30.0, "(0, 1e6]", "minutes")
    """Time that a process waits for the others in a collective, and at the start."""
    hang_seconds: float | None = option(45.0, "(0, 1e6]", "seconds")
    """Time for which a process may compute nothing while others wait for it; then it is named and ends the job.
    Compiling, downloads, snapshots and saving do not count. null waits for ``timeout_minutes``."""
    figures_every: int | None = option(None, "[1, inf)", "updates")
    """Updates between metrics fetched from the device; null is 1 on the CPU and 16 elsewhere."""


@dataclass
class LoggerConfig:
    """Loggers of metrics, in addition to ``metrics.csv``."""

    name: str = "csv"
    """``csv`` (``metrics.csv`` alone), ``tensorboard``, ``wandb``, or a registered logger."""
    project: str = "rltok_rl"
    """Project of the run, for loggers that have projects."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the logger."""


@dataclass
class SnapshotConfig:
    """Periodic evaluation on held-out text: bits per byte, and a sample with its boundaries."""

    count: int = option(8, "[1, 1e6]", "snapshots")
    """Snapshots during the run, after one before it; the last update always has one."""
    spacing: str = "log"
    """``log`` (each after twice as many updates as the last) or ``linear``."""
    batches: int = option(8, "[1, 10_000]", "batches")
    """Batches of ``data.num_rows`` x ``data.num_steps`` bytes per snapshot."""
    num_bytes: int = option(240, "[2, 1e7]", "bytes")
    """Length of the sample in bytes."""


@dataclass
class CompareConfig:
    """Several systems, trained with equal total FLOPs (``experiment=compare``)."""

    systems: list[str] = field(default_factory=list)
    """Choices of ``segmenter``, ``learned-`` and a recipe, or ``variants``; empty for a single run."""
    flops: float | None = option(None, "(0, inf)", "FLOPs")
    """FLOPs of each system, trials included; null is the cost of ``optim.total_bytes`` at the target rate."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further options of segmenters, by system."""
    learning_rates: dict[str, float] = field(default_factory=dict)
    """Peak learning rates of systems for which ``optim.lr`` is not the best, by system."""
    variants: dict[str, Any] = field(default_factory=dict)
    """Further systems by name, with the options in which they differ: learned policies, ``recipe`` and ``ablation``
    included, such as ``{short: {recipe: paper, estimator: {gamma: 0.9}}}``, and segmenters with other options or custom
    ones, such as ``{words: {segmenter: {name: "words:Words", options: {longest: 6}}}}``."""
    windows: int = option(4096, "[1, 1e9]", "windows")
    """Evenly spaced windows of held-out documents that systems are evaluated on."""
    apart: bool = True
    """Train each system in a separate process, which measures its memory."""


@dataclass
class TrainConfig:
    """A run."""

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
    recipe: str | None = None
    """Recipe of the run, if one was chosen; set by its file."""
    changes: list[str] = field(default_factory=list)
    """Options or groups of options that differ from the recipe on purpose."""
    seed: int = option(0, "[0, inf)")
    """Seed of weights, texts and boundaries."""
    out: str = "runs/train"
    """Folder of the run."""
    resume: bool = False
    """Resume from the newest checkpoint in the folder, or start if there is none."""
    checkpoint_every: int = option(200, "[1, inf)", "updates")
    """Updates between checkpoints; the last update always has one."""
    checkpoint_minutes: float | None = option(None, "(0, inf)", "minutes")
    """Time after which a checkpoint is written although fewer updates were made; null counts updates alone."""


_TYPES = get_type_hints(TrainConfig)
GROUPS = {
    name: _TYPES[name]
    for name in "model data actor segmenter estimator baseline loss rate optim compute logger".split()
}
"""Groups of options, a folder of yaml files each."""
WHOLE = {
    "experiment": "Options of several groups at once.",
    "recipe": "A whole method: every option that says how boundaries are learned.",
    "ablation": "One option that differs from the recipe.",
}
"""Groups whose files set options of several groups; each wins over those before it."""


def check_out(out: str) -> None:
    """Refuse an empty folder name, which would scatter the run over the working folder."""
    if not out.strip():
        raise ValueError("out must be a folder, got an empty name; write out=runs/NAME, or out=. for this folder")


# Schemas for Hydra: yaml files begin with them and may have no other keys.
ConfigStore.instance().store(name="train_schema", node=TrainConfig)
for _group, _schema in GROUPS.items():
    ConfigStore.instance().store(group=_group, name="schema", node=_schema)

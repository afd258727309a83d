"""What can be asked of the study of estimators."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore


@dataclass
class Study:
    """Options of the study."""

    estimators: list[str] = field(default_factory=lambda: ["all"])
    """Which to measure, of ``CANDIDATES``; ``[all]`` measures all."""
    gamma: float = 0.99
    """Discount of the first table."""
    sweep: list[str] = field(default_factory=lambda: ["paper", "critic_td", "group_mean_4", "local_flips"])
    """Which to measure at every discount of ``gammas``."""
    gammas: list[float] = field(default_factory=lambda: [0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0])
    """Discounts of the sweep."""
    num_batches: int = 150
    """Batches of real text that gradients are taken on."""
    warm_up: int = 60
    """Batches beforehand, for estimators that learn."""
    reference_batches: int = 300
    """Batches of the reference gradient: gamma 1, four rows per text."""
    num_rows: int = 32
    """Rows of a batch."""
    num_steps: int = 256
    """Decisions per row."""
    exact_texts: int = 8
    """Short texts whose boundary strings are enumerated; 0 leaves the exact part out."""
    exact_bytes: int = 10
    """Bytes of a short text."""
    exact_batches: int = 1000
    """Batches of short texts that gradients are taken on."""
    samples: int = 1024
    """Rows per text that the resampled truth is made of; 0 leaves it out."""
    judged: int = 128
    """Rows per text whose advantages are compared with it."""
    flip_batches: int = 4
    """Rollouts around which decisions are flipped; 0 leaves it out."""
    updates: int = 2700
    """Updates of the toy model, if it has to be trained."""
    toy: str = "runs/toy.safetensors"
    """Where the toy model is kept."""
    seed: int = 0
    """Of the toy model, texts and boundaries."""
    threads: int = 0
    """Threads of torch; 0 leaves it to torch."""
    out: str = "runs/estimators"
    """Folder of tables and figures."""

    def __post_init__(self) -> None:
        if self.estimators == ["all"]:
            from rltok_rl.experiments.studies.candidates import CANDIDATES  # imports torch

            self.estimators = list(CANDIDATES)


_HYDRA = {"run": {"dir": "."}, "output_subdir": None}  # the results hold all options, and no folder of the machine
_DEFAULTS = ["estimators_schema", "_self_", {"override hydra/job_logging": "none"}]
ConfigStore.instance().store(name="estimators_schema", node=Study)
ConfigStore.instance().store(name="estimators", node={"defaults": _DEFAULTS, "hydra": _HYDRA})


def check(study: Study) -> None:
    """Refuse before anything is trained what would fail after it."""
    from rltok_rl.experiments.studies.candidates import CANDIDATES

    from rltok_rl.diagnostics.enumeration import MOST_BYTES

    for name in (*study.estimators, *study.sweep):
        if name not in CANDIDATES:
            raise ValueError(f"estimators must be among {list(CANDIDATES)}, got {name!r}")
    if not study.estimators or len(set(study.estimators)) != len(study.estimators):
        raise ValueError(f"estimators must be at least one, all different, got {list(study.estimators)}")
    for gamma in (study.gamma, *study.gammas):
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma and gammas must lie in [0, 1], got {gamma}")
    least = {"num_batches": 3, "reference_batches": 3, "num_steps": 2, "updates": 1, "warm_up": 0, "exact_texts": 0}
    least |= {"samples": 0, "judged": 1, "flip_batches": 0}
    if study.exact_texts:
        least |= {"exact_bytes": 2, "exact_batches": 9}  # a third of them for gammas other than 1
    if study.samples:
        least["samples"] = 60  # a decision counts if it went both ways 30 times
    for name, low in least.items():
        if getattr(study, name) < low:
            raise ValueError(f"{name} must be at least {low}, got {getattr(study, name)}")
    if study.exact_texts and study.exact_bytes > MOST_BYTES:
        raise ValueError(f"exact_bytes must be at most {MOST_BYTES} to be enumerated, got {study.exact_bytes}")
    # The reference gradient has four rows per text, and estimators that compare rows of one text have their own number.
    together = math.lcm(
        4, *(int(name.rpartition("_")[2]) for name in study.estimators if name.startswith("group_mean_"))
    )
    if study.num_rows < 1 or study.num_rows % together:
        raise ValueError(f"num_rows must be a multiple of {together} with these estimators, got {study.num_rows}")

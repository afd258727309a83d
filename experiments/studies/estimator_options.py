"""Options of the study of estimators, which mistyped ones are checked against without importing torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore
from rltok_rl.experiments.studies.common import check_minimums


@dataclass
class EstimatorOptions:
    """Options of the study."""

    estimators: list[str] = field(default_factory=list)
    """Candidates to measure; default: all."""
    gamma: float = 0.99
    """Discount of the first table."""
    sweep: list[str] = field(default_factory=lambda: ["paper", "critic_td", "group_mean_4", "local_flips"])
    """Candidates to measure at every discount of ``gammas``."""
    gammas: list[float] = field(default_factory=lambda: [0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0])
    """Discounts of the sweep."""
    num_batches: int = 150
    """Batches of real text."""
    warm_up: int = 60
    """Batches that estimators learn from beforehand."""
    reference_batches: int = 300
    """Batches of the reference gradient (gamma 1, four rows per text)."""
    num_rows: int = 32
    """Rows of a batch."""
    num_steps: int = 256
    """Decisions per row."""
    exact_texts: int = 8
    """Short texts whose boundary strings are enumerated; 0 omits the exact part."""
    exact_bytes: int = 10
    """Bytes of a short text."""
    exact_batches: int = 1000
    """Batches of short texts."""
    samples: int = 1024
    """Rows per text of the resampled truth; 0 omits it."""
    judged: int = 128
    """Rows per text whose advantages are compared with it."""
    flip_batches: int = 4
    """Rollouts of the counterfactual truth; 0 omits it."""
    updates: int = 2700
    """Updates of the toy model, if it is not trained yet."""
    toy: str = "runs/toy-model"
    """Folder of the toy model."""
    seed: int = 0
    """Seed of the toy model, texts and boundaries."""
    threads: int = 0
    """Threads of torch; 0 is torch's default."""
    out: str = "runs/estimators"
    """Folder of tables and figures."""

    def __post_init__(self) -> None:
        if not self.estimators:
            from rltok_rl.experiments.studies.candidates import CANDIDATES  # imports torch

            self.estimators = list(CANDIDATES)


_HYDRA = {"run": {"dir": "."}, "output_subdir": None}  # Hydra writes no folder: the results have all options
_DEFAULTS = ["estimators_schema", "_self_", {"override hydra/job_logging": "none"}]
ConfigStore.instance().store(name="estimators_schema", node=EstimatorOptions)
ConfigStore.instance().store(name="estimators", node={"defaults": _DEFAULTS, "hydra": _HYDRA})


def check_options(options: EstimatorOptions) -> None:
    """Raise ValueError for options that would fail after the training."""
    from rltok_rl.experiments.studies.candidates import CANDIDATES

    from rltok_rl.diagnostics.enumeration import MOST_BYTES

    for name in (*options.estimators, *options.sweep):
        if name not in CANDIDATES:
            raise ValueError(f"estimators must be among {list(CANDIDATES)}, got {name!r}")
    if len(set(options.estimators)) != len(options.estimators):
        raise ValueError(f"estimators must all be different, got {list(options.estimators)}")
    for gamma in (options.gamma, *options.gammas):
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma and gammas must lie in [0, 1], got {gamma}")
    least = {"num_batches": 3, "reference_batches": 3, "num_steps": 2, "updates": 1, "warm_up": 0, "exact_texts": 0}
    least |= {"samples": 0, "judged": 1, "flip_batches": 0}
    if options.exact_texts:
        least |= {"exact_bytes": 2, "exact_batches": 9}  # a third of them for gammas other than 1
    if options.samples:
        least["samples"] = 60  # a decision counts if it went both ways 30 times
    check_minimums(options, least)
    if options.exact_texts and options.exact_bytes > MOST_BYTES:
        raise ValueError(f"exact_bytes must be at most {MOST_BYTES} to be enumerated, got {options.exact_bytes}")
    together = rows_together(options.estimators)
    if options.num_rows < 1 or options.num_rows % together:
        raise ValueError(f"num_rows must be a multiple of {together} with these estimators, got {options.num_rows}")


def rows_together(estimators: Sequence[str]) -> int:
    """Return what must divide the rows: those of the reference's texts, and of estimators that compare rows."""
    sizes = [int(name.rpartition("_")[2]) for name in estimators if name.startswith("group_mean_")]
    return math.lcm(4, *sizes)

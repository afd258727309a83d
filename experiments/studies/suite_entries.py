"""Entries of the boundary suite, and the run of each cell: task, grade, entry, seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from rltok_rl.agents.rules import evenly_spaced
from rltok_rl.agents.segmenters import Segmenter, Segments
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.recipes import covers, follow_policy
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies.suite_scores import ORACLE, UNIFORM
from torch import Tensor

from rltok_rl.data.languages import TASKS
from rltok_rl.data.languages.suite_tasks import SWITCH_AT, switch
from rltok_rl.models.unet import UNet
from rltok_rl.training.metrics import UpdateFlops
from rltok_rl.utils import did_you_mean, import_path, is_import_path

CAP = "boundary_cap"
RATE = ("rate.control=binomial", "rate.coefficient=1.0")
"""The control of the rate. The pressure on logits of the recipes, at their weights, let policies that had learned draw
up to twice the target's boundaries."""
SPEED = "model.overrides.boundary_scale=1.0"
"""The factor on boundary logits, which sets how fast a policy learns: chosen in a seed of its own, with the control of
the rate, so that policies learn within a cell's FLOPs. Entries of recipes have their recipe's."""
BASE = ("experiment=recall", f"model.overrides.{CAP}=null", SPEED, *RATE, "compute.threads=1")
"""Options that all entries share; an entry's own follow. With the soft cap of boundary logits, which training alone
has, policies would be evaluated at a lower rate than the one that training holds."""
_RETURN = ("estimator=discounted_return",)
_STUDIES = __name__.rpartition(".")[0]
_TWO_FLIPS = "+estimator.options.num_flips=2"
_FEW = ("baseline=batch_mean", "+estimator.options.every=4", "+estimator.options.settled=0.1")
"""Trials in a quarter of the rows until the policy has settled, as those of ``budgeted_flips``."""
_SCALED = (*_RETURN, f"estimator.name={_STUDIES}.scaled_return:ScaledReturn")
_ONE_EPOCH = ("loss=ppo", "loss.policy_epochs=1")
ESTIMATORS: dict[str, tuple[str, ...]] = {
    "discounted_return": _RETURN,
    **{
        name: (*_RETURN, f"baseline={name}")
        for name in ("batch_mean", "leave_one_out", "group_mean", "running_mean", "z_score")
    },
    "scaled_by_position": _SCALED,
    "scaled_by_row": (*_SCALED, "+estimator.options.scale=row"),
    "natural_gradient": ("estimator=natural_gradient", "baseline=batch_mean"),
    "control_variate": ("estimator=control_variate",),
    "critic_advantage": ("estimator=critic_advantage", *_ONE_EPOCH),
    "ppo": ("estimator=critic_advantage", "loss=ppo"),
    "ppo_batch_mean": (*_RETURN, "baseline=batch_mean", "loss=ppo"),
    "local_flips": ("estimator=near_flips",),
    "budgeted_flips": ("estimator=budgeted_flips", "baseline=batch_mean"),
    "token_gain": ("estimator=token_gain",),
    "disarm": ("estimator=disarm", "baseline=batch_mean"),
    "sibling_trial": (*_RETURN, f"estimator.name={_STUDIES}.sibling_trials:SiblingTrials", *_FEW),
    "pooled_critic": (*_RETURN, f"estimator.name={_STUDIES}.pooled_critic:PooledCriticAdvantage", *_ONE_EPOCH),
    "doubly_robust": (*_RETURN, f"estimator.name={_STUDIES}.doubly_robust:DoublyRobustFlips", *_FEW, _TWO_FLIPS),
}
"""Options of estimators by name. A baseline's name stands for the discounted return with that baseline. ``ppo`` (with
a critic) and ``ppo_batch_mean`` make three policy epochs per batch, other critics make one."""
NOT_DEFAULT = (
    *("natural_gradient", "disarm", "sibling_trial", "pooled_critic", "doubly_robust"),
    *("scaled_by_position", "scaled_by_row"),
)
"""Estimators that the table of all entries leaves out, so that they must be named."""
RECIPES = {"paper": 0.99, "released": 0.99, "tuned": 0.9, "unscaled": 0.9, "normed": 0.95, "ours": 0.9}
"""Entries with the policy of a recipe, and their discounts; texts, sizes and optimizer are those of the base."""
FIXED: dict[str, tuple[str, ...]] = {
    ORACLE: (f"segmenter.name={__name__}:Oracle",),
    UNIFORM: (f"segmenter.name={__name__}:Even",),
    "random": ("actor=random",),
    "entropy-spike": ("segmenter=entropy-spike",),
    "entropy-threshold": ("segmenter=entropy-threshold",),
    **dict.fromkeys(("paper", "paper@0.9", "released", "released@0.9", "tuned", "unscaled", "normed", "ours"), ()),
}
"""Options of the entries that have no estimator to choose."""
GAMMA = 0.9
SET_BY_CELLS = ("seed", "model.overrides.target_rate", "optim.total_flops", "compute.threads")
SET_BY_ENTRIES = (
    *("experiment", "recipe", "changes", "ablation", "data.source", "data.options", "actor.name", "actor.rate"),
    *("segmenter.name", "estimator.name", "estimator.gamma", "baseline.name", "loss.objective", "loss.policy_epochs"),
)
"""Options that ``overrides`` must not set, because cells set them anyway, or because entries and tasks are named after
them; a choice for the whole group of the latter is refused, too."""
LEAST_ROWS, ROW_BYTES = 8, 2048
"""Rows of an update, and its bytes where texts are short: 16 rows of 128, 8 of 256 and more."""


class Oracle(Segmenter):
    """Draws the best boundaries of a task."""

    reads_states = False

    def __init__(self, model: UNet, task: str, grade: int = 1) -> None:
        super().__init__()
        self.language = TASKS[task].language(grade)
        self.before = switch(grade, before=True) if task == "switch" else None

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        boundaries = self.language.optimal_boundaries(byte_ids)  # [B, T]
        if self.before is not None:
            earlier = self.before.ideal_log_prob(byte_ids)[:, -1:] > -math.inf  # [B, 1]
            boundaries = torch.where(earlier, self.before.optimal_boundaries(byte_ids), boundaries)
        return Segments(boundaries)


class Even(Segmenter):
    """Draws evenly spaced boundaries whose mean rate over rows is the target."""

    reads_states = False

    def __init__(self, model: UNet, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        rows, steps = byte_ids.shape
        position = torch.arange(steps, device=byte_ids.device).expand(rows, steps)
        rates = row_rates(self.rate, rows, steps).to(byte_ids.device)
        return Segments(evenly_spaced(position.unsqueeze(-1), rate=rates[:, None]))


def entry_overrides(name: str) -> tuple[str, ...]:
    """Return the options of an entry: a key of ``FIXED``, ``RECIPE@GAMMA`` or ``ESTIMATOR@GAMMA``.

    Options of a recipe are no overrides of the run, and :func:`cell_config` adds them.

    Example:
        >>> entry_overrides("leave_one_out@0.95")
        ('estimator=discounted_return', 'baseline=leave_one_out', 'estimator.gamma=0.95')
    """
    if name in FIXED:
        return FIXED[name]
    estimator, _, gamma = name.rpartition("@")
    discount = _discount(gamma)
    if is_import_path(estimator):
        import_path("estimator", estimator)  # before hours of training
    elif estimator not in ESTIMATORS and estimator not in RECIPES:
        suffix = gamma if estimator else f"{GAMMA:g}"  # the one part of a name without @ is in gamma
        near = did_you_mean(name, [*FIXED, *(f"{known}@{suffix}" for known in (*ESTIMATORS, *RECIPES))])
        raise ValueError(
            f"entries must be among {[*FIXED]}, RECIPE@GAMMA, or ESTIMATOR@GAMMA with an estimator among "
            f"{[*ESTIMATORS]} or module:Class, got {name!r}{near}"
        )
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma!r} in entry {name!r}")
    if estimator in RECIPES:
        return ()
    return (*ESTIMATORS.get(estimator, (*_RETURN, f"estimator.name={estimator}")), f"estimator.gamma={discount:g}")


def _discount(text: str) -> float:
    """Return the number that follows @ in the name of an entry, or nan."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_estimators(names: Sequence[str]) -> None:
    """Raise ValueError for a name that is neither an estimator of the suite nor ``module:Class``."""
    for name in names:
        if name not in ESTIMATORS and not is_import_path(name):
            near = did_you_mean(name, ESTIMATORS)
            raise ValueError(f"estimator must be among {[*ESTIMATORS]}, or module:Class, got {name!r}{near}")


def row_rates(rate: float, num_rows: int, num_steps: int) -> Tensor:
    """Return the rates of evenly spaced boundaries in each row [B], which draw ``rate`` on average.

    A text has a whole number of boundaries after its first byte. Rows have one of the two numbers nearest to
    ``rate (num_steps - 1)``, at least 1, so often that the sum over rows is at most half a boundary off, unless the
    target is below one per text.

    Example:
        >>> (8 * row_rates(0.2, 2, 8)).int().tolist()  # 1.4 boundaries per text: 1 and 2
        [1, 2]
    """
    per_row = rate * (num_steps - 1)
    totals = (torch.arange(num_rows + 1, dtype=torch.float64) * per_row + 0.5).floor()
    return (totals.diff().clamp(min=1.0) + 0.5) / num_steps


def cell_config(
    task: str, grade: int, entry: str, seed: int = 0, *, flops: float, overrides: Sequence[str] = ()
) -> TrainConfig:
    """Return the configuration of a cell's run, which ends after ``flops``, trials included."""
    config, named = deepcopy(_composed((*BASE, *entry_overrides(entry), *overrides))), override_names(overrides)
    recipe, _, gamma = entry.partition("@")
    if recipe in RECIPES:
        config = _with_recipe(config, recipe, keep=named)
        config.estimator.gamma = _discount(gamma) if gamma else RECIPES[recipe]
    data = config.data
    if "data.num_steps" not in named:
        data.num_steps = TASKS[task].num_steps[grade - 1]
    if "data.num_rows" not in named:
        data.num_rows = max(LEAST_ROWS, ROW_BYTES // data.num_steps)
    data.source, data.options, config.seed = task, {"grade": grade}, seed
    rate = _target_rate(task, grade)
    config.model.overrides["target_rate"] = rate
    if entry == UNIFORM:
        config.segmenter.options = {"rate": rate}
    if entry == ORACLE:
        config.segmenter.options = {"task": task, "grade": grade}
    config.optim.total_flops = float(flops)
    if task == "switch":
        data.options["after"] = max(1, round(SWITCH_AT[grade - 1] * drawn_bytes(config)))
    return config


def override_names(overrides: Sequence[str]) -> list[str]:
    """Return the options that overrides set, and refuse those that the suite sets itself.

    Example:
        >>> override_names(["loss.entropy=0.003", "+estimator.options.apart=4"])
        ['loss.entropy', 'estimator.options.apart']
    """
    names = [text.lstrip("+~").partition("=")[0] for text in overrides]
    for name in names:
        taken = [option for option in (*SET_BY_CELLS, *SET_BY_ENTRIES) if covers(option, name)]
        if taken := taken or [option for option in SET_BY_ENTRIES if covers(name, option)]:
            raise ValueError(
                f"overrides must leave {taken[0]} to the suite, whose tasks, grades, entries, estimator, gamma, seeds "
                f"and flops set it, got {name!r}"
            )
    return names


def _with_recipe(config: TrainConfig, name: str, *, keep: Sequence[str]) -> TrainConfig:
    """Return a run with the policy of a recipe, but for the cap, the control of the rate, and options to keep."""
    followed = follow_policy(config, name, keep=keep)
    followed.model.overrides[CAP] = config.model.overrides[CAP]
    followed.rate = config.rate
    return followed


@cache  # each entry asks, and a rate is that of a whole language
def _target_rate(task: str, grade: int) -> float:
    return round(TASKS[task].rate(grade), 6)


@cache
def _composed(overrides: tuple[str, ...]) -> TrainConfig:
    config: TrainConfig = compose_config(overrides)
    return config


def drawn_bytes(config: TrainConfig) -> float:
    """Return the bytes of text that a run draws within its FLOPs at the target rate; rows may share texts."""
    trainer, _ = make_trainer(config)
    epochs = trainer.options.policy_epochs
    flops = UpdateFlops.of(trainer.model, trainer.loss, trainer.segmenter, policy_epochs=epochs)
    tokens: Any = (1, trainer.model.config.target_rate, 0.0)  # per byte
    per_byte = sum(flops.total(costs, *tokens) for costs in flops.parts)
    windows = (config.optim.total_flops or 0.0) / per_byte / config.data.num_steps
    return windows * (config.data.num_steps + 1) / config.baseline.rows_per_text

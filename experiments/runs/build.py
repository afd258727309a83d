"""Build the trainer of a run from its configuration: model, estimator, loss, environment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from rltok_rl.agents import BoundaryCritic, RandomActor, RolloutPolicy, UniformActor, WhitespaceActor
from rltok_rl.agents.segmenters import Segmenter, SegmenterActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.run_config import OptimConfig, TrainConfig
from rltok_rl.experiments.runs.custom import configured_baseline, custom_estimator
from rltok_rl.experiments.runs.segmenters import (
    build_segmenter,
    build_warm_start_rule,
    check_segmenter_options,
    learned,
    make_layout,
    model_overrides,
    rows_per_text,
    stage_factors,
)
from rltok_rl.experiments.texts import Texts, read_texts
from torchrl.objectives.utils import get_value_estimator_entry

from rltok_rl.data import RepeatedSource
from rltok_rl.fused import allow_fused
from rltok_rl.fused.choice import SWITCH
from rltok_rl.models import UNet, UNetConfig, begin_with, preset
from rltok_rl.objectives import (
    BASELINE_NAMES,
    BoundaryClipPPOLoss,
    BoundaryReinforceLoss,
    EntropyBonus,
    JointLoss,
    RateLoss,
    Trials,
    make_estimator,
)
from rltok_rl.objectives.joint import model_terms
from rltok_rl.objectives.rate_loss import CONTROLLERS
from rltok_rl.renamed import renamed_word
from rltok_rl.training import Alarms, LoopOptions, Trainer
from rltok_rl.training.checkpoint import seed_everything
from rltok_rl.training.distributed import Processes
from rltok_rl.training.options import RECOMPUTE, compile_layers, recompute_layers
from rltok_rl.utils import check_options, did_you_mean, is_import_path

ACTORS = ("learned", "random", "uniform", "whitespace")
OBJECTIVES = ("reinforce", "importance", "ppo")
ESTIMATORS: dict[str, tuple[str, ...]] = {
    "discounted_return": (),
    "natural_gradient": ("floor",),
    "control_variate": ("regressor_keys", "hindsight", "ridge", "folds"),
    "critic_advantage": ("lmbda",),
    "local_flips": ("num_flips", "span", "every", "rows_per_pass"),
    "budgeted_flips": ("num_flips", "span", "every", "settled", "rows_per_pass"),
    "token_gain": ("apart", "every", "settled", "rows_per_pass"),
    "disarm": ("every", "settled", "rows_per_pass"),
}
"""Names of estimators, and ``estimator.options`` of each."""
RATE_OPTIONS = ("ends", "proportional", "integral")
FIGURES_EVERY = 16
"""Updates whose metrics are fetched together on accelerators."""


def make_actor(config: TrainConfig, model: UNet) -> Any:
    """Return the actor that draws the boundaries; None for the model's policy or a segmenter."""
    actor = config.actor
    _check("actor.name", actor.name, ACTORS)
    if actor.name in ("random", "uniform"):
        rate = model.config.target_rate if actor.rate is None else actor.rate
        return RandomActor(rate) if actor.name == "random" else UniformActor(rate)
    if actor.rate is not None:
        raise ValueError(
            f"actor.rate belongs to 'random' and 'uniform', got {actor.rate} with {actor.name!r}; a learned policy's "
            f"rate is model.overrides.target_rate"
        )
    return WhitespaceActor() if actor.name == "whitespace" else None


def make_advantages(config: TrainConfig, model: UNet, process_group: Any = None) -> Any:
    """Return the value estimator with its baseline."""
    estimator = replace(config.estimator, name=renamed_word("estimator", config.estimator.name))
    baseline = replace(config.baseline, name=renamed_word("baseline", config.baseline.name))
    config = replace(config, estimator=estimator, baseline=baseline)
    _check("estimator.name", estimator.name, ESTIMATORS, custom=True)
    _check("baseline.name", baseline.name, BASELINE_NAMES, custom=True)
    if baseline.name == "group_mean" and baseline.rows_per_text < 2:
        raise ValueError(f"baseline.rows_per_text must be at least 2 for 'group_mean', got {baseline.rows_per_text}")
    if is_import_path(estimator.name):
        return custom_estimator(config, model, process_group)
    made = get_value_estimator_entry(estimator.name).cls
    allowed = ESTIMATORS[estimator.name]
    check_options("estimator.options", made, estimator.options, allowed=allowed, of=estimator.name)
    num_rows = config.data.num_rows * config.compute.micro_batches
    if (folds := estimator.options.get("folds", 2)) > num_rows:
        raise ValueError(f"estimator.options.folds must be at most the rows of an update, {num_rows}, got {folds}")
    options: dict[str, Any] = {"gamma": estimator.gamma, "process_group": process_group, **estimator.options}
    if estimator.always_runs_trials and baseline.name != "none":
        hint = "; estimator.options.settled lets it take over" if "settled" in allowed else ""
        raise ValueError(
            f"baseline must be 'none' with {estimator.name!r}, which needs none, got {baseline.name!r}{hint}"
        )
    if issubclass(made, Trials):
        options = {"model": model, "price": estimator.price, "layout": make_layout(config, model), **options}
    if estimator.name == "critic_advantage":
        if config.loss.objective != "ppo":
            raise ValueError(
                f"estimator 'critic_advantage' needs loss.objective='ppo', which trains its critic, "
                f"got {config.loss.objective!r}"
            )
        options = {"lmbda": 0.95, "value_network": BoundaryCritic(model.config), **options}
    return make_estimator(estimator.name, baseline=configured_baseline(config), **options)


def make_loss(
    config: TrainConfig, model: UNet, process_group: Any = None, segmenter: Segmenter | None = None
) -> JointLoss:
    """Return the joint loss: of the next bytes, and of the learned policy, the segmenter and the second level."""
    weights, rate = config.loss, config.rate
    together: dict[str, Any] = {"process_group": process_group}
    predictions = {"language_model": weights.language_model, "early_exit": weights.early_exit}
    if segmenter is not None:
        return JointLoss.of_segmenter(segmenter, model, **predictions, **together)
    terms, coefficients = model_terms(model, None, **predictions, **together)
    if config.actor.name == "learned":
        terms["policy"] = _policy_loss(config, model, process_group)
        check_options("rate.options", RateLoss, rate.options, allowed=RATE_OPTIONS)
        groups = None if rate.control in CONTROLLERS else weights.rows_per_mean  # controllers take one mean of all rows
        options = {"control": rate.control, "rows_per_mean": groups, **together, **rate.options}
        terms["rate"] = RateLoss(model.config.target_rate, **options)
        coefficients |= {"policy": weights.policy, "rate": rate.coefficient}
        if weights.entropy:
            terms["entropy"], coefficients["entropy"] = EntropyBonus(**together), weights.entropy
    return JointLoss(terms, coefficients)


def _policy_loss(config: TrainConfig, model: UNet, process_group: Any) -> Any:
    weights = config.loss
    _check("loss.objective", weights.objective, OBJECTIVES)
    advantages = make_advantages(config, model, process_group)
    options: dict[str, Any] = {"process_group": process_group}
    if weights.objective == "ppo":
        critic = getattr(advantages, "value_network", None)
        if critic is not None:
            options["critic_coeff"] = weights.critic
        options["entropy_bonus"] = False  # a separate term of the joint loss
        clip = (weights.clip_low, weights.clip_high)
        loss = BoundaryClipPPOLoss(RolloutPolicy(), critic, clip_epsilon=clip, **options)
        return loss.make_value_estimator(advantages)
    options["average"] = weights.average
    if weights.objective == "importance":
        options |= {"actor": RolloutPolicy(), "off_policy": True, "max_weight": weights.max_weight}
    return BoundaryReinforceLoss(advantages, **options)


def model_config(config: TrainConfig) -> UNetConfig:
    """Return the configuration of the run's U-Net."""
    return preset(config.model.preset, **model_overrides(config))


def make_model(config: TrainConfig, device: torch.device) -> UNet:
    """Return the U-Net with weights drawn from the run's seed, or with those of ``model.weights``."""
    seed_everything(config.seed)
    overrides = model_overrides(config)
    model = UNet(model_config(config))
    if config.model.weights is not None:
        try:
            begin_with(model, config.model.weights, replaced=overrides)
        except (OSError, ValueError) as error:
            raise ValueError(f"model.weights={config.model.weights}: {error}") from None
    return model.to(device)


def warm_up_bytes(optim: OptimConfig) -> int:
    """Return the bytes of linear warm-up: ``optim.warm_up_bytes``, or the share ``optim.warm_up`` of the run.

    Example:
        >>> warm_up_bytes(OptimConfig(total_bytes=20_000, warm_up=0.05))
        1000
    """
    if optim.warm_up_bytes is None:
        return round(optim.warm_up * optim.total_bytes)
    if optim.warm_up_bytes >= optim.total_bytes:
        raise ValueError(
            f"optim.warm_up_bytes must lie in [0, optim.total_bytes={optim.total_bytes}), got {optim.warm_up_bytes}; "
            f"lower it, or use a share of the run: optim.warm_up_bytes=null optim.warm_up=0.05"
        )
    return optim.warm_up_bytes


def loop_options(config: TrainConfig) -> LoopOptions:
    """Return the options of the training loop, without learning-rate factors of stages."""
    optim, compute = config.optim, config.compute
    # A segmenter or a rule instead of an experiment's policy ignores that policy's options.
    by_rewards = learned(config) and config.actor.name == "learned"
    figures_every = compute.figures_every
    if figures_every is None:
        figures_every = 1 if torch.device(compute.device).type == "cpu" else FIGURES_EVERY
    return LoopOptions(
        total_bytes=optim.total_bytes,
        total_flops=optim.total_flops,
        lr=optim.lr,
        warm_up_bytes=warm_up_bytes(optim),
        warm_up_start=optim.warm_up_start,
        lr_floor=optim.lr_floor,
        lr_at=optim.lr_at,
        betas=(optim.beta1, optim.beta2),
        weight_decay=optim.weight_decay,
        decayed=optim.decayed,
        clip_norm=optim.clip_norm,
        micro_batches=compute.micro_batches,
        precision=compute.precision,
        figures_every=figures_every,
        policy_epochs=config.loss.policy_epochs if by_rewards else 1,
        warm_start_bytes=config.actor.warm_start_bytes if by_rewards else 0,
    )


def _check_groups(name: str, size: int | None, num_rows: int, micro_batches: int) -> None:
    """Require groups of ``size`` rows that lie in one process with ``num_rows`` rows per micro-batch."""
    if size is not None and num_rows * micro_batches % size:
        raise ValueError(
            f"{name} must divide the rows of an update in each process, {num_rows} rows x {micro_batches} "
            f"micro-batches, got {size}"
        )


def make_trainer(
    config: TrainConfig, processes: Processes | None = None, texts: Texts | None = None
) -> tuple[Trainer, Texts]:
    """Return the trainer that a configuration describes, and its documents."""
    processes = Processes(device=torch.device(config.compute.device)) if processes is None else processes
    data, compute = config.data, config.compute
    num_rows = processes.share(data.num_rows, name="data.num_rows")
    if learned(config) and config.actor.name == "learned":
        _check_groups("loss.rows_per_mean", config.loss.rows_per_mean, num_rows, compute.micro_batches)
    check_segmenter_options(config)
    _check("compute.recompute", compute.recompute, RECOMPUTE)
    _check("compute.fused", compute.fused, SWITCH)
    allow_fused(compute.fused == "auto")
    repeated = rows_per_text(config, processes.world_size)
    options = loop_options(config)
    if texts is None:
        reading: dict[str, Any] = {"seed": config.seed, "marks": model_config(config).num_marks}
        texts = read_texts(data, **reading) if processes.main else None
        processes.meet()  # rank 0 writes the cache, the others read it
        texts = read_texts(data, verify=processes.first_here, **reading) if texts is None else texts
        processes.meet()  # other machines may download too
    model = make_model(config, processes.device)
    segmenter = build_segmenter(config, model, texts, processes)
    options = replace(options, stage_factors=stage_factors(config, segmenter))
    source = texts.train if repeated == 1 else RepeatedSource(texts.train, repeated)
    reward: dict[str, Any] = {"reward": config.estimator.reward, "price": config.estimator.price}
    reward["likelihood_chunk"] = compute.likelihood_chunk
    if config.actor.rates is not None:
        reward["target_rates"] = _rates(config)
    reward["layout"] = make_layout(config, model, segmenter)
    env = ByteBoundaryEnv(model, source, num_steps=data.num_steps, batch_size=(num_rows,), seed=config.seed, **reward)
    loss = make_loss(config, model, processes.group, segmenter).to(processes.device)
    every = getattr(loss.policy_estimator, "every", None)
    _check_groups("estimator.options.every", every, num_rows, compute.micro_batches)
    actor = make_actor(config, model) if segmenter is None else SegmenterActor(segmenter)
    controlled = actor is None and config.actor.rates is None and bool(config.rate.coefficient)
    target = model.config.target_rate if controlled else None
    alarms = Alarms(target_rate=target if segmenter is None else segmenter.target_rate)
    parallel: dict[str, Any] = {"processes": processes, "strategy": compute.strategy}
    parallel["warm_start_rule"] = build_warm_start_rule(config, model)
    trainer = Trainer(model, env, loss, options, actor=actor, alarms=alarms, seed=config.seed, **parallel)
    if compute.compile:
        compile_layers(model)
    recompute_layers(model, compute.recompute)
    return trainer, texts


def _rates(config: TrainConfig) -> tuple[float, ...]:
    """The range of ``actor.rates``, checked."""
    rates, other = list(config.actor.rates or ()), {config.actor.name, config.segmenter.name} - {"learned"}
    if other:
        raise ValueError(f"actor.rates belongs to the learned policy, got {rates} with {other.pop()!r}")
    if config.rate.coefficient and config.rate.control != "logit_pressure":
        raise ValueError(f"rate.control must be 'logit_pressure' with actor.rates, got {config.rate.control!r}")
    if len(rates) != 2:
        raise ValueError(f"actor.rates must be [low, high] with 0 < low <= high < 1, got {rates}")
    return tuple(rates)


def _check(name: str, value: str, allowed: Collection[str], *, custom: bool = False) -> None:
    if value not in allowed and not (custom and is_import_path(value)):
        also = ", or a custom module:Name" if custom else ""
        suggestion = did_you_mean(value, allowed)
        raise ValueError(f"{name} must be one of {list(allowed)}{also}, got {value!r}{suggestion}")

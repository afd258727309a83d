"""Systems of a comparison: the configuration of each, and their common budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.experiments.commands.option_errors import nearest
from rltok_rl.experiments.commands.schema import CONF, choices
from rltok_rl.experiments.recipes import (
    MODEL,
    OF_ALL,
    OF_LEARNED,
    RECIPES,
    covers,
    follow_policy,
    read_choice,
    read_whole,
    recipe_settings,
)
from rltok_rl.experiments.run_config import CompareConfig, SegmenterConfig, TrainConfig
from rltok_rl.experiments.runs.build import loop_options, make_loss, model_config
from rltok_rl.experiments.runs.segmenters import (
    TOKENIZERS,
    build_warm_start_rule,
    check_segmenter_options,
    learned,
    segmenter_options,
)
from rltok_rl.experiments.runs.valid_options import check_options

from rltok_rl.models import UNet
from rltok_rl.models.flops import update_flops
from rltok_rl.utils import is_import_path

BY_RECIPE: dict[str, dict[str, Any]] = {
    "learned-paper": {"recipe": "paper"},
    "learned-paper-0.9": {"recipe": "paper", "estimator": {"gamma": 0.9}},
    "learned-released": {"recipe": "released"},
    "learned-released-0.9": {"recipe": "released", "estimator": {"gamma": 0.9}},
    "learned-tuned": {"recipe": "tuned"},
    "learned-unscaled": {"recipe": "unscaled"},
    "learned-normed": {"recipe": "normed"},
    "learned-ours": {"recipe": "ours"},
}
"""Variants that every comparison has: policies of recipes. The paper has gamma 0.99, but three of four stored versions
of the released training step use 0.9; it is not known which of them trained the paper's models."""


_SHARED = ("data", "out", "resume", "compare", "seed", "optim.total", "checkpoint_")
"""Options that no variant may change."""


def variants(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Return the variants that a comparison names, and those of recipes."""
    return BY_RECIPE | config.compare.variants


def system_names(variants: Mapping[str, Any] = BY_RECIPE) -> list[str]:
    """Return the names of all systems: segmenters and variants.

    Example:
        >>> {"learned", "learned-paper", "hnet"} <= set(system_names())
        True
    """
    return sorted({*choices("segmenter"), *variants})


def system_config(config: TrainConfig, system: str) -> TrainConfig:
    """Return the configuration of a system's run, in a subfolder of the comparison's."""
    by_name = variants(config)
    names, variant = system_names(by_name), by_name.get(system)
    if system not in names:
        near, (start, dot, _) = nearest(system, names), system.partition(".")
        if dot and start in config.compare.variants:
            near = f"; a dot in compare.variants.{system}= begins a level, write 'compare.variants={{{system}: ...}}'"
        raise ValueError(f"compare.systems must be among {names}, got {system!r}{near}")
    for where, held in ((f"options.{system}", config.compare.options.get(system, {})), (f"variants.{system}", variant)):
        if held is not None and not isinstance(held, Mapping):
            raise ValueError(f"compare.{where} must hold options by name, got {held!r}")
    changed: dict[str, Any] = {
        "segmenter": _segmenter(config, system, variant),
        "compare": CompareConfig(),
        "out": str(Path(config.out) / system),
        "resume": True,
    }
    with_variant = config if variant is None else _with_variant(config, system, variant)
    own, lr = with_variant.optim.lr, config.compare.learning_rates.get(system)
    if lr is not None and "optim.lr" in _leaves(variant or {}):
        raise ValueError(
            f"compare.learning_rates must leave {system!r} out, whose variant has optim.lr={own}, got {lr}"
        )
    optim = replace(with_variant.optim, total_flops=budget(config), lr=own if lr is None else lr)
    return replace(with_variant, **changed, optim=optim)


def _segmenter(config: TrainConfig, system: str, variant: Mapping[str, Any] | None) -> SegmenterConfig:
    """Return the segmenter of a system: the one of its name, or the one that its variant names."""
    chosen: Mapping[str, Any] = {"name": system} if variant is None else _variant_segmenter(system, variant)
    name = chosen["name"]
    file: dict[str, Any] = {"name": name} if is_import_path(name) else read_choice("segmenter", name)
    options = {**file.pop("options", {}), **chosen.get("options", {}), **config.compare.options.get(system, {})}
    return SegmenterConfig(**file, options=options, stage_factors=config.segmenter.stage_factors)


def _variant_segmenter(system: str, variant: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the name and the options of a variant's segmenter; without one, a learned policy draws."""
    if "segmenter" not in variant:
        return {"name": "learned"}
    chosen, where, words = variant["segmenter"], f"compare.variants.{system}.segmenter", choices("segmenter")
    example = chosen if chosen in words else "spacebyte"
    if not isinstance(chosen, Mapping) or "name" not in chosen or not set(chosen) <= {"name", "options"}:
        raise ValueError(f"{where} must hold a name and perhaps options, such as {{name: {example}}}, got {chosen!r}")
    name, options = chosen["name"], chosen.get("options", {})
    if not isinstance(options, Mapping):
        raise ValueError(f"{where}.options must hold options by name, got {options!r}")
    if name not in words and not is_import_path(str(name)):
        near = nearest(str(name), words)
        raise ValueError(f"{where}.name must be one of {words}, or module:Class, got {name!r}{near}")
    of_policy = ("recipe", "ablation", *OF_LEARNED)
    refused = [leaf for leaf in _leaves(variant) if leaf.partition(".")[0] in of_policy and leaf not in OF_ALL]
    if name != "learned" and refused:
        raise ValueError(
            f"{where} must leave {refused[0]!r} out, which belongs to a policy that is learned, got {name!r}"
        )
    return chosen


def _with_variant(config: TrainConfig, name: str, variant: Mapping[str, Any]) -> TrainConfig:
    """Return a comparison's options with those of a variant: its recipe's policy, its ablation, and its own."""
    where = f"compare.variants.{name}"
    values = {option: value for option, value in variant.items() if option != "segmenter"}
    recipe, ablation = values.pop("recipe", None), values.pop("ablation", None)
    if refused := [option for option in _leaves(values) if option.startswith(_SHARED)]:
        raise ValueError(f"{where} must leave {refused[0]} out: all systems share it, or their names decide it")
    if recipe is not None:
        if recipe not in RECIPES:
            raise ValueError(f"{where}.recipe must be one of {[*RECIPES]}, got {recipe!r}{nearest(recipe, RECIPES)}")
        config = follow_policy(config, recipe)
    ablated: dict[str, Any] = {}
    if ablation is not None:
        if ablation not in choices("ablation"):
            raise ValueError(f"{where}.ablation must be one of {choices('ablation')}, got {ablation!r}")
        ablated, _ = read_whole(CONF / "ablation" / f"{ablation}.yaml")
    try:
        options: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(config), ablated, values))
    except OmegaConfBaseException as error:
        problem = str(error.msg).splitlines()[0]
        raise ValueError(f"{where} must hold options of a run, got {values}: {problem}") from None
    options.changes = [*config.changes, *ablated.pop("changes", ()), *_changes(values)]
    return cast(TrainConfig, options)


def _changes(values: Mapping[str, Any]) -> list[str]:
    """Names of the changed options that recipes set; ``estimator.options`` covers its entries."""
    leaves, settings = [*_leaves(values)], recipe_settings(RECIPES[0])
    names = [name for leaf in leaves for name in settings if covers(name, leaf)]
    names += [leaf for leaf in leaves if leaf.startswith(MODEL) and leaf not in names]
    return [*dict.fromkeys(names)]  # leaves of one option name it once


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Names of the options in nested values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


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
        check_options(config)
        check_training(config)
    except (ValueError, TypeError, ImportError) as error:
        raise ValueError(f"system {system!r} cannot be trained: {error}") from error


def check_training(config: TrainConfig) -> None:
    """Refuse a configuration whose model, segmenter or loss cannot be built; the model has no weights."""
    check_segmenter_options(config)
    loop_options(config)
    model, segmenter = _meta_model(config), None
    with torch.device("meta"):
        if not learned(config):
            tokenizer = {"tokenizer": lambda text: [len(text)]} if config.segmenter.name in TOKENIZERS else {}
            segmenter = make_segmenter(config.segmenter.name, model, **segmenter_options(config), **tokenizer)
        build_warm_start_rule(config, model)
    make_loss(config, model, segmenter=segmenter)  # its clips and critic need values


def _meta_model(config: TrainConfig) -> UNet:
    """The model without weights."""
    with torch.device("meta"):
        return UNet(model_config(config))

"""From a segmenter's word to the segmenter of a training: tokenizers are trained, thresholds are left to the loop."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from rltok_rl.agents.segmenters import (
    SEGMENTERS,
    Segmenter,
    TokenizerSplit,
    WordSplit,
    make_segmenter,
    save_segmenter,
    segmenter_maker,
)
from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from rltok_rl.agents.segmenters.tokenizers import read_tokenizer
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs.tokenizer import TRAINED_WITH, train_tokenizer
from rltok_rl.experiments.texts import Texts

from rltok_rl.models import UNet
from rltok_rl.models.tokens import Layout, Packing
from rltok_rl.training import Trainer
from rltok_rl.training.parallel import Processes
from rltok_rl.utils import check_count

TOKENIZERS = {"bpe": TokenizerSplit, "unigram": WordSplit}
"""Segmenters whose tokenizer is trained at the start of a run, and what its pieces are read as."""

RULES = {"random": "bernoulli", "uniform": "uniform", "whitespace": "whitespace"}
"""Actors that draw by a rule, and the segmenters that draw the same."""


def learned(config: TrainConfig) -> bool:
    """Whether the model's own policy, or an actor in its place, draws the boundaries."""
    return config.segmenter.name == "learned"


def model_overrides(config: TrainConfig) -> dict[str, Any]:
    """Fields of the model's configuration to replace: those of ``model``, and what a segmenter's word needs.

    Args:
        config: of the training.
    """
    given = config.segmenter.options if learned(config) else {}
    return {**config.segmenter.model, **config.model.overrides, **given}


def check_segmenter_options(config: TrainConfig) -> None:
    """Refuse a word that no segmenter has, options that it does not know, and rows that do not fit it.

    Args:
        config: of the training.
    """
    name, given = config.segmenter.name, config.segmenter.options
    make = segmenter_maker(name, argument="segmenter.name")
    if learned(config):
        allowed = ["num_lags"]
    else:
        allowed = [one for one in inspect.signature(make).parameters if one not in ("model", "tokenizer")]
        allowed += TRAINED_WITH if name in TOKENIZERS else ()
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ValueError(f"segmenter.options of {name!r} must be among {allowed}, got {unknown}")
    if name in TOKENIZERS and given.get("vocabulary") is not None and given.get("rate") is not None:
        raise ValueError(f"segmenter.options of {name!r} must have vocabulary or rate, not both, got {given}")
    rows_per_text(config)


def rows_per_text(config: TrainConfig, world_size: int = 1) -> int:
    """Rows of the training that read one text side by side: as many as are compared with each other.

    Args:
        config: of the training.
        world_size: processes that share the rows; a text is read by one of them.
    """
    named, rows = "baseline.rows_per_text", config.baseline.rows_per_text
    if config.segmenter.name == "grouped":
        default = inspect.signature(SEGMENTERS["grouped"]).parameters["group_size"].default
        named = "segmenter.options.group_size"
        rows = check_count(named, config.segmenter.options.get("group_size", default), minimum=2)
    if config.data.num_rows // world_size % rows:
        raise ValueError(
            f"data.num_rows must be a multiple of {named}, {rows}, in each of {world_size} processes, "
            f"got {config.data.num_rows}"
        )
    return rows


def segmenter_options(config: TrainConfig) -> dict[str, Any]:
    """Options that the segmenter itself is made with, plain values; ``random`` is exact in every window."""
    options = dict(config.segmenter.options)
    if config.segmenter.name == "random":
        options.setdefault("block", config.data.num_steps)
    return {k: v for k, v in options.items() if config.segmenter.name not in TOKENIZERS or k not in TRAINED_WITH}


def build_segmenter(config: TrainConfig, model: UNet, texts: Texts, processes: Processes) -> Segmenter | None:
    """The segmenter that a configuration names; None where the policy is learned, or an actor draws.

    Args:
        config: of the training.
        model: the U-Net.
        texts: whose training side tokenizers are trained on.
        processes: that train together; the main one trains the tokenizer.
    """
    name = config.segmenter.name
    if learned(config):
        return None
    if config.actor.name != "learned":
        raise ValueError(
            f"actor and segmenter both say who draws the boundaries: leave actor={config.actor.name!r} out with "
            f"segmenter={name!r}"
        )
    options = segmenter_options(config)
    if name in TOKENIZERS:
        text = None
        if processes.main:
            text = train_tokenizer(config, model, texts).tokenizer.to_str()
        options["tokenizer"] = read_tokenizer(processes.broadcast(text), TOKENIZERS[name])
    return make_segmenter(name, model, **options)


def aimed_rate(config: TrainConfig, model: UNet, segmenter: Segmenter | None) -> float | None:
    """Boundaries per byte that a training aims at; None where the text alone decides, or each script for itself.

    Args:
        config: of the training.
        model: the U-Net.
        segmenter: who draws the boundaries; None leaves that to the policy or the actor.
    """
    if segmenter is None:
        return model.config.target_rate
    options = config.segmenter.options
    if config.segmenter.name == "bpe" and options.get("vocabulary") is None:
        return float(options.get("rate") or model.config.target_rate)
    return options.get("rate") if config.segmenter.name == "unigram" else segmenter.target_rate


def keep_segmenter(config: TrainConfig, trainer: Trainer, folder: Path) -> None:
    """Write who drew the boundaries beside the model, where that was not the policy.

    Args:
        config: of the training.
        trainer: that is done.
        folder: of the model.
    """
    if trainer.segmenter is not None:
        options = segmenter_options(config)
        save_segmenter(folder, trainer.segmenter, trainer.model, name=config.segmenter.name, options=options)
    elif config.actor.name != "learned":
        made = actor_segmenter(config.actor.name, config.actor.rate, trainer.model)
        save_segmenter(folder, made[0], trainer.model, name=made[1], options=made[2])


def actor_segmenter(name: str, rate: float | None, model: UNet) -> tuple[Segmenter, str, dict[str, Any]]:
    """Return the segmenter that draws the boundaries of an actor, its name and its options.

    Actors are never custom code, so a file cannot name any here.

    Args:
        name: ``random``, ``uniform`` or ``whitespace``.
        rate: of the configuration.
        model: the U-Net.
    """
    if name not in RULES:
        raise ValueError(f"actor.name must be one of {[*RULES]} or 'learned', got {name!r}")
    word = RULES[name]
    options = {} if name == "whitespace" else {"rate": model.config.target_rate if rate is None else rate}
    return make_segmenter(word, model, **options), word, options


def stage_factors(config: TrainConfig, segmenter: Segmenter | None) -> tuple[float, ...] | None:
    """Learning-rate factors of the stages that a segmenter was published with, bytes first; None for none.

    Args:
        config: of the training.
        segmenter: of the model.
    """
    faithful = config.segmenter.options.get("variant", "faithful") == "faithful"
    if not isinstance(segmenter, HNetSegmenter) or not (faithful and config.segmenter.stage_factors):
        return None
    return tuple(segmenter.multipliers)


TOKENS = ("padded", "packed")


def make_layout(config: TrainConfig, model: UNet, segmenter: Segmenter | None = None) -> Layout:
    """The layout of tokens; with a room of ``compute.token_room`` above the number that is expected.

    Args:
        config: of the training.
        model: the U-Net.
        segmenter: who draws the boundaries; None leaves that to the policy or the actor.
    """
    tokens, room = config.compute.tokens, config.compute.token_room
    if tokens not in TOKENS:
        raise ValueError(f"compute.tokens must be one of {list(TOKENS)}, got {tokens!r}")
    if room is None:
        return "padded" if tokens == "padded" else Packing()
    if tokens == "padded":
        raise ValueError(f"compute.token_room belongs to compute.tokens='packed', got {room} with 'padded'")
    if not room > 0:
        raise ValueError(f"compute.token_room must be positive, got {room}")
    rate, above = expected_rate(config, model, segmenter), None
    if model.config.second_level is not None:
        said = None if segmenter is None else segmenter.second_rate
        above = (1 + room) * (model.config.second_rate if said is None else said)
    return Packing(tokens=(1 + room) * rate, second=above)


def expected_rate(config: TrainConfig, model: UNet, segmenter: Segmenter | None = None) -> float:
    """Boundaries per byte that a training aims at, the most where it aims at several.

    Args:
        config: of the training.
        model: the U-Net.
        segmenter: who draws the boundaries; None leaves that to the policy or the actor.
    """
    actor, name = config.actor, config.segmenter.name
    rate: float | None
    if segmenter is not None:
        rate = segmenter.target_rate
    else:
        name = actor.name
        told = {"learned": max(actor.rates) if actor.rates else None, "whitespace": None}.get(name, actor.rate)
        rate = None if name == "whitespace" else model.config.target_rate if told is None else told
    if rate is None:
        raise ValueError(
            f"compute.token_room must be null with {name!r}, which aims at no rate, got {config.compute.token_room}"
        )
    return rate

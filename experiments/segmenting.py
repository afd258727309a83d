"""From a segmenter's word to the segmenter of a training: tokenizers are trained, thresholds are left to the loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import (
    SEGMENTERS,
    Segmenter,
    TokenizerSplit,
    make_segmenter,
    save_segmenter,
    train_bpe,
)
from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from rltok_rl.agents.segmenters.saved import read_tokenizer
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.texts import Texts

from rltok_rl.data.windows import WindowSource, WindowWrapper
from rltok_rl.functional.text import ids_to_bytes
from rltok_rl.models import UNet
from rltok_rl.training import Trainer
from rltok_rl.training.distributed import Processes

TOKENIZERS = ("bpe",)
"""Segmenters whose tokenizer is trained at the start of a run."""
MOST_PIECES = 32_768
"""Vocabulary beyond which no rate is looked for."""
_SAMPLE_BYTES = 200_000
_OF_TOKENIZERS = ("vocabulary", "num_bytes", "rate")


def learned(config: TrainConfig) -> bool:
    """Whether the model's own policy, or an actor in its place, draws the boundaries."""
    return config.segmenter.name == "learned"


def model_overrides(config: TrainConfig) -> dict[str, Any]:
    """Fields of the model's configuration to replace: those of ``model``, and what a segmenter's word needs.

    Args:
        config: of the training.
    """
    given = config.segmenter.options if learned(config) else {}
    unknown = sorted(set(given) - {"num_lags"})
    if unknown:
        raise ValueError(f"segmenter.options of 'learned' must be among ['num_lags'], got {unknown}")
    return {**config.segmenter.model, **config.model.overrides, **given}


def segmenter_options(config: TrainConfig) -> dict[str, Any]:
    """Options that the segmenter itself is made with, plain values."""
    options = dict(config.segmenter.options)
    return {k: v for k, v in options.items() if config.segmenter.name not in TOKENIZERS or k not in _OF_TOKENIZERS}


def build_segmenter(config: TrainConfig, model: UNet, texts: Texts, processes: Processes) -> Segmenter | None:
    """The segmenter that a configuration names; None where the policy is learned, or an actor draws.

    Args:
        config: of the training.
        model: the U-Net.
        texts: whose training side tokenizers are trained on.
        processes: that train together; the main one trains the tokenizer.
    """
    name = config.segmenter.name
    if name not in SEGMENTERS:
        raise ValueError(f"segmenter.name must be one of {sorted(SEGMENTERS)}, got {name!r}")
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
            text = _tokenizer(config, model, texts).tokenizer.to_str()
        options["tokenizer"] = read_tokenizer(processes.broadcast(text))
    return make_segmenter(name, model, **options)


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
    """The segmenter that draws what an actor of a configuration draws, its word and its options.

    Args:
        name: ``random``, ``uniform`` or ``whitespace``.
        rate: of the configuration.
        model: the U-Net.
    """
    word = {"random": "bernoulli"}.get(name, name)
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


def _tokenizer(config: TrainConfig, model: UNet, texts: Texts) -> TokenizerSplit:
    options = {k: v for k, v in config.segmenter.options.items() if k in _OF_TOKENIZERS}
    length = config.data.num_steps + 1
    count = max(1, int(options.get("num_bytes", 2_000_000)) // length)
    windows = training_windows(texts.train, count, length, seed=config.seed)
    known = [window.decode("utf-8", errors="replace") for window in windows]
    vocabulary = options.get("vocabulary")
    if vocabulary is not None:
        return train_bpe(known, vocabulary=int(vocabulary))
    rate = float(options.get("rate") or model.config.target_rate)
    return at_rate(train_bpe(known, vocabulary=MOST_PIECES), windows[: max(1, _SAMPLE_BYTES // length)], rate)


def training_windows(source: WindowSource, count: int, length: int, *, seed: int) -> list[bytes]:
    """Windows of training text, drawn with random numbers of their own: what is trained on does not change.

    Args:
        source: of the training.
        count: how many.
        length: bytes of each.
        seed: of the random numbers.
    """
    while isinstance(source, WindowWrapper):  # an order has a state, which is the training's
        source = source.source
    drawn = source.draw(count, length, torch.Generator().manual_seed(seed))
    return [ids_to_bytes(row[:size]) for row, size in zip(drawn.byte_ids, drawn.lengths.tolist(), strict=True)]


def at_rate(split: TokenizerSplit, windows: Sequence[bytes], rate: float) -> TokenizerSplit:
    """The tokenizer of fewer pieces whose rate is nearest to a target.

    Byte-level BPE adds one merge after the other: the first of them are the tokenizer of a smaller vocabulary, and the
    rate falls with every one.

    Args:
        split: trained with more pieces than it takes.
        windows: texts to measure the rate on.
        rate: pieces per byte.
    """
    whole = json.loads(split.tokenizer.to_str())
    merges = whole["model"]["merges"]
    least = len(whole["model"]["vocab"]) - len(merges)
    tried: dict[int, tuple[float, TokenizerSplit]] = {}

    def look(number: int) -> float:
        kept = {piece: place for piece, place in whole["model"]["vocab"].items() if place < least + number}
        cut = {**whole, "model": {**whole["model"], "vocab": kept, "merges": merges[:number]}}
        made = read_tokenizer(json.dumps(cut))
        tried[number] = sum(len(made(w)) for w in windows) / sum(map(len, windows)), made
        return tried[number][0]

    low, high = 0, len(merges)
    look(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if look(middle) > rate else (low, middle)
    return min(tried.values(), key=lambda one: abs(one[0] - rate))[1]

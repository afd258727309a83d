"""Build a run's segmenter, its tokenizer and the token layout from the configuration."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
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
from rltok_rl.agents.segmenters.segmenter import second_rate
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.agents.segmenters.tokenizer_rates import train_on
from rltok_rl.agents.segmenters.tokenizers import PreTokenizer
from rltok_rl.experiments.recipes import read_choice
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.bpe_training import (
    NUM_BYTES,
    bpe_of_rate,
    cache_folder,
    cached_bpe,
    decode,
    read_windows,
)
from rltok_rl.experiments.texts import Texts

from rltok_rl.data.disk import flush
from rltok_rl.data.windows import WindowWrapper
from rltok_rl.models import UNet
from rltok_rl.models.tokens import Layout, Packing
from rltok_rl.ranges import check_arguments, check_fields, option
from rltok_rl.training import Trainer
from rltok_rl.training.distributed import Processes
from rltok_rl.utils import check_count, did_you_mean

TOKENIZERS = {"bpe": TokenizerSplit, "unigram": WordSplit}
"""Segmenters that train a tokenizer at the start of a run."""
RULES = {"random": "bernoulli", "uniform": "uniform", "whitespace": "whitespace"}
"""Segmenters that draw the same boundaries as the actors of these names."""
WARM_START_RULES = ("spacebyte", "third-letter", "whitespace", "uniform", "stride")
"""Choices of ``segmenter`` that a policy can imitate: rules on bytes and positions, without random numbers."""
UNTRAINED = (*WARM_START_RULES, "random", "bernoulli")
"""Choices of ``segmenter`` that draw boundaries without training."""
TOKENS = ("padded", "packed")


@dataclass(frozen=True)
class TokenizerTraining:
    """Options of a segmenter that say how its tokenizer is trained; the last two belong to ``bpe``."""

    vocabulary: int | None = option(None, "[256, 1e6]")
    num_bytes: int | None = option(None, "[1, inf)", "bytes")
    rate: float | None = option(None, "(0, 1]", "per byte")
    most_bytes: int | None = option(None, "[1, inf)", "bytes")
    pre_tokenizer: PreTokenizer | None = None


TRAINED_WITH = tuple(TokenizerTraining.__dataclass_fields__)


def learned(config: TrainConfig) -> bool:
    """Whether the model's own policy, or an actor in its place, draws the boundaries."""
    return config.segmenter.name == "learned"


def model_overrides(config: TrainConfig) -> dict[str, Any]:
    """Return the fields of the model's configuration that ``model`` and ``segmenter`` replace."""
    options = config.segmenter.options if learned(config) else {}
    return {**config.segmenter.model, **config.model.overrides, **options}


def check_segmenter_options(config: TrainConfig) -> None:
    """Reject unknown segmenters, unknown options, and numbers of rows that do not fit the segmenter."""
    name, options = config.segmenter.name, config.segmenter.options
    make = segmenter_maker(name, argument="segmenter.name")
    if learned(config):
        allowed = ["num_lags"]
    else:
        allowed = [option for option in inspect.signature(make).parameters if option not in ("model", "tokenizer")]
        allowed += {"bpe": TRAINED_WITH, "unigram": TRAINED_WITH[:3]}.get(name, ())
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(f"segmenter.options of {name!r} must be among {allowed}, got {unknown}")
    if learned(config) and model_overrides(config).get("byte_scope") == "token":
        raise ValueError(
            f"segmenter must decide from bytes alone (segmenter=whitespace, say) with model byte_scope='token', whose "
            f"encoder stops at boundaries, got segmenter='learned' with actor={config.actor.name!r}"
        )
    if name in TOKENIZERS and options.get("vocabulary") is not None and options.get("rate") is not None:
        raise ValueError(f"segmenter.options of {name!r} must have vocabulary or rate, not both, got {options}")
    if options.get("vocabulary") is not None and options.get("most_bytes") is not None:
        raise ValueError(f"segmenter.options.most_bytes belongs to rate, not to vocabulary, got {options}")
    if name in TOKENIZERS:
        training = {key: value for key, value in options.items() if key in TRAINED_WITH}
        check_fields(TokenizerTraining(**training), "segmenter.options.")
        if name == "unigram" and training.get("vocabulary") == 256:
            raise ValueError("segmenter.options.vocabulary must be at least 257 for 'unigram', got 256")
    if name in SEGMENTERS:
        check_arguments(make, segmenter_options(config), "segmenter.options.")
    rows_per_text(config)


def rows_per_text(config: TrainConfig, world_size: int = 1) -> int:
    """Return how many rows read one text side by side, to be compared with each other."""
    option, rows = "baseline.rows_per_text", config.baseline.rows_per_text
    if config.segmenter.name == "grouped":
        default = inspect.signature(SEGMENTERS["grouped"]).parameters["group_size"].default
        option = "segmenter.options.group_size"
        rows = check_count(option, config.segmenter.options.get("group_size", default), minimum=2)
    if config.data.num_rows // world_size % rows:
        raise ValueError(
            f"data.num_rows must be a multiple of {option}, {rows}, in each of {world_size} processes, "
            f"got {config.data.num_rows}"
        )
    return rows


def segmenter_options(config: TrainConfig) -> dict[str, Any]:
    """Return the options that the segmenter's class takes."""
    name, options = config.segmenter.name, dict(config.segmenter.options)
    if name == "random":
        options.setdefault("block", config.data.num_steps)  # exact in every window
    return {key: value for key, value in options.items() if name not in TOKENIZERS or key not in TRAINED_WITH}


def rule_segmenter(choice: str, model: UNet, **options: Any) -> Segmenter:
    """Build one of the choices of ``segmenter`` that need no training, with further options."""
    if choice not in UNTRAINED:
        raise ValueError(f"choice must be one of {list(UNTRAINED)}, got {choice!r}{did_you_mean(choice, UNTRAINED)}")
    file = read_choice("segmenter", choice)
    return make_segmenter(file["name"], model, **{**file.get("options", {}), **options})


def build_warm_start_rule(config: TrainConfig, model: UNet) -> Segmenter | None:
    """Build the rule that the policy imitates in its warm start; None without such a rule."""
    name, actor = "actor.warm_start_rule", config.actor
    if actor.warm_start_rule is None or not learned(config) or actor.name != "learned":
        return None
    if not actor.warm_start_bytes:
        raise ValueError(f"{name} needs actor.warm_start_bytes, the bytes that it draws the boundaries of, got 0")
    if config.loss.objective != "reinforce":
        raise ValueError(f"{name} needs loss.objective='reinforce', got {config.loss.objective!r}")
    if actor.rates is not None:
        raise ValueError(
            f"{name} must be null with actor.rates, since a rule has one rate, got {actor.warm_start_rule!r}"
        )
    if actor.warm_start_rule not in WARM_START_RULES:
        hint = did_you_mean(actor.warm_start_rule, WARM_START_RULES)
        raise ValueError(f"{name} must be one of {list(WARM_START_RULES)}, got {actor.warm_start_rule!r}{hint}")
    return rule_segmenter(actor.warm_start_rule, model)


def build_segmenter(config: TrainConfig, model: UNet, texts: Texts, processes: Processes) -> Segmenter | None:
    """Build the configured segmenter; None if a policy or an actor draws boundaries. Rank 0 trains tokenizers."""
    name = config.segmenter.name
    if learned(config):
        return None
    if config.actor.name != "learned":
        raise ValueError(
            f"actor must be 'learned' with segmenter={name!r}, which draws the boundaries, got {config.actor.name!r}"
        )
    options = segmenter_options(config)
    if name in TOKENIZERS:
        tokenizer = train_tokenizer(config, model, texts).tokenizer.to_str() if processes.main else None
        options["tokenizer"] = read_tokenizer(processes.broadcast(tokenizer), TOKENIZERS[name])
    return make_segmenter(name, model, **options)


def train_tokenizer(config: TrainConfig, model: UNet, texts: Texts) -> TokenizerSplit:
    """Train the run's tokenizer on its training text.

    `bpe` uses the given vocabulary size, else the size that reaches the given rate (default: the model's). `unigram`
    has 5,000 pieces by default.
    """
    name, length = config.segmenter.name, config.data.num_steps + 1 - model.config.num_marks
    how: dict[str, Any]
    options = {key: value for key, value in config.segmenter.options.items() if value is not None}
    source = texts.train
    while isinstance(source, WindowWrapper):  # an order has a state, which belongs to training
        source = source.source
    vocabulary, rate = options.get("vocabulary"), options.get("rate")
    if name == "bpe" and vocabulary is None:
        how = {key: options[key] for key in ("num_bytes", "most_bytes") if key in options}
        how |= {"seed": config.seed, "pre_tokenizer": options.get("pre_tokenizer"), "folder": cache_folder(source)}
        return bpe_of_rate(source, rate or model.config.target_rate, length=length, **how).split
    if vocabulary is None and rate is None:
        vocabulary = 5000
    windows = read_windows(source, options.get("num_bytes", NUM_BYTES), length, config.seed)
    if name == "bpe":
        how = {"vocabulary": vocabulary, "pre_tokenizer": options.get("pre_tokenizer", "gpt2")}
        return cached_bpe(cache_folder(source), lambda: map(decode, windows), **how)
    return train_on(name, windows, length=length, vocabulary=vocabulary, rate=rate)


def configured_rate(config: TrainConfig, model: UNet, segmenter: Segmenter | None) -> float | None:
    """Return the target of boundaries per byte; None if the text or a vocabulary decides, or if scripts differ."""
    if segmenter is None:
        return model.config.target_rate
    options = config.segmenter.options
    if config.segmenter.name == "bpe" and options.get("vocabulary") is None:
        return float(options.get("rate") or model.config.target_rate)
    return options.get("rate") if config.segmenter.name == "unigram" else segmenter.target_rate


def save_with_segmenter(config: TrainConfig, trainer: Trainer, model: UNet) -> None:
    """Save the unsharded model, together with its segmenter if its policy does not draw the boundaries."""
    folder = Path(config.out) / "model"
    model.save_pretrained(folder)
    if trainer.segmenter is not None:
        options = segmenter_options(config)
        save_segmenter(folder, trainer.segmenter, trainer.model, name=config.segmenter.name, options=options)
    elif config.actor.name != "learned":
        segmenter, name, options = actor_segmenter(config.actor.name, config.actor.rate, trainer.model)
        save_segmenter(folder, segmenter, trainer.model, name=name, options=options)
    for path in (*folder.iterdir(), folder, folder.parent):
        flush(path)  # before a summary says that the run is finished


def actor_segmenter(name: str, rate: float | None, model: UNet) -> tuple[Segmenter, str, dict[str, Any]]:
    """Return the segmenter that draws an actor's boundaries, its name and its options; never custom code."""
    if name not in RULES:
        raise ValueError(f"actor.name must be one of {[*RULES]} or 'learned', got {name!r}")
    options = {} if name == "whitespace" else {"rate": model.config.target_rate if rate is None else rate}
    return make_segmenter(RULES[name], model, **options), RULES[name], options


def stage_factors(config: TrainConfig, segmenter: Segmenter | None) -> tuple[float, ...] | None:
    """Return the learning-rate factors of H-Net's stages, bytes first; None for one learning rate."""
    faithful = config.segmenter.options.get("variant", "faithful") == "faithful"
    if not isinstance(segmenter, HNetSegmenter) or not (faithful and config.segmenter.stage_factors):
        return None
    return tuple(segmenter.multipliers)


def make_layout(config: TrainConfig, model: UNet, segmenter: Segmenter | None = None) -> Layout:
    """Return the layout of tokens; ``compute.token_room`` is the room above their expected number."""
    tokens, room = config.compute.tokens, config.compute.token_room
    if tokens not in TOKENS:
        raise ValueError(f"compute.tokens must be one of {list(TOKENS)}, got {tokens!r}")
    if room is None:
        return "padded" if tokens == "padded" else Packing()
    if tokens == "padded":
        raise ValueError(f"compute.token_room belongs to compute.tokens='packed', got {room} with 'padded'")
    second = (1 + room) * second_rate(model, segmenter) if model.config.second_level is not None else None
    return Packing(tokens=(1 + room) * _expected_rate(config, model, segmenter), second=second)


def _expected_rate(config: TrainConfig, model: UNet, segmenter: Segmenter | None) -> float:
    """The highest target of boundaries per byte; of systems without one the model's, where the room begins."""
    actor = config.actor
    rate: float | None = model.config.target_rate if actor.rate is None else actor.rate
    if segmenter is not None:
        rate = segmenter.target_rate
    elif actor.rates:
        rate = max(actor.rates)
    return model.config.target_rate if rate is None else rate

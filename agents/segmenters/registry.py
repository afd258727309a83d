"""Every segmenter by the word that a configuration says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from rltok_rl.agents.bernoulli import LearnedBoundaryActor, RandomActor
from rltok_rl.agents.rules import FixedStrideActor, UniformActor, WhitespaceActor
from rltok_rl.agents.segmenters.base import Segmenter
from rltok_rl.agents.segmenters.bpe import BPESegmenter, Split
from rltok_rl.agents.segmenters.entropy import DEFAULT_THRESHOLD, EntropyCombined, EntropySpike, EntropyThreshold
from rltok_rl.agents.segmenters.fixed import ActorSegmenter, ExactRandom, SpaceByte
from rltok_rl.agents.segmenters.grouped import Advantage, GroupedSegmenter
from rltok_rl.agents.segmenters.gumbel import Evaluation, Fidelity, GumbelSegmenter, TrainedSpike
from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from rltok_rl.agents.segmenters.magnet import MagnetSegmenter
from rltok_rl.agents.segmenters.predictors import EarlyExit, OwnModel, Predictor
from rltok_rl.agents.segmenters.unigram import TrainedPieces, UnigramSegmenter

from rltok_rl.models.byte_model import ByteModel
from rltok_rl.models.unet import UNet
from rltok_rl.utils import import_path, is_import_path

PredictorName = Literal["early_exit", "own"]


def make_segmenter(name: str, model: UNet, **options: Any) -> Segmenter:
    """The segmenter of a name, with the model's dtype and on its device.

    Args:
        name: a key of :data:`SEGMENTERS`, or ``module:Class`` of your own, made as ``Class(model, **options)``.
        model: the U-Net that it segments for.
        **options: of the segmenter; see its entry.

    Example:
        >>> from rltok_rl.models import preset
        >>> make_segmenter("uniform", UNet(preset("tiny")), rate=0.25).target_rate
        0.25
    """
    make = segmenter_maker(name)
    allowed = list(inspect.signature(make).parameters)[1:]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(f"options of segmenter {name!r} must be among {allowed}, got {unknown}")
    weight = model.embedding.weight
    made = make(model, **options)
    if not isinstance(made, Segmenter):
        raise TypeError(f"name must be of a segmenter, got {name!r}, which makes a {type(made).__name__}")
    # Parts shared with the model have its dtype and device already, so that it is not moved by this.
    return made.to(device=weight.device, dtype=weight.dtype)


def segmenter_maker(name: str, *, argument: str = "name") -> Callable[..., Segmenter]:
    """What makes the segmenters of a name: ``(model, **options) -> Segmenter``.

    Args:
        name: a key of :data:`SEGMENTERS`, or ``module:Class`` of your own.
        argument: what messages call the name.

    Example:
        >>> list(inspect.signature(segmenter_maker("stride")).parameters)
        ['model', 'stride']
    """
    if name in SEGMENTERS:
        return SEGMENTERS[name]
    if not is_import_path(name):
        raise ValueError(f"{argument} must be one of {sorted(SEGMENTERS)}, or module:Name of your own, got {name!r}")
    make = import_path(argument, name)
    if not callable(make) or next(iter(inspect.signature(make).parameters), None) != "model":
        raise TypeError(f"{argument} must name what takes (model, **options) and makes a segmenter, got {name!r}")
    return make


def _rate(model: UNet, rate: float | None) -> float:
    return model.config.target_rate if rate is None else rate


def _learned(model: UNet) -> Segmenter:
    rate = model.config.target_rate if model.config.rate_embedding else None  # the only one that it is asked for
    return ActorSegmenter(LearnedBoundaryActor(model, target_rate=rate), target_rate=model.config.target_rate)


def _uniform(model: UNet, rate: float | None = None) -> Segmenter:
    return ActorSegmenter(UniformActor(_rate(model, rate)), target_rate=_rate(model, rate))


def _random(model: UNet, rate: float | None = None, block: int = 4096) -> Segmenter:
    return ExactRandom(_rate(model, rate), block=block)


def _bernoulli(model: UNet, rate: float | None = None) -> Segmenter:
    return ActorSegmenter(RandomActor(_rate(model, rate)), target_rate=_rate(model, rate))


def _stride(model: UNet, stride: int | None = None) -> Segmenter:
    stride = round(1 / model.config.target_rate) if stride is None else stride
    return ActorSegmenter(FixedStrideActor(stride), target_rate=1 / stride)


def _whitespace(model: UNet) -> Segmenter:
    return ActorSegmenter(WhitespaceActor())


def _spacebyte(model: UNet, repeat: bool = True) -> Segmenter:
    return SpaceByte(repeat=repeat)


def _bpe(model: UNet, tokenizer: Split | None = None) -> Segmenter:
    if tokenizer is None:
        raise ValueError("tokenizer must be a function from bytes to lengths of pieces (train_bpe makes one), got None")
    return BPESegmenter(tokenizer)


def _unigram(
    model: UNet,
    tokenizer: Split | None = None,
    predictor: Literal["oracle", "trained"] = "oracle",
    hidden: int | None = None,
    fidelity: Fidelity = "paper",
) -> Segmenter:
    if tokenizer is None:
        raise ValueError(
            "tokenizer must be a function from bytes to lengths of pieces (train_unigram makes one), got None"
        )
    if predictor not in ("oracle", "trained"):
        raise ValueError(f"predictor must be one of ['oracle', 'trained'], got {predictor!r}")
    if predictor == "trained":
        hidden = 2048 if hidden is None else hidden
        return TrainedPieces(model.config.width, tokenizer, hidden=hidden, fidelity=fidelity)
    if hidden is not None or fidelity != "paper":
        raise ValueError(f"hidden and fidelity belong to predictor 'trained', got {hidden} and {fidelity!r}")
    return UnigramSegmenter(tokenizer)


def _predictor(model: UNet, name: str, window: int | None, num_layers: int | None) -> Predictor:
    if name not in ("early_exit", "own"):
        raise ValueError(f"predictor must be one of ['early_exit', 'own'], got {name!r}")
    if name == "early_exit":
        if window is not None or num_layers is not None:
            raise ValueError(f"window and num_layers belong to predictor 'own', got {window} and {num_layers}")
        return EarlyExit(model)
    config = model.config
    window = config.window if window is None else window
    num_layers = config.num_encoder_layers if num_layers is None else num_layers
    return OwnModel(ByteModel(replace(config, window=window, num_encoder_layers=num_layers)))


def _entropy_spike(
    model: UNet,
    predictor: Literal["trained", "early_exit", "own"] = "trained",
    lags: int = 2,
    hidden: int = 2048,
    fidelity: Fidelity = "paper",
    window: int | None = None,
    num_layers: int | None = None,
) -> Segmenter:
    if predictor == "trained":
        return TrainedSpike(model.config.width, lags=lags, hidden=hidden, fidelity=fidelity)
    return EntropySpike(_predictor(model, predictor, window, num_layers), lags=lags)


def _entropy_threshold(
    model: UNet,
    rate: float | None = None,
    predictor: PredictorName = "own",
    threshold: float = DEFAULT_THRESHOLD,
    threshold_add: float | None = None,
    window: int | None = None,
    num_layers: int | None = None,
) -> Segmenter:
    entropies = _predictor(model, predictor, window, num_layers)
    common: dict[str, Any] = {"target_rate": _rate(model, rate), "threshold": threshold}
    if threshold_add is None:
        return EntropyThreshold(entropies, **common)
    return EntropyCombined(entropies, threshold_add=threshold_add, **common)


def _entropy_monotonic(
    model: UNet,
    rate: float | None = None,
    predictor: PredictorName = "own",
    threshold: float = 0.0,
    window: int | None = None,
    num_layers: int | None = None,
) -> Segmenter:
    entropies = _predictor(model, predictor, window, num_layers)
    return EntropyThreshold(entropies, target_rate=_rate(model, rate), threshold=threshold, rule="monotonic")


def _gumbel(
    model: UNet,
    rate: float | None = None,
    variant: Literal["nawrot", "baseline"] = "nawrot",
    evaluation: Evaluation = "sample",
    hidden: int | None = None,
) -> Segmenter:
    width, rate = model.config.width, _rate(model, rate)
    if variant not in ("nawrot", "baseline"):
        raise ValueError(f"variant must be one of ['nawrot', 'baseline'], got {variant!r}")
    if variant == "nawrot":
        hidden = 2048 if hidden is None else hidden
        return GumbelSegmenter(width, target_rate=rate, evaluation=evaluation, hidden=hidden)
    # The baseline of the paper that this library follows: a smaller predictor and twice the temperature.
    options: dict[str, Any] = {"hidden": width if hidden is None else hidden, "activation": "relu", "temperature": 1.0}
    return GumbelSegmenter(width, target_rate=rate, evaluation=evaluation, **options)


def _magnet(
    model: UNet,
    rate: float | None = None,
    rates: Mapping[str, float] | None = None,
    evaluation: Evaluation = "sample",
    hidden: int = 2048,
) -> Segmenter:
    other = _rate(model, rate)
    return MagnetSegmenter(model.config.width, other_rate=other, rates=rates, evaluation=evaluation, hidden=hidden)


def _grouped(
    model: UNet,
    rate: float | None = None,
    block: int = 64,
    group_size: int = 4,
    advantage: Advantage = "centred",
    detached: bool = True,
    evaluation: Evaluation = "sample",
    hidden: int | None = None,
) -> Segmenter:
    return GroupedSegmenter(
        model.config.width,
        target_rate=_rate(model, rate),
        block=block,
        group_size=group_size,
        advantage=advantage,
        detached=detached,
        evaluation=evaluation,
        hidden=hidden,
    )


def _hnet(
    model: UNet,
    rate: float | None = None,
    variant: Literal["faithful", "baseline"] = "faithful",
    smoothing: Literal["scan", "loop"] = "scan",
    stages: Literal[1, 2] = 1,
    second_rate: float | None = None,
) -> Segmenter:
    if variant not in ("faithful", "baseline"):
        raise ValueError(f"variant must be one of ['faithful', 'baseline'], got {variant!r}")
    if stages not in (1, 2):
        raise ValueError(f"stages must be one of [1, 2], got {stages!r}")
    if stages == 2:
        _check_second_stage(model, "identity" if variant == "baseline" else "projection")
        rate = 1 / 3 if rate is None else rate  # N = 3, 3
        second_rate = model.config.second_rate if second_rate is None else second_rate
    elif second_rate is not None:
        raise ValueError(f"second_rate must be left out with stages=1, got {second_rate}")
    # The baseline of the paper that this library follows adds bytes as they are, and has no norms between networks.
    weak: dict[str, Any] = {"residual": "identity", "norms": False} if variant == "baseline" else {}
    common: dict[str, Any] = {"smoothing": smoothing, "norm_eps": model.config.norm_eps, "second_rate": second_rate}
    return HNetSegmenter(model.config.width, target_rate=_rate(model, rate), **common, **weak)


def _check_second_stage(model: UNet, residual: str) -> None:
    for name, wanted in (("second_level", "routing"), ("second_residual", residual)):
        given = getattr(model.config, name)
        if given != wanted:
            raise ValueError(f"model must have {name}={wanted!r} for segmenter 'hnet' with stages=2, got {given!r}")
    layers, lower = model.config.num_token_layers, model.config.lower_layers
    if not 0 < lower < layers:
        raise ValueError(
            f"model must have token layers before and after its second level for segmenter 'hnet' with stages=2 "
            f"(num_token_layers=2 at least), got num_token_layers={layers}, {lower} of them before it"
        )


SEGMENTERS: dict[str, Callable[..., Segmenter]] = {
    "learned": _learned,
    "uniform": _uniform,
    "random": _random,
    "bernoulli": _bernoulli,
    "stride": _stride,
    "whitespace": _whitespace,
    "spacebyte": _spacebyte,
    "bpe": _bpe,
    "unigram": _unigram,
    "entropy-spike": _entropy_spike,
    "entropy-threshold": _entropy_threshold,
    "entropy-monotonic": _entropy_monotonic,
    "gumbel": _gumbel,
    "magnet": _magnet,
    "hnet": _hnet,
    "grouped": _grouped,
}
"""``(model, **options) -> Segmenter`` by name."""

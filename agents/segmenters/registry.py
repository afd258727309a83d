"""Registry of all segmenters by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rltok_rl.agents.segmenters.entropy import EntropySpike, EntropyThreshold
from rltok_rl.agents.segmenters.grouped import GroupedSegmenter
from rltok_rl.agents.segmenters.gumbel import GumbelSegmenter
from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from rltok_rl.agents.segmenters.magnet import MagnetSegmenter
from rltok_rl.agents.segmenters.rule_based import (
    ExactRandom,
    SpaceByte,
    bernoulli,
    learned,
    stride,
    uniform,
    whitespace,
)
from rltok_rl.agents.segmenters.segmenter import Segmenter
from rltok_rl.agents.segmenters.tokenizers import BPESegmenter, UnigramSegmenter

from rltok_rl.models.unet import UNet
from rltok_rl.utils import import_path, is_import_path

SEGMENTERS: dict[str, Callable[..., Segmenter]] = {
    "learned": learned,
    "uniform": uniform,
    "random": ExactRandom.from_model,
    "bernoulli": bernoulli,
    "stride": stride,
    "whitespace": whitespace,
    "spacebyte": SpaceByte.from_model,
    "bpe": BPESegmenter.from_model,
    "unigram": UnigramSegmenter.from_model,
    "entropy-spike": EntropySpike.from_model,
    "entropy-threshold": EntropyThreshold.from_model,
    "entropy-monotonic": EntropyThreshold.monotonic,
    "gumbel": GumbelSegmenter.from_model,
    "magnet": MagnetSegmenter.from_model,
    "hnet": HNetSegmenter.from_model,
    "grouped": GroupedSegmenter.from_model,
}
"""``(model, **options) -> Segmenter`` by name."""


def make_segmenter(name: str, model: UNet, **options: Any) -> Segmenter:
    """Build a segmenter by name, with the model's dtype and on its device.

    Args:
        name: a key of :data:`SEGMENTERS`, or ``module:Class`` of a custom one, called as ``Class(model, **options)``.
        model: the U-Net that it segments for.
        **options: options of the segmenter; see its ``from_model``.

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
    segmenter = make(model, **options)
    if not isinstance(segmenter, Segmenter):
        raise TypeError(f"name must be of a segmenter, got {name!r}, which makes a {type(segmenter).__name__}")
    # Modules shared with the model have its dtype and device already, so they are not moved.
    return segmenter.to(device=weight.device, dtype=weight.dtype)


def segmenter_maker(name: str, *, argument: str = "name") -> Callable[..., Segmenter]:
    """Return the function ``(model, **options) -> Segmenter`` of a name.

    Args:
        name: a key of :data:`SEGMENTERS`, or ``module:Class`` of a custom one.
        argument: what error messages call the name.

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

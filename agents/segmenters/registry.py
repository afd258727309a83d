"""Registry of all segmenters by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from rltok_rl.agents.segmenters import rule_based
from rltok_rl.agents.segmenters.entropy import entropy_spike, entropy_threshold
from rltok_rl.agents.segmenters.grouped import GroupedSegmenter
from rltok_rl.agents.segmenters.gumbel import GumbelSegmenter
from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from rltok_rl.agents.segmenters.magnet import MagnetSegmenter
from rltok_rl.agents.segmenters.segmenter import Segmenter, check_reads_bytes
from rltok_rl.agents.segmenters.tokenizers import bpe, unigram

from rltok_rl.models.unet import UNet
from rltok_rl.ranges import check_arguments
from rltok_rl.utils import import_path, is_import_path

SEGMENTERS: dict[str, Callable[..., Segmenter]] = {
    "learned": rule_based.learned,
    "uniform": rule_based.uniform,
    "random": rule_based.random,
    "bernoulli": rule_based.bernoulli,
    "stride": rule_based.stride,
    "whitespace": rule_based.whitespace,
    "spacebyte": rule_based.spacebyte,
    "bpe": bpe,
    "unigram": unigram,
    "entropy-spike": entropy_spike,
    "entropy-threshold": entropy_threshold,
    "entropy-monotonic": partial(entropy_threshold, rule="monotonic"),
    "gumbel": GumbelSegmenter,
    "magnet": MagnetSegmenter,
    "hnet": HNetSegmenter,
    "grouped": GroupedSegmenter,
}
"""``(model, **options) -> Segmenter`` by name."""


def make_segmenter(name: str, model: UNet, **options: Any) -> Segmenter:
    """Build a segmenter by name, with the model's dtype and on its device.

    ``name`` is a key of :data:`SEGMENTERS`, or ``module:Class`` of a custom one, called as ``Class(model, **options)``.

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
    if name in SEGMENTERS:
        check_arguments(make, options)
    weight = model.embedding.weight
    segmenter = make(model, **options)
    if not isinstance(segmenter, Segmenter):
        raise TypeError(f"name must be of a segmenter, got {name!r}, which makes a {type(segmenter).__name__}")
    if model.config.byte_scope == "token":
        check_reads_bytes(segmenter, name)
    # Modules shared with the model have its dtype and device already, so they are not moved.
    return segmenter.to(device=weight.device, dtype=weight.dtype)


def segmenter_maker(name: str, *, argument: str = "name") -> Callable[..., Segmenter]:
    """Return the function ``(model, **options) -> Segmenter`` of a name, which errors call ``argument``."""
    if name in SEGMENTERS:
        return SEGMENTERS[name]
    if not is_import_path(name):
        raise ValueError(f"{argument} must be one of {sorted(SEGMENTERS)}, or a custom module:Name, got {name!r}")
    make = import_path(argument, name)
    if not callable(make) or next(iter(inspect.signature(make).parameters), None) != "model":
        raise TypeError(f"{argument} must name a callable (model, **options) -> Segmenter, got {name!r}")
    return make

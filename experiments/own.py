"""Estimators and baselines of a user's own, ``estimator.name=module:Name``, with what a configuration says of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from rltok_rl.experiments.config import TrainConfig
from torch import Tensor
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.functional.baselines import BASELINES, group_centred
from rltok_rl.functional.imports import import_path, is_import_path
from rltok_rl.models import UNet


def own_estimator(config: TrainConfig, model: UNet, process_group: Any = None) -> ValueEstimatorBase:
    """The estimator at ``estimator.name``, made with ``gamma`` and ``estimator.options``.

    Where its signature has them, also with ``baseline``, a function; with ``process_group``; and with ``model``, the
    U-Net. What was configured and it does not take is refused.

    Args:
        config: of the training.
        model: the U-Net.
        process_group: processes that train together.
    """
    name, baseline = config.estimator.name, config.baseline.name
    make = import_path("estimator.name", name)
    if not callable(make):
        raise TypeError(f"estimator.name must name a class of estimators, or a function that makes one, got {name!r}")
    takes = _taken(make)
    if not takes("gamma"):
        raise TypeError(f"{name} must take gamma, which estimator.gamma is, as its {inspect.signature(make)} does not")
    given: dict[str, Any] = {"gamma": config.estimator.gamma}
    if takes("baseline"):
        given["baseline"] = configured_baseline(config)
    elif baseline != "none":
        raise ValueError(f"baseline must be 'none' with {name!r}, which takes no baseline, got {baseline!r}")
    if takes("process_group"):
        given["process_group"] = process_group
    elif process_group is not None:
        raise ValueError(f"{name} must take process_group to be trained with in several processes")
    if "model" in inspect.signature(make).parameters:
        given["model"] = model
    options = config.estimator.options
    try:
        made = make(**{**given, **options})
    except TypeError as error:
        raise TypeError(f"{name} must take {[*given]} and estimator.options {[*options]}: {error}") from error
    if not isinstance(made, ValueEstimatorBase):
        raise TypeError(
            f"estimator.name must name what makes a torchrl.objectives.value.ValueEstimatorBase (ReturnEstimator is "
            f"one), got {name!r}, which makes a {type(made).__name__}"
        )
    return made


def configured_baseline(config: TrainConfig) -> Callable[..., Tensor]:
    """The function that a configuration's baseline is, with its options: one of this library, or one's own.

    Args:
        config: of the training.
    """
    baseline = config.baseline
    options: dict[str, Any] = dict(baseline.options)
    if is_import_path(baseline.name):
        function = import_path("baseline.name", baseline.name)
        if not callable(function):
            raise TypeError(f"baseline.name must name a function, got {baseline.name!r}")
    elif baseline.name == "group_centred":
        function, options = group_centred, {"group_size": baseline.rows_per_text, **options}
    elif baseline.name in BASELINES:
        function = BASELINES[baseline.name]
    else:
        raise ValueError(
            f"baseline {baseline.name!r} is an estimator of its own, for 'discounted_return', "
            f"got {config.estimator.name!r}"
        )
    try:
        inspect.signature(function).bind("returns", mask=None, process_group=None, **options)
    except TypeError as error:
        raise TypeError(
            f"baseline {baseline.name!r} must take (returns, *, mask, process_group) and its options: {error}"
        ) from None
    return partial(function, **options) if options else function


def _taken(make: Callable[..., Any]) -> Callable[[str], bool]:
    """Whether a class or a function takes an argument of a name; one with ``**options`` hands them on."""
    parameters = inspect.signature(make).parameters
    any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return lambda name: name in parameters or any_name

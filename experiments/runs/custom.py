"""Estimators and baselines of a user's own, ``estimator.name=module:Name``, with what a configuration says of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from rltok_rl.experiments.config import TrainConfig
from torch import Tensor, nn
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.models import UNet
from rltok_rl.objectives.baseline import as_baseline
from rltok_rl.utils import did_you_mean, import_path, is_import_path


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
        allowed = sorted(_named(make) - set(given))
        unknown = [option for option in options if option not in allowed]
        if unknown and allowed:
            raise TypeError(
                f"estimator.options of {name!r} must be among {allowed}, got {unknown[0]!r}"
                f"{did_you_mean(unknown[0], allowed)} ({error})"
            ) from error
        raise TypeError(f"{name} must take {[*given]} and estimator.options {[*options]}: {error}") from error
    if not isinstance(made, ValueEstimatorBase):
        raise TypeError(
            f"estimator.name must name what makes a torchrl.objectives.value.ValueEstimatorBase (ReturnEstimator is "
            f"one), got {name!r}, which makes a {type(made).__name__}"
        )
    return made


def configured_baseline(config: TrainConfig) -> Callable[..., Tensor]:
    """The function that a configuration's baseline is, with its options: one of this library, or one's own.

    Of a class one is made here, with the options: each run has a memory of its own, in its checkpoints.

    Args:
        config: of the training.
    """
    baseline = config.baseline
    options: dict[str, Any] = dict(baseline.options)
    if is_import_path(baseline.name):
        function = import_path("baseline.name", baseline.name)
        if isinstance(function, type):
            return _remembering(baseline.name, function, options)
        if not (inspect.isroutine(function) or isinstance(function, partial)):
            shared = ", which the runs of one process would share: name its class" if callable(function) else ""
            raise TypeError(
                f"baseline.name must name a function, or a class of torch.nn.Module, got {baseline.name!r}, a "
                f"{type(function).__name__}{shared}"
            )
    else:
        defaults = {
            "group_mean": {"group_size": baseline.rows_per_text},
            "running_mean": {"num_steps": config.data.num_steps},
        }
        return as_baseline(baseline.name, **{**defaults.get(baseline.name, {}), **options})
    _check_signature(baseline.name, function, options)
    return partial(function, **options) if options else function


def _remembering(name: str, kind: type, options: dict[str, Any]) -> nn.Module:
    """A baseline with memory, new."""
    if not issubclass(kind, nn.Module):
        raise TypeError(
            f"baseline.name must name a function, or a class of torch.nn.Module, whose memory checkpoints keep, "
            f"got the class {name!r}"
        )
    try:
        made = kind(**options)
    except TypeError as error:
        allowed = sorted(_named(kind))
        unknown = next((option for option in options if option not in allowed), "")
        raise TypeError(
            f"baseline {name!r} must be made with baseline.options {[*options]}, of {allowed}"
            f"{did_you_mean(unknown, allowed) if unknown else ''} ({error})"
        ) from error
    _check_signature(name, made.forward, {})
    return made


def _check_signature(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        inspect.signature(function).bind("returns", mask=None, process_group=None, **options)
    except TypeError as error:
        raise TypeError(
            f"baseline {name!r} must take (returns, *, mask, process_group) and its options: {error}"
        ) from None


def _named(make: Callable[..., Any]) -> set[str]:
    """Arguments that a function names, or a class and those classes that it hands the rest on to."""
    found: set[str] = set()
    makers = [make]
    if isinstance(make, type):
        makers = [vars(kind)["__init__"] for kind in inspect.getmro(make) if "__init__" in vars(kind)]
    for one in makers:
        parameters = [p for p in inspect.signature(one).parameters.values() if p.name != "self"]
        found |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _taken(make: Callable[..., Any]) -> Callable[[str], bool]:
    """Whether a class or a function takes an argument of a name; one with ``**options`` hands them on."""
    parameters = inspect.signature(make).parameters
    any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return lambda name: name in parameters or any_name

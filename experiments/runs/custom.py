"""Build custom estimators and baselines, ``estimator.name=module:Name``, from a configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from rltok_rl.experiments.run_config import TrainConfig
from torch import Tensor, nn
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.models import UNet
from rltok_rl.objectives.baseline import as_baseline
from rltok_rl.utils import did_you_mean, import_path, is_import_path


def custom_estimator(config: TrainConfig, model: UNet, process_group: Any = None) -> ValueEstimatorBase:
    """Build the estimator at ``estimator.name`` with ``gamma`` and ``estimator.options``.

    It also gets ``baseline`` (a function), ``process_group`` and ``model`` (the U-Net) if its signature has them.
    """
    name, baseline = config.estimator.name, config.baseline.name
    make = import_path("estimator.name", name)
    if not callable(make):
        raise TypeError(f"estimator.name must name a class of estimators, or a function that makes one, got {name!r}")
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # of functions in C
        raise TypeError(f"estimator.name must name a class or function of Python, got {name!r}") from None
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not ("gamma" in parameters or any_name):
        raise TypeError(f"{name} must take gamma, which estimator.gamma is, as its {inspect.signature(make)} does not")
    arguments: dict[str, Any] = {"gamma": config.estimator.gamma}
    if "baseline" in parameters or any_name:
        arguments["baseline"] = configured_baseline(config)
    elif baseline != "none":
        raise ValueError(f"baseline must be 'none' with {name!r}, which takes no baseline, got {baseline!r}")
    if "process_group" in parameters or any_name:
        arguments["process_group"] = process_group
    elif process_group is not None:
        raise ValueError(f"{name} must take process_group to be trained with in several processes")
    if "model" in parameters:
        arguments["model"] = model
    estimator = _call("estimator", name, make, config.estimator.options, arguments)
    if not isinstance(estimator, ValueEstimatorBase):
        raise TypeError(
            f"estimator.name must make a torchrl.objectives.value.ValueEstimatorBase, such as ReturnEstimator, got "
            f"{name!r}, which makes a {type(estimator).__name__}"
        )
    return estimator


def configured_baseline(config: TrainConfig) -> Callable[..., Tensor]:
    """Return the configured baseline with its options: a function, or a new instance of a class.

    An instance belongs to one run: its memory is in the run's checkpoints.
    """
    name, options = config.baseline.name, dict(config.baseline.options)
    rows = config.loss.rows_per_mean
    if not is_import_path(name):
        rows_of_text, steps = config.baseline.rows_per_text, config.data.num_steps
        defaults = {"group_mean": {"group_size": rows_of_text}, "running_mean": {"num_steps": steps}}
        try:
            made = as_baseline(name, **{**defaults.get(name, {}), "rows_per_mean": rows, **options})
        except (ValueError, TypeError) as error:
            if str(error).partition(" ")[0] in options:
                raise type(error)(f"baseline.options.{error}") from None
            raise
        if name == "group_mean" and rows_of_text % (size := options.get("group_size", rows_of_text)):
            raise ValueError(
                f"baseline.options.group_size must divide baseline.rows_per_text, {rows_of_text}, got {size}"
            )
        if name == "running_mean" and (given := options.get("num_steps", steps)) != steps:
            raise ValueError(f"baseline.options.num_steps must be data.num_steps, {steps}, got {given}")
        return made
    function = import_path("baseline.name", name)
    if isinstance(function, type):
        if not issubclass(function, nn.Module):
            raise TypeError(
                f"baseline.name must name a function, or a class of torch.nn.Module, whose memory checkpoints keep, "
                f"got the class {name!r}"
            )
        module = _call("baseline", name, function, options, {})
        _check_signature(name, module.forward, {})
        return as_baseline(module, rows_per_mean=rows)
    if not (inspect.isroutine(function) or isinstance(function, partial)):
        shared = ", which the runs of one process would share: name its class" if callable(function) else ""
        raise TypeError(
            f"baseline.name must name a function, or a class of torch.nn.Module, got {name!r}, a "
            f"{type(function).__name__}{shared}"
        )
    _check_signature(name, function, options)
    return as_baseline(partial(function, **options) if options else function, rows_per_mean=rows)


def _check_signature(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        inspect.signature(function).bind("returns", mask=None, process_group=None, **options)
    except TypeError as error:
        message = f"baseline {name!r} must take (returns, *, mask, process_group) and its options: {error}"
        raise TypeError(message) from None


def _call(kind: str, name: str, make: Callable[..., Any], options: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Make an estimator or a baseline; the error of an unknown option suggests the closest one."""
    try:
        return make(**{**arguments, **options})
    except TypeError as error:
        parameters = inspect.signature(make).parameters.values()
        named = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        allowed = sorted(named - set(arguments))
        unknown = next((option for option in options if option not in allowed), None)
        if unknown is None:
            raise TypeError(f"{name} must take {[*arguments, *options]}: {error}") from error
        suggestion = did_you_mean(unknown, allowed)
        raise TypeError(
            f"{kind}.options of {name!r} must be among {allowed}, got {unknown!r}{suggestion} ({error})"
        ) from error

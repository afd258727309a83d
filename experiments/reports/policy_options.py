"""Options of a comparison's learned policies: those that all share, and those by which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from rltok_rl.experiments.recipes import flat
from rltok_rl.experiments.reports.markdown import rounded
from rltok_rl.experiments.run_config import GROUPS
from rltok_rl.experiments.runs.folder import RunFolder

from rltok_rl.models import UNetConfig

MODEL_FIELD = "model.overrides."
"""Start of the options that are fields of the model."""
_GROUPS = ("actor", "estimator", "baseline", "loss", "rate", "optim")
Options = dict[str, Any]


def method_options(run: RunFolder) -> Options:
    """Return the options of a run that say how it learns; fields of the model are those in effect.

    Values are as the file of a page has them.
    """
    return _options({group: run.config.get(group, {}) for group in _GROUPS}, run.model)


def default_options() -> Options:
    """Return the defaults of :func:`method_options`, which are what runs did before an option was added."""
    return _options({}, {})


def _options(groups: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any]) -> Options:
    grouped = {group: asdict(GROUPS[group]()) | dict(groups.get(group, {})) for group in _GROUPS}
    of_model = {MODEL_FIELD + field.name: model.get(field.name, field.default) for field in fields(UNetConfig)}
    of_groups = {option: value for option, value in flat(grouped).items() if value != {}}
    found = of_model | {option: value for option, value in of_groups.items() if not option.startswith("optim.total_")}
    as_written: Options = rounded(found)
    return as_written


def unlike(method: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the options in which two methods differ, with both values; None where one does not have the option."""
    both = {option: (method.get(option), first.get(option)) for option in sorted({*method, *first})}
    return {option: values for option, values in both.items() if values[0] != values[1]}


def split_options(methods: Mapping[str, Mapping[str, Any]]) -> tuple[Options, dict[str, Options]]:
    """Return the options that all methods share, and those they do not: all of the first, what differs of others."""
    first = next(iter(methods.values()), {})
    changes = {name: unlike(method, first) for name, method in methods.items()}
    differing = sorted({option for changed in changes.values() for option in changed})
    own = {name: {option: mine for option, (mine, _) in changed.items()} for name, changed in changes.items()}
    if own:
        own[next(iter(own))] = {option: first.get(option) for option in differing}
    return {option: value for option, value in first.items() if option not in differing}, own


def whole_options(content: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Options]:
    """Return all options of a page's learned policies, the inverse of :func:`split_options`."""
    own = {system["name"]: system["options"] for system in content["systems"] if system.get("options") is not None}
    first: Mapping[str, Any] = next(iter(own.values()), {})
    return {name: {**shared, **first, **options} for name, options in own.items()}

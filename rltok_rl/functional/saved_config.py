"""Read the ``config.yaml`` of a run without executing or resolving anything in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_config_file(path: Path) -> Any:
    """Return the options in a run's ``config.yaml`` as an OmegaConf mapping.

    A run writes plain values. Interpolations such as ``${oc.env:HOME}`` would read the environment of whoever opens the
    file, so they are an error.

    Args:
        path: the file, possibly from somebody else.
    """
    from omegaconf import DictConfig, OmegaConf  # takes a tenth of a second to import
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        config = OmegaConf.load(path)  # a safe loader: plain values, no Python objects
        plain = OmegaConf.to_container(config, resolve=False)
    except (ValueError, YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, DictConfig):
        raise ValueError(f"{path} cannot be read: it must hold options by name, got {type(plain).__name__}")
    for name, value in _strings(plain, ""):
        if "${" in value:
            raise ValueError(f"{path} must hold plain values, got the interpolation {value!r} in {name}; replace it")
    return config


def _strings(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """All strings in nested containers, with their dotted names."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(inner, f"{name}.{key}" if name else str(key))

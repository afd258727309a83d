"""Options of a saved run, checked as those of a command line are."""

from __future__ import annotations

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from rltok_rl.experiments.run_config import TrainConfig

from rltok_rl.foreign import read_config_file
from rltok_rl.ranges import check_fields


def read_options(path: Path) -> TrainConfig:
    """Return the options in a run's ``config.yaml``, with defaults for missing ones."""
    saved = read_config_file(path)
    try:
        options: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), saved))
        check_fields(options)
        if options.data.options.get("trust_remote_code"):
            raise ValueError("data.options.trust_remote_code must be left out, because it executes code of the corpus")
    except MissingMandatoryValue as error:
        raise ValueError(f"{path} must name {error.full_key or 'all mandatory options'}") from None
    except ConfigKeyError as error:
        raise ValueError(f"{path} has an option that this version does not know: {error.full_key}") from None
    except OmegaConfBaseException as error:
        reason = str(error.msg if hasattr(error, "msg") else error).splitlines()[0]
        raise ValueError(f"{path} cannot be used: {error.full_key}: {reason}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from None
    return options


def find_missing_options(path: Path) -> str | None:
    """Name the options that a run's ``config.yaml`` lacks; None for a whole one of this version, which has all."""
    saved: Any = OmegaConf.to_container(read_config_file(path))
    missing = sorted(_names(TrainConfig) - _names(TrainConfig, saved))
    return f"{path} lacks {missing}: it was cut, or an earlier version wrote it" if missing else None


def _names(schema: Any, saved: Any = None) -> set[str]:
    """Dotted names of the options of a dataclass; of those that ``saved`` has, if it is given."""
    names: set[str] = set()
    for name, kind in get_type_hints(schema).items():
        inner = None if saved is None else saved.get(name, {})
        if is_dataclass(kind):
            names |= {f"{name}.{rest}" for rest in _names(kind, inner)}
        elif saved is None or name in saved:
            names.add(name)
    return names

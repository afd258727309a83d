"""Options of a saved run, checked as those of a command line are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

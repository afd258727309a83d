"""Check the options of runs before anything is imported or written: the policy's options, the model's, the folder."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from rltok_rl.experiments.commands.option_errors import nearest
from rltok_rl.experiments.commands.overrides import CommandLine, model_sizes, read_command_line
from rltok_rl.experiments.commands.schema import CONF
from rltok_rl.experiments.run_config import GROUPS, check_out

_OF_LEARNED = ("actor", "estimator", "baseline", "rate", "loss")
"""Groups about a policy that learns by rewards."""
_OF_ALL = ("loss.language_model", "loss.early_exit")
"""Their options that always matter."""
_OF_RULES = ("actor.name", "actor.rate")
"""Their options that matter if an actor draws by a rule."""


def read_run_options(name: str, arguments: Sequence[str]) -> CommandLine:
    """Read and check the command line of ``rltok NAME``; raise ValueError with one line if something is wrong.

    Args:
        name: ``train`` or ``estimators``.
        arguments: everything after the command.
    """
    line = read_command_line(name, arguments)
    if name == "train":
        check_policy(line.overrides)
        for config in line.configs:
            _check_model_overrides(config)
    _check_folders(line)
    return line


def check_policy(overrides: Sequence[Override]) -> None:
    """Refuse options of a learned policy if none is learned, because a rule or a segmenter draws the boundaries.

    Options that an experiment sets for its policy are ignored then; the same options on the command line are an error.

    Args:
        overrides: of the command line; the last of several counts.
    """
    given = [override for override in overrides if not override.is_delete()]
    heeded: tuple[str, ...] = _OF_ALL
    drawing = _drawing(given, "segmenter")
    if drawing is None:
        drawing, heeded = _drawing(given, "actor"), (*_OF_ALL, *_OF_RULES)
    if drawing is None:
        return
    for override in given:
        name, value = override.key_or_group, override.value()
        group, dot, _ = name.partition(".")
        of_actor = name in ("actor", "actor.name") and (drawing.startswith("actor") or value == "learned")
        if group not in _OF_LEARNED or name in heeded or of_actor:
            continue
        if dot or not _sets_any(group, str(value), heeded):
            text = str(override.input_line).partition("=")[2]
            raise ValueError(f"{name}={text} belongs to a policy that is learned, got {drawing}")


def _drawing(given: Sequence[Override], group: str) -> str | None:
    """The override that replaces the learned policy; None if there is none, or in a sweep."""
    of_group = [override for override in given if override.key_or_group in (group, f"{group}.name")]
    if not of_group or of_group[-1].is_sweep_override():
        return None
    value = str(of_group[-1].value())
    by_policy = value.split("-")[0] == "learned" or value == "warm_start" or "$" in value
    return None if by_policy else f"{of_group[-1].key_or_group}={value}"


def _sets_any(group: str, choice: str, names: Sequence[str]) -> bool:
    """Whether a file of a group sets any of these options."""
    path = CONF / group / f"{choice}.yaml"
    options: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.exists() else {}
    return any(f"{group}.{key}" in names for key in options)


def _check_model_overrides(config: DictConfig) -> None:
    sizes = model_sizes()
    words = {int: "an int", float: "a float", bool: "true or false"}
    for name, value in config.model.overrides.items():
        if name not in sizes:
            raise ValueError(f"model.overrides holds fields of UNetConfig, got {name!r}{nearest(name, [*sizes])}")
        kind = sizes[name]
        if kind in words and type(value) not in ((int, float) if kind is float else (kind,)):
            raise ValueError(f"model.overrides.{name} must be {words[kind]}, got {value!r}")


def _check_folders(line: CommandLine) -> None:
    """Refuse folders that are empty names, shared by several runs, or cannot be written."""
    by_folder = defaultdict(list)
    for run, config in zip(line.runs, line.configs, strict=True):
        check_out(config.out)
        by_folder[config.out].append(run)
    for out, runs in by_folder.items():
        if len(runs) > 1:
            names = [name for name in runs[0] if len({run.get(name) for run in runs}) > 1]
            swept = any(override.key_or_group == "out" and override.is_sweep_override() for override in line.overrides)
            start = out if swept else line.out
            raise ValueError(
                f"out must name another folder for each {' and '.join(names) or 'run'} of --multirun, got {start}; "
                f"write 'out={start}-{'-'.join(map(_reference, names)) or _reference('')}'"
            )
        existing = next(path for path in (Path(out), *Path(out).absolute().parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            reason = "cannot be written" if existing.is_dir() else "is not a folder"
            raise ValueError(f"out must be a folder that can be written, got {out!r}: {existing} {reason}")


def _reference(name: str) -> str:
    """The interpolation that follows a group, an option, or else the number of the run."""
    if name in (*GROUPS, "experiment"):
        return f"${{hydra:runtime.choices.{name}}}"
    single = name and not name.startswith("hydra") and not re.search(r"\.(options|overrides|model)\.", name)
    return f"${{{name}}}" if single else "${hydra:job.num}"

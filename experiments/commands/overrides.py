"""Read, compose and check the command line of a Hydra command before anything heavy is imported."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rltok_rl.experiments.commands.option_errors import (
    check_once,
    explain,
    several_values,
    unknown_flag,
    unknown_option,
)
from rltok_rl.experiments.commands.schema import CONF, schemas
from rltok_rl.experiments.run_config import GROUPS, WHOLE

import rltok_rl
from rltok_rl.renamed import OPTIONS, current_word
from rltok_rl.utils import printable

KINDS = {**{group: group for group in (*GROUPS, *WHOLE)}, **OPTIONS}
KINDS |= {"estimators": "candidate", "sweep": "candidate", "compare.systems": "segmenter"}
KINDS |= {"segmenter.name": "segmenter", "model.preset": "model"}
"""Groups and options whose values may be old words, and the kind of the words."""
HYPHENS = ("ablation", "data", "experiment", "model", "optim", "segmenter")
"""Kinds of words with hyphens: they name systems and settings. Words of other kinds name functions: underscores."""
_noted: set[str] = set()


@dataclass(frozen=True)
class CommandLine:
    """A command line that Hydra can run."""

    arguments: list[str]
    """Flags and overrides as Hydra takes them."""
    overrides: Sequence[Override] = ()
    configs: Sequence[DictConfig] = ()
    """Resolved options of each run: one without ``--multirun``, none if nothing is run (``--cfg``)."""
    runs: Sequence[Sequence[str]] = ()
    """Overrides of each run."""


_FREE = r"(\w+\.(options|overrides)|compare\.(options|variants|learning_rates)|segmenter\.model)"
"""Options that accept any names."""


def read_command_line(name: str, arguments: Sequence[str]) -> CommandLine:
    """Read, compose and check the arguments of ``rltok NAME``; raise ValueError with one line if something is wrong.

    ``NAME_schema`` in Hydra's store has the options.
    """
    types = option_types(OmegaConf.get_type(ConfigStore.instance().load(f"{name}_schema.yaml").node))
    names = [*types, *GROUPS, *WHOLE] if name == "train" else [*types]
    try:
        flags = _read_flags(arguments, names)
        words = [word for word in arguments if word not in flags.overrides]
        if flags.hydra_help or flags.shell_completion or flags.config_path:
            return CommandLine([*words, *flags.overrides])
        texts = allow_new([whole_numbers(text, types) for text in current_overrides(flags.overrides)])
        for text in texts:
            if "=" not in text and not text.startswith("~"):
                value = f"; write {text}=VALUE" if text in names else ""
                raise ValueError(f"options must be written name=value, got {text!r}{value}")
        overrides = OverridesParser.create().parse_overrides(texts)
        check_once(overrides, ("recipe", "ablation"))
        _check_added(overrides, names)
        runs, configs = _compose_runs(name, flags, overrides, types)
        return CommandLine([*words, *texts], overrides, configs, runs)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(printable(explain(error, types, names))) from None


def compose_config(overrides: Sequence[str]) -> Any:
    """Compose the options of a run from ``name=value`` as typed, without starting it."""
    (config,) = read_command_line("train", overrides).configs
    return OmegaConf.to_object(config)


def _read_flags(arguments: Sequence[str], names: Sequence[str]) -> argparse.Namespace:
    """Read the flags with Hydra's own parser."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        flags, unknown = parser.parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        unknown = [word for word in arguments if re.match(r"-\w\w", word)]  # -model=tiny, read as -m odel=tiny
        if not unknown or "ignored explicit argument" not in str(error):
            raise ValueError(str(error)) from None
    if unknown:
        flag_names = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        raise ValueError(unknown_flag(unknown[0], names, flag_names))
    modes = {"--run": flags.run, "--multirun": flags.multirun, "--cfg": flags.cfg, "--info": flags.info}
    modes["--shell-completion"] = flags.shell_completion
    if len(chosen := [mode for mode, value in modes.items() if value]) > 1:
        raise ValueError(f"only one of {', '.join(modes)} may be given, got {' and '.join(chosen)}")
    if flags.resolve and not flags.cfg:
        raise ValueError("--resolve belongs to --cfg")
    if flags.experimental_rerun is not None:
        raise ValueError("--experimental-rerun is not supported; repeat the command in the run's summary.json")
    return flags


def _compose_runs(
    name: str, flags: argparse.Namespace, overrides: Sequence[Override], types: Mapping[str, Any]
) -> tuple[list[list[str]], list[DictConfig]]:
    """Return the overrides of every run, and its composed options."""
    search = [f"hydra.searchpath=[file://{os.path.abspath(flags.config_dir)}]"] if flags.config_dir else []
    single = [str(override.input_line) for override in overrides if not override.is_sweep_override()]
    sweeps = [override for override in overrides if override.is_sweep_override()]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF), job_name=name):

        def composed(texts: Sequence[str]) -> DictConfig:
            try:
                return compose(flags.config_name or name, [*search, *texts], return_hydra_config=True)
            except AttributeError as error:
                if isinstance(error, OmegaConfBaseException):
                    raise
                # OmegaConf's own, for a dictionary in the place of an option of Hydra that is null.
                raise ValueError(f"these options cannot be put together: {str(error).splitlines()[0]}") from None

        runs, configs = [single], [composed(single)]
        hydra = configs[0].hydra
        if flags.multirun or hydra.mode == RunMode.MULTIRUN:
            params = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
            parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
            swept = parser.parse_overrides([*params, *(str(override.input_line) for override in overrides)])
            if "BasicSweeper" not in hydra.sweeper._target_:
                return [], []  # another sweeper chooses the values
            (runs,) = BasicSweeper.split_arguments(swept, None)
            configs = [composed(run) for run in runs]
        elif sweeps:
            raise ValueError(several_values(sweeps[0], types))
        if flags.cfg or flags.info:
            return [], []
        return runs, [_resolve(config, number) for number, config in enumerate(configs)]


def _resolve(config: DictConfig, number: int) -> DictConfig:
    """Resolve interpolations as in run ``number`` of a sweep."""
    with open_dict(config):
        config.hydra.job.num, config.hydra.job.id = number, str(number)
        HydraConfig.instance().set_config(config)  # which interpolations of all options may read
        del config["hydra"]
    if missing := OmegaConf.missing_keys(config):
        raise ValueError(f"{min(missing)} must be given")
    OmegaConf.resolve(config)
    return config


def option_types(schema: Any, prefix: str = "") -> dict[str, Any]:
    """Return the types of all options, by dotted name; for a model, also of its overrides.

    Example:
        >>> from rltok_rl.experiments.run_config import RateConfig
        >>> list(option_types(RateConfig, "rate."))
        ['rate.control', 'rate.coefficient', 'rate.options']
    """
    hints = get_type_hints(schema)
    types: dict[str, Any] = {}
    for field in fields(schema):
        name, kind = prefix + field.name, hints[field.name]
        types |= option_types(kind, f"{name}.") if is_dataclass(kind) else {name: kind}
    if f"{prefix}overrides" in types:
        types |= {f"{prefix}overrides.{name}": kind for name, kind in model_sizes().items()}
    return types


def model_sizes() -> dict[str, Any]:
    """Return the fields of ``UNetConfig`` without importing torch: ``int``, or Any for other types."""
    options = schemas(Path(rltok_rl.__file__).parent / "models" / "config.py")["UNetConfig"].options
    return {option.name: int if option.kind == "int" else Any for option in options}


def current_overrides(arguments: Sequence[str]) -> list[str]:
    """Replace old words in ``name=value`` with the current ones; the main process prints a line for each change.

    Example:
        >>> current_overrides(["estimator=discounted_return", "baseline=none,leave_one_out", "seed=1"])
        ['estimator=discounted_return', 'baseline=none,leave_one_out', 'seed=1']
    """
    return [_current_override(argument) for argument in arguments]


def _current_override(argument: str) -> str:
    name, equals, value = argument.partition("=")
    kind = KINDS.get(name.lstrip("+~"))
    if kind is None:
        return argument
    current = name + equals + re.sub(r"[^\s,'\"\[\]]+", lambda word: _current_choice(kind, word[0]), value)
    if current != argument and os.environ.get("RANK", "0") == "0" and argument not in _noted:
        _noted.add(argument)
        print(f"note: {argument} is now {current}", file=sys.stderr)
    return current


def _current_choice(kind: str, word: str) -> str:
    if not re.fullmatch(r"[\w-]+", word):
        return word  # module:Name, a path, or an interpolation
    return current_word(kind, word.replace("_", "-") if kind in HYPHENS else word.replace("-", "_"))


def whole_numbers(text: str, types: Mapping[str, Any]) -> str:
    """Write whole numbers such as ``1e6`` as integers if the option is one.

    Example:
        >>> whole_numbers("data.limit=2e2,null", {"data.limit": int | None})
        'data.limit=200,null'
    """
    name, equals, values = text.partition("=")
    kind = types.get(name.lstrip("+"))
    if int not in (kind, *get_args(kind)):
        return text
    return name + equals + re.sub(r"[^,\s]*\d[eE.][^,\s]*", lambda word: _whole(word[0]), values)


def _whole(text: str) -> str:
    try:
        return str(int(float(text))) if float(text).is_integer() else text
    except ValueError:
        return text


def allow_new(texts: Sequence[str]) -> list[str]:
    """Put ``++`` before options that accept any names, so that Hydra takes new ones.

    Example:
        >>> allow_new(["segmenter.options.hidden=32", "rate.options={ends: window}", "seed=1"])
        ['++segmenter.options.hidden=32', '++rate.options={ends: window}', 'seed=1']
    """
    return [f"++{text}" if re.match(rf"{_FREE}(\.[^=]+=|=\{{)", text) else text for text in texts]


def _check_added(overrides: Sequence[Override], names: Sequence[str]) -> None:
    """Refuse new options, ``+NAME=VALUE``, where nothing would read them."""
    for override in overrides:
        name = str(override.key_or_group)
        added = override.is_add() or override.is_force_add()
        if added and name not in names and not re.match(rf"{_FREE}(\.|$)|hydra[./]", name):
            raise ValueError(unknown_option(name, names))


def typed(arguments: Sequence[str], num_processes: int | None = None) -> str:
    """Return ``sys.argv`` as it was typed, quoted for a shell; ``num_processes`` if ``torchrun`` started it.

    Example:
        >>> print(typed(["rltok train", "++segmenter.options.hidden=32", "out=runs/${seed}"]))
        rltok train segmenter.options.hidden=32 'out=runs/${seed}'
    """
    command, *words = arguments
    start = command if command == "rltok train" else "python -m rltok_rl.experiments.train"
    if num_processes is not None:
        start = f"torchrun --nproc-per-node {num_processes} -m rltok_rl.experiments.train"
    plain = [word.removeprefix("++") for word in words]
    words = [short if allow_new([short]) == [word] else word for short, word in zip(plain, words, strict=True)]
    return " ".join([start, *map(shlex.quote, words)])

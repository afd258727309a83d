"""Check the command line of a Hydra command before anything heavy is imported, and explain mistakes in one line.

Hydra reads and composes the command line; this module shortens its errors and adds suggestions. It imports no torch.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
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
from rltok_rl.experiments.commands.old_words import current_overrides
from rltok_rl.experiments.commands.option_errors import explain, one_value
from rltok_rl.experiments.commands.schema import CONF, schemas
from rltok_rl.experiments.run_config import GROUPS

import rltok_rl
from rltok_rl.utils import did_you_mean


@dataclass(frozen=True)
class CommandLine:
    """A command line that Hydra can run."""

    arguments: list[str]
    """Flags and overrides as Hydra takes them."""
    overrides: Sequence[Override] = ()
    runs: Sequence[dict[str, str]] = ()
    """Overrides of each run, by name; one run without ``--multirun``, none if nothing is run (``--cfg``)."""
    configs: Sequence[DictConfig] = ()
    """Resolved options of each run."""
    out: str = ""
    """``out`` as written, before it is resolved."""


def read_command_line(name: str, arguments: Sequence[str]) -> CommandLine:
    """Read, compose and check a command line; raise ValueError with one line if something is wrong.

    Args:
        name: of the configuration; ``NAME_schema`` in Hydra's store has its options.
        arguments: everything after the command.
    """
    types = option_types(OmegaConf.get_type(ConfigStore.instance().load(f"{name}_schema.yaml").node))
    names = [*types, *GROUPS, "experiment"] if name == "train" else [*types]
    try:
        flags = _read_flags(arguments, names)
        words = [word for word in arguments if word not in flags.overrides]
        if flags.hydra_help or flags.shell_completion or flags.config_path:
            return CommandLine([*words, *flags.overrides])
        texts = allow_new([whole_numbers(text, types) for text in current_overrides(flags.overrides)])
        overrides = _parse(texts, names)
        return CommandLine([*words, *texts], overrides, *_compose_runs(name, flags, overrides, types))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(explain(error, types, names)) from None


def compose_config(overrides: Sequence[str], name: str = "train") -> Any:
    """Compose the options of a run without starting it.

    Args:
        overrides: ``name=value`` as typed.
        name: of the configuration.
    """
    (config,) = read_command_line(name, overrides).configs
    return OmegaConf.to_object(config)


def _parse(texts: Sequence[str], names: Sequence[str]) -> list[Override]:
    """Parse overrides with Hydra's parser."""
    for text in texts:
        if "=" not in text and not text.startswith("~"):
            value = f"; write {text}=VALUE" if text in names else ""
            raise ValueError(f"options must be written name=value, got {text!r}{value}")
    return OverridesParser.create().parse_overrides(list(texts))


def _read_flags(arguments: Sequence[str], names: Sequence[str]) -> argparse.Namespace:
    """Read the flags with Hydra's own parser."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        flags, unknown = parser.parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        _, joined, rest = str(error).partition("ignored explicit argument ")  # -model=tiny, read as -m odel=tiny
        if not joined:
            raise ValueError(str(error)) from None
        unknown = [word for word in arguments if word.endswith(rest.strip("'"))]
    if unknown:
        raise ValueError(_unknown_flag(unknown[0], names, parser))
    modes = {"--run": flags.run, "--multirun": flags.multirun, "--cfg": flags.cfg, "--info": flags.info}
    modes["--shell-completion"] = flags.shell_completion
    if len(given := [mode for mode, value in modes.items() if value]) > 1:
        raise ValueError(f"only one of {', '.join(modes)} may be given, got {' and '.join(given)}")
    if flags.resolve and not flags.cfg:
        raise ValueError("--resolve belongs to --cfg")
    if flags.shell_completion and not any(re.match(r"(un)?install=|query=", text) for text in flags.overrides):
        raise ValueError("--shell-completion must be followed by install=SHELL, uninstall=SHELL or query=SHELL")
    if flags.experimental_rerun is not None:
        raise ValueError("--experimental-rerun is not supported; repeat the command in the run's summary.json")
    return flags


def _unknown_flag(argument: str, names: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Explain a word with dashes: an option written as a flag, or a mistyped flag."""
    typed, _, value = argument.partition("=")
    name = typed.lstrip("-").replace("-", "_")
    full = [option for option in names if option.rpartition(".")[2] == name]
    if name in full or len(full) == 1:
        option = name if name in full else full[0]
        return f"options must be written name=value, got {argument!r}; write {option}={value or 'VALUE'}"
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    suggestion = did_you_mean("--" + typed.lstrip("-"), flags)
    return f"there is no flag {typed!r}{suggestion or '; --help lists options'}"


def _compose_runs(
    name: str, flags: argparse.Namespace, overrides: Sequence[Override], types: Mapping[str, Any]
) -> tuple[list[dict[str, str]], list[DictConfig], str]:
    """Compose every run; return the overrides of each, its options, and ``out`` as written."""
    search = [f"hydra.searchpath=[file://{os.path.abspath(flags.config_dir)}]"] if flags.config_dir else []
    single = [str(override.input_line) for override in overrides if not override.is_sweep_override()]
    sweeps = [override for override in overrides if override.is_sweep_override()]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF), job_name=name):

        def composed(texts: Sequence[str]) -> DictConfig:
            return compose(flags.config_name or name, [*search, *texts], return_hydra_config=True)

        config = composed(single)
        out = OmegaConf.to_container(config)["out"]  # type: ignore[index,call-overload]
        runs, configs = [single], [config]
        if flags.multirun or config.hydra.mode == RunMode.MULTIRUN:
            params = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
            parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
            swept = parser.parse_overrides([*params, *(str(override.input_line) for override in overrides)])
            if "BasicSweeper" not in config.hydra.sweeper._target_:
                return [], [], out  # another sweeper chooses the values
            (runs,) = BasicSweeper.split_arguments(swept, None)
            configs = [composed(run) for run in runs]
        elif sweeps:
            raise ValueError(one_value(sweeps[0], types))
        if flags.cfg or flags.info:
            return [], [], out
        configs = [_resolve(config, number) for number, config in enumerate(configs)]
        return [dict(text.lstrip("+").split("=", 1) for text in run if "=" in text) for run in runs], configs, out


def _resolve(config: DictConfig, number: int) -> DictConfig:
    """Resolve interpolations as in run ``number`` of a sweep; keep the choices of groups under ``hydra``."""
    if missing := OmegaConf.missing_keys(OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])):
        raise ValueError(f"{min(missing)} must be given")
    with open_dict(config):
        config.hydra.job.num, config.hydra.job.id = number, str(number)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    OmegaConf.resolve(config)
    return config


def option_types(schema: Any, prefix: str = "") -> dict[str, Any]:
    """Return the types of all options, by dotted name; for a model, also of its overrides.

    Args:
        schema: a dataclass of options.
        prefix: of the names.

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
    """Return the fields of ``UNetConfig`` and their types, without importing torch; Any for other than numbers."""
    path = Path(rltok_rl.__file__).parent / "models" / "config.py"
    kinds = {"int": int, "float": float, "bool": bool}
    return {option.name: kinds.get(option.kind, Any) for option in schemas(path)["UNetConfig"].options}


def whole_numbers(text: str, types: Mapping[str, Any]) -> str:
    """Write whole numbers such as ``1e6`` as integers if the option is one.

    Args:
        text: ``name=value`` as typed.
        types: of all options.

    Example:
        >>> whole_numbers("data.limit=2e2,null", {"data.limit": int | None})
        'data.limit=200,null'
    """
    name, equals, values = text.partition("=")
    kind = types.get(name.lstrip("+"))
    if int not in (kind, *get_args(kind)):
        return text
    return name + equals + ",".join(map(_whole, values.split(",")))


def _whole(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() and not text.strip("+-").replace("_", "").isdigit() else text


def allow_new(texts: Sequence[str]) -> list[str]:
    """Put ``++`` before options that accept any names, so that Hydra takes new ones.

    Args:
        texts: ``name=value`` as typed.

    Example:
        >>> allow_new(["segmenter.options.hidden=32", "seed=1"])
        ['++segmenter.options.hidden=32', 'seed=1']
    """
    free = r"(\w+\.(options|overrides)|compare\.options|segmenter\.model)\.[^=]+="
    return [f"++{text}" if re.match(free, text) else text for text in texts]


def typed(arguments: Sequence[str], num_processes: int | None = None) -> str:
    """Return a command line as it was typed, quoted for a shell.

    Args:
        arguments: ``sys.argv``, with the ``++`` of :func:`allow_new`.
        num_processes: started by ``torchrun``; None without it.

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

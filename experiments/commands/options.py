"""Reject unknown command-line options and suggest the closest name; check the folder of a run.

Nothing here imports torch before an option of the model's sizes is read, so that mistyped options are answered at once.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from rltok_rl.experiments.commands.old_words import current_overrides
from rltok_rl.experiments.commands.overrides import (
    Override,
    check_sweeps,
    convert_values,
    has_multirun,
    parse_overrides,
)
from rltok_rl.experiments.commands.schema import CONF, choices
from rltok_rl.experiments.config import GROUPS, TrainConfig, check_out

from rltok_rl.utils import did_you_mean

CLAIM = ".lock"
"""File that a claimed folder holds, ``rltok_rl.training.atomic_files.CLAIM``; tests compare them."""

__all__ = ["CONF", "allow_new", "check_arguments", "check_folder", "check_overrides", "check_sweep_folder"]
__all__ += ["choices", "leave_no_sweep", "leave_nothing", "missing_folders", "nearest", "option_names", "typed"]


def option_names(schema: Any = TrainConfig, prefix: str = "") -> dict[str, type]:
    """All options by their dotted names, and what they are of.

    Args:
        schema: a dataclass of options.
        prefix: of the names.

    Example:
        >>> from rltok_rl.experiments.config import RateConfig
        >>> list(option_names(RateConfig, "rate."))
        ['rate.control', 'rate.coefficient', 'rate.options']
    """
    kinds = get_type_hints(schema)
    found: dict[str, type] = {}
    for one in fields(schema):
        kind = kinds[one.name]
        found |= option_names(kind, f"{prefix}{one.name}.") if is_dataclass(kind) else {f"{prefix}{one.name}": kind}
    return found


def check_arguments(arguments: Sequence[str], schema: Any = TrainConfig) -> list[str]:
    """Refuse a command line that cannot be run, before Hydra composes anything.

    Args:
        arguments: of the command line.
        schema: a dataclass of options.

    Returns:
        The arguments as :func:`check_overrides` writes them.
    """
    checked = check_overrides(arguments, schema)
    check_sweeps(checked, option_names(schema))
    check_folder(checked)
    return checked


def check_overrides(arguments: Sequence[str], schema: Any = TrainConfig) -> list[str]:
    """Refuse options and choices that do not exist and values of the wrong type; suggest the closest name.

    Args:
        arguments: ``name=value`` as Hydra takes them; flags and options of Hydra itself are left to it.
        schema: a dataclass of options.

    Returns:
        The arguments, with whole numbers such as ``1e6`` written as an int where the option is one.
    """
    arguments = current_overrides(arguments)
    known = option_names(schema)
    groups = [*GROUPS, "experiment"] if schema is TrainConfig else []
    overrides = parse_overrides(arguments, [*known, *groups])
    sizes = _model_sizes() if any(one.name.startswith("model.overrides.") for one in overrides) else {}
    for one in overrides:
        if one.name in groups:
            _check_choice(one)
        elif one.name.startswith("model.overrides."):
            field = one.name.removeprefix("model.overrides.")
            if field not in sizes:
                raise ValueError(f"model.overrides holds fields of UNetConfig, got {field!r}{nearest(field, [*sizes])}")
        elif one.name not in known and not any(one.name.startswith(f"{free}.") for free in _free(known)):
            raise ValueError(f"there is no option {one.name!r}{nearest(one.name, [*known, *groups])}")
    plain = {f"model.overrides.{name}": kind for name, kind in sizes.items() if kind in (int, float, bool)}
    replaced = convert_values(overrides, {**known, **plain})
    return [replaced.get(argument, argument) for argument in arguments]


def _model_sizes() -> dict[str, type]:
    from rltok_rl.models import UNetConfig  # needs torch

    return get_type_hints(UNetConfig)


def _check_choice(override: Override) -> None:
    allowed = choices(override.name)
    for value in override.values:
        words = value if isinstance(value, list) else [value]
        for word in words:
            if word not in (*allowed, None, ""):
                raise ValueError(f"{override.name} must be one of {allowed}, got {word!r}{nearest(str(word), allowed)}")


def allow_new(arguments: Sequence[str]) -> list[str]:
    """Put ``++`` before options that accept any names, so that Hydra takes new ones.

    Args:
        arguments: as for :func:`check_overrides`.

    Example:
        >>> allow_new(["segmenter.options.hidden=32", "seed=1"])
        ['++segmenter.options.hidden=32', 'seed=1']
    """
    free = tuple(f"{name}." for name in _free(option_names()))
    return [f"++{one}" if one.startswith(free) and "=" in one else one for one in arguments]


def typed(arguments: Sequence[str], num_processes: int | None = None) -> str:
    """A command line as it was typed, and can be pasted.

    Args:
        arguments: ``sys.argv``, with what :func:`allow_new` has made of it.
        num_processes: that ``torchrun`` started; None without it.

    Example:
        >>> print(typed(["rltok train", "++segmenter.options.hidden=32", "out=runs/${seed}"]))
        rltok train segmenter.options.hidden=32 'out=runs/${seed}'
    """
    command, *words = arguments
    start = command if command == "rltok train" else "python -m rltok_rl.experiments.train"
    if num_processes is not None:
        start = f"torchrun --nproc-per-node {num_processes} -m rltok_rl.experiments.train"
    plain = [one.removeprefix("++") for one in words]
    words = [short if allow_new([short]) == [one] else one for short, one in zip(plain, words, strict=True)]
    return " ".join([start, *map(shlex.quote, words)])


def check_folder(arguments: Sequence[str]) -> None:
    """Refuse a folder of a run that cannot be written, before Hydra composes anything.

    Args:
        arguments: of the command line.
    """
    given = [one for one in parse_overrides(arguments) if one.name == "out" and one.values]
    if not given or given[-1].sweep:
        return
    out = str(given[-1].value)
    check_out(out)
    if "$" in out or has_multirun(arguments):
        return
    folder = Path(out)
    absent = missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"out must be a folder that can be written, got {out!r}: {error.strerror}") from None
    finally:
        leave_nothing(absent)


def missing_folders(folder: Path) -> list[Path]:
    """List the folder and its parents that do not exist, the deepest first.

    Args:
        folder: of a run.
    """
    return [one for one in (folder, *folder.parents) if not one.exists()]


def leave_nothing(folders: Sequence[Path]) -> None:
    """Remove the folders that a refused command has made, unless they hold files.

    Args:
        folders: of :func:`missing_folders`, before the command made them.
    """
    for folder in folders:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [CLAIM]:
                (folder / CLAIM).unlink()
            folder.rmdir()


def check_sweep_folder(config: Any, arguments: Sequence[str]) -> None:
    """Refuse a sweep whose runs would share a folder, before its first run: the second would be refused after it.

    Args:
        config: as Hydra composed it for one run of the sweep, not resolved.
        arguments: of the command line.
    """
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return
    in_file = [f"{name}={values}" for name, values in (hydra.sweeper.get("params") or {}).items()]
    last = {one.name: one for one in parse_overrides([*in_file, *arguments])}
    swept = [name for name, one in last.items() if one.sweep and len({*map(str, one.values)}) != 1]
    composed: Any = OmegaConf.to_container(config, resolve=False)
    out = composed["out"]
    missing = [name for name in swept if not _varies_with(out, name)]
    if missing and not {"out", "experiment"} & {*swept}:
        wanted = "-".join(_reference_to(name) for name in missing)
        raise ValueError(
            f"out must name another folder for each {' and '.join(missing)} of --multirun, got {out}; write "
            f"'out={out}-{wanted}'"
        )


def _varies_with(out: str, name: str) -> bool:
    """Whether a folder's interpolations follow an option or group."""
    for reference in re.findall(r"\$\{([^{}]+)\}", out):
        if reference in (name, f"hydra:runtime.choices.{name}") or reference.startswith((f"{name}.", "hydra:job.")):
            return True
        if reference not in option_names() and not reference.startswith("hydra:"):
            return True  # the user's own resolver
    return False


def _reference_to(name: str) -> str:
    if name in GROUPS:
        return f"${{hydra:runtime.choices.{name}}}"
    return f"${{{name}}}" if name in option_names() else "${hydra:job.num}"


def leave_no_sweep() -> None:
    """Remove what Hydra has written for a sweep whose first run is refused."""
    hydra = HydraConfig.get() if HydraConfig.initialized() else None
    if hydra is None or hydra.mode != RunMode.MULTIRUN or hydra.job.num != 0:
        return
    sweep = Path(hydra.sweep.dir)
    parents = [] if sweep.is_absolute() else list(sweep.parents)[:-1]
    (sweep / "multirun.yaml").unlink(missing_ok=True)
    leave_nothing([sweep / hydra.sweep.subdir, sweep, *parents])


def _free(known: dict[str, type]) -> list[str]:
    """Options that accept any names."""
    return [name for name in known if name.endswith((".options", ".overrides"))]


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Return "; did you mean 'x'?", or "" if no name is close.

    Args:
        name: that does not exist.
        allowed: names that do.
    """
    if found := did_you_mean(name, allowed):
        return found
    # A last part that is right, in the wrong place: lr for optim.lr.
    misplaced = [full for full in allowed if full.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"; did you mean {misplaced[0]!r}?" if misplaced else ""


_OF_LEARNED = ("actor", "estimator", "baseline", "rate", "loss")
"""Groups that are about a policy that learns by rewards."""
_OF_ALL = ("loss.language_model", "loss.early_exit")
"""Of these groups, what matters whoever draws the boundaries."""
_OF_RULES = ("actor.name", "actor.rate")
"""And what matters where an actor draws them by a rule."""


def check_policy(arguments: Sequence[str]) -> None:
    """Refuse what was asked of a policy where none is learned: an actor draws by a rule, or a segmenter draws.

    An experiment may be run with such a one in the place of its policy, and then its options about the policy lie idle.
    One that stands beside it on the command line was meant to do something.

    Args:
        arguments: ``name=value`` as Hydra takes them; the last of several counts. In a sweep they may be meant for
            other runs of it.

    Example:
        >>> check_policy(["experiment=books", "actor=uniform"])
        >>> check_policy(["actor=uniform", "estimator.gamma=0.9"])
        Traceback (most recent call last):
        ValueError: estimator.gamma=0.9 belongs to a policy that is learned, got actor=uniform
        >>> check_policy(["segmenter=hnet", "actor=uniform"])
        Traceback (most recent call last):
        ValueError: actor=uniform belongs to a policy that is learned, got segmenter=hnet
    """
    given = [one for one in parse_overrides(arguments) if one.values]
    heeded: tuple[str, ...] = _OF_ALL
    drawing = _drawing(given, "segmenter")
    if drawing is None:
        drawing, heeded = _drawing(given, "actor"), (*_OF_ALL, *_OF_RULES)
    if drawing is None:
        return
    for one in given:
        group, dot, _ = one.name.partition(".")
        of_actor = one.name in ("actor", "actor.name") and (drawing.startswith("actor") or one.value == "learned")
        if group not in _OF_LEARNED or one.name in heeded or of_actor:
            continue
        if dot or not _sets_any(group, str(one.value), heeded):
            raise ValueError(f"{one.name}={one.text} belongs to a policy that is learned, got {drawing}")


def _drawing(given: Sequence[Override], group: str) -> str | None:
    """The override that selects a drawer other than the learned policy; None if there is none, or in a sweep."""
    asked = [one for one in given if one.name in (group, f"{group}.name")]
    if not asked or asked[-1].sweep:
        return None
    value = str(asked[-1].value)
    by_policy = value.split("-")[0] == "learned" or value == "warm_start" or "$" in value
    return None if by_policy else f"{asked[-1].name}={value}"


def _sets_any(group: str, choice: str, names: Sequence[str]) -> bool:
    """Whether a file of a group sets any of these options."""
    path = CONF / group / f"{choice}.yaml"
    held: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.exists() else {}
    return any(f"{group}.{key}" in names for key in held)

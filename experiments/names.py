"""Options on a command line that do not exist, named before Hydra sees them, with what may have been meant."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from rltok_rl.experiments.config import GROUPS, TrainConfig

from rltok_rl.functional.imports import did_you_mean
from rltok_rl.models import UNetConfig

CONF = Path(__file__).resolve().parent / "conf"


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


def choices(group: str) -> list[str]:
    """The files of a group.

    Args:
        group: its folder.
    """
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def check_overrides(arguments: Sequence[str]) -> None:
    """Refuse an option or a choice that does not exist, and say which one is nearest.

    Args:
        arguments: ``name=value`` as Hydra takes them; flags and options of Hydra itself are left to it.
    """
    known = option_names()
    groups = [*GROUPS, "experiment"]
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.lstrip("+~")
        if not equals or name.startswith(("-", "hydra")):
            continue
        if name in groups:
            allowed = choices(name)
            for one in value.split(","):
                if one not in (*allowed, "null", ""):
                    raise ValueError(f"{name} must be one of {allowed}, got {one!r}{nearest(one, allowed)}")
        elif name.startswith("model.overrides."):
            sizes = [one.name for one in fields(UNetConfig)]
            field = name.removeprefix("model.overrides.")
            if field not in sizes:
                raise ValueError(f"model.overrides holds fields of UNetConfig, got {field!r}{nearest(field, sizes)}")
        elif name not in known and not any(name.startswith(f"{free}.") for free in _free(known)):
            raise ValueError(f"there is no option {name!r}{nearest(name, [*known, *groups])}")


def allow_new(arguments: Sequence[str]) -> list[str]:
    """Arguments with ``++`` before options that hold whatever names are understood: Hydra takes new ones there, too.

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
    """Refuse a folder of a run that cannot be written, before Hydra tries to.

    Args:
        arguments: of the command line.
    """
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith("out=")]
    if not given or "$" in given[-1] or any(flag in arguments for flag in ("-m", "--multirun")):
        return
    try:
        Path(given[-1]).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=given[-1]):
            pass
    except OSError as error:
        raise OSError(f"out must be a folder that can be written, got {given[-1]!r}: {error.strerror}") from None
    finally:
        leave_nothing(Path(given[-1]))


def leave_nothing(folder: Path) -> None:
    """Remove the folder of a run that was refused, if it is empty.

    Args:
        folder: there or not.
    """
    with contextlib.suppress(OSError):
        folder.rmdir()


def _free(known: dict[str, type]) -> list[str]:
    """Options that hold whatever names the things they are of understand."""
    return [name for name in known if name.endswith((".options", ".overrides"))]


def nearest(name: str, allowed: Sequence[str]) -> str:
    """The end of a message that names what may have been meant; empty where nothing is near.

    Args:
        name: that does not exist.
        allowed: names that do.
    """
    if found := did_you_mean(name, allowed):
        return found
    # A last part that is right, in the wrong place: lr for optim.lr.
    misplaced = [full for full in allowed if full.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"; did you mean {misplaced[0]!r}?" if misplaced else ""

"""Numbers that callers give, checked by name."""

from __future__ import annotations

import ctypes
import ctypes.util
import difflib
import importlib
import operator
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rltok_rl.renamed import rename_options


def check_count(name: str, value: object, *, minimum: int = 1) -> int:
    """Require an integer of at least ``minimum``; NumPy's integers are integers too.

    Args:
        name: what the message calls it.
        value: what was given.
        minimum: the least that is allowed.

    Example:
        >>> check_count("num_steps", 3)
        3
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return count


def is_import_path(name: str) -> bool:
    """Whether a name says where something lies, and is none of this library's words.

    Args:
        name: of anything.

    Example:
        >>> is_import_path("my_package.judging:Mine"), is_import_path("leave_one_out")
        (True, False)
    """
    return ":" in name


def check_trust(path: str | Path, name: str, trust_code: bool) -> None:
    """Raise an error if a file names custom code and the user does not trust it.

    Files come from anywhere, and importing a module executes it. A name on a command line is the user's choice and
    needs no check.

    Args:
        path: the file.
        name: a name that was read from it.
        trust_code: whether the user trusts the code.

    Example:
        >>> check_trust("mymodel/segmenter.json", "spacebyte", False)
        >>> check_trust("mymodel/segmenter.json", "evil:Evil", False)
        Traceback (most recent call last):
        ValueError: mymodel/segmenter.json names custom code, 'evil:Evil', which would be executed; pass --trust-code \
(in Python, trust_code=True) if you trust it
    """
    if is_import_path(name) and not trust_code:
        raise ValueError(
            f"{path} names custom code, {name!r}, which would be executed; pass --trust-code (in Python, "
            f"trust_code=True) if you trust it"
        )


def import_path(argument: str, name: str) -> Any:
    """What lies at ``module:Name``; modules are found as ``python -m`` finds them, in the working folder too.

    Args:
        argument: what messages call it.
        name: a module, a colon, and a name in the module.

    Example:
        >>> import_path("baseline.name", "rltok_rl.functional.baselines:leave_one_out").__name__
        'leave_one_out'
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise ValueError(f"{argument} must be a word, or module:Name as Python imports it, got {name!r}")
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be newer than the last look at its folder
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise ImportError(
            f"{argument} must name a module that is installed or lies in the working folder, got {name!r}: "
            f"there is no {error.name!r}"
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            meant = did_you_mean(part, [one for one in vars(found) if not one.startswith("_")])
            raise ValueError(f"{argument} must name something in the module, got {name!r}: no {part!r} there{meant}")
        found = getattr(found, part)
    return found


def did_you_mean(name: str, allowed: Iterable[str], words: Mapping[str, str] | None = None) -> str:
    """The end of a message that names what may have been meant; empty where nothing is near.

    Args:
        name: that does not exist.
        allowed: names that do.
        words: other words for names, by the word.

    Example:
        >>> did_you_mean("runing_mean", ["leave_one_out", "running_mean"])
        "; did you mean 'running_mean'?"
    """
    names = list(allowed)
    named = (words or {}).get(name)
    near = [named] if named in names else difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


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
    rename_options(config)
    return config


def _strings(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """All strings in nested containers, with their dotted names."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(inner, f"{name}.{key}" if name else str(key))


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def keep_memory() -> None:
    """Ask the C library to keep freed memory instead of giving it back (glibc only).

    By default every tensor beyond 32 MB is mapped anew and its pages cleared fault by fault, which on a CPU can
    cost more than the arithmetic. Both sides of a comparison profit; what is compared is then the work.
    """
    if sys.platform == "linux" and (libc := ctypes.util.find_library("c")):
        mallopt = getattr(ctypes.CDLL(libc), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)

"""Helpers of all packages: argument checks, import paths, suggestions, config files, memory."""

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
    """Require an integer of at least ``minimum``, NumPy's included, and return it as an int."""
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return count


def is_gpu(device: Any) -> bool:
    """Whether a ``torch.device`` is a GPU of this machine, and not a simulated one."""
    import torch

    return bool(device.type == "cuda" and torch.cuda.is_available())


def is_import_path(name: str) -> bool:
    """Whether a name is an import path, ``module:Name``, and not one of this library's words."""
    return ":" in name


def check_trust(path: str | Path, name: str, trust_code: bool) -> None:
    """Raise an error if a name in a file is an import path, which would be executed, and the user does not trust it."""
    if is_import_path(name) and not trust_code:
        raise ValueError(
            f"{path} names custom code, {name!r}, which would be executed; pass --trust-code (in Python, "
            f"trust_code=True) if you trust it"
        )


def import_path(argument: str, name: str) -> Any:
    """Return the object at ``module:Name``, also of modules in the working folder; messages name the ``argument``.

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
    importlib.invalidate_caches()  # the file may be newer than the import system's cache
    try:
        target: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but not a module that it imports
        raise ImportError(
            f"{argument} must name a module that is installed or lies in the working folder, got {name!r}: "
            f"there is no {error.name!r}"
        ) from None
    for part in attribute.split("."):
        if not hasattr(target, part):
            hint = did_you_mean(part, [public for public in vars(target) if not public.startswith("_")])
            raise ValueError(f"{argument} must name something in the module, got {name!r}: no {part!r} there{hint}")
        target = getattr(target, part)
    return target


def did_you_mean(name: str, allowed: Iterable[str], words: Mapping[str, str] | None = None) -> str:
    """Return "; did you mean 'x'?" for the allowed name closest to ``name`` or its synonym, or "" if none is close.

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

    Interpolations such as ``${oc.env:HOME}``, which would read the environment of the reader, are an error.
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
    """Yield all strings in nested containers with their dotted names."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(inner, f"{name}.{key}" if name else str(key))


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def keep_memory() -> None:
    """Ask the C library to keep freed memory instead of giving it back (glibc only).

    By default every tensor beyond 32 MB is mapped anew, which on a CPU can cost more than the arithmetic.
    """
    if sys.platform == "linux" and (libc := ctypes.util.find_library("c")):
        mallopt = getattr(ctypes.CDLL(libc), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)

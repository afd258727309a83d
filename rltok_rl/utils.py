"""Helpers of all packages: argument checks, import paths, suggestions, memory."""

from __future__ import annotations

import ctypes
import ctypes.util
import difflib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from rltok_rl.ranges import check_arguments, check_number


def check_count(name: str, value: object, *, minimum: int = 1) -> int:
    """Require an integer of at least ``minimum``, NumPy's included, and return it as an int."""
    if type(value) is int and minimum <= value < 2**63:
        return value  # in a twentieth of the time, for counts that are checked one by one
    return check_number(name, value, f"[{minimum}, inf)", whole=True)


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate tensors; one alone is returned as it is."""
    import torch

    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def is_gpu(device: Any) -> bool:
    """Whether a ``torch.device`` is a GPU of this machine, and not a simulated one."""
    import torch

    return bool(device.type == "cuda" and torch.cuda.is_available())


def is_import_path(name: str) -> bool:
    """Whether a name is an import path, ``module:Name``, and not one of this library's words."""
    return ":" in name


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


def printable(text: str) -> str:
    r"""Escape characters that are not printable, as JSON does: they could steer the terminal that shows the text.

    Example:
        >>> printable("a\x1b[2Jb\x9bc.txt")
        'a\\u001b[2Jb\\u009bc.txt'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Escape the characters of each line as :func:`printable` does."""
    return "\n".join(map(printable, text.splitlines()))


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


def check_options(
    group: str,
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    allowed: Collection[str] | None = None,
    of: str = "",
) -> None:
    """Require options by name that are among the ``allowed`` ones, by default all, and as the parameters are declared.

    Example:
        >>> check_options("data.options", lambda lag: lag, {"lga": 3}, of="lexicon")
        Traceback (most recent call last):
        ValueError: data.options of 'lexicon' must be among ['lag'], got 'lga'; did you mean 'lag'?
    """
    allowed = [*inspect.signature(function).parameters] if allowed is None else allowed
    if wrong := next((option for option in options if option not in allowed), None):
        name = f"{group} of {of!r}" if of else group
        raise ValueError(f"{name} must be among {[*allowed]}, got {wrong!r}{did_you_mean(wrong, allowed)}")
    check_arguments(function, options, f"{group}.")

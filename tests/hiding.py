"""Hide installed packages from a process, as if they were not installed.

Import it before anything else in a new process: what is imported already stays.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def hide(packages: Iterable[str]) -> None:
    """Make top-level packages invisible to imports and to ``importlib.util.find_spec``."""
    sys.meta_path[:] = [_Without(finder, frozenset(packages)) for finder in sys.meta_path]


def all_but(distributions: Iterable[str]) -> set[str]:
    """Return the installed top-level packages that neither these distributions nor their dependencies bring."""
    kept, queue = set(), [_normal(name) for name in distributions]
    while queue:
        name = queue.pop()
        if name not in kept:
            kept.add(name)
            queue += _dependencies(name)
    by_package = metadata.packages_distributions()
    return {package for package, owners in by_package.items() if not kept & {_normal(owner) for owner in owners}}


def _dependencies(name: str) -> list[str]:
    """Dependencies without those of extras; markers are ignored, which keeps too much rather than too little."""
    try:
        required = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    return [_normal(re.split(r"[^\w.-]", line)[0]) for line in required if "extra ==" not in line]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Without:
    """A finder that does not find hidden packages."""

    def __init__(self, finder: Any, hidden: frozenset[str]) -> None:
        self.finder, self.hidden = finder, hidden

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in self.hidden else self.finder.find_spec(fullname, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)

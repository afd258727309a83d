"""Stand-ins for optional packages, so that the documentation builds without installing them.

Two modules of the library define a class on top of an optional package. The reference needs their signatures and
docstrings, and nothing of the package itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = ("lm_eval", "stable_baselines3")
"""Packages that the documentation replaces; its names are the same whether they are installed or not."""


def install() -> None:
    """Replace :data:`PACKAGES` in this process; call it before the library is imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Find stand-ins where Python would look for the packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty: it makes its names when they are asked for."""


class _StandIn(ModuleType):
    """A module that has every name: an empty class if the name is capitalised, else a decorator with arguments."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self.__name__} has no attribute {name!r}")
        value = type(name, (), {"__module__": self.__name__}) if name[0].isupper() else _decorator
        setattr(self, name, value)
        return value


def _decorator(*args: Any, **options: Any) -> Callable[[Any], Any]:
    """Return a decorator that changes nothing."""
    return lambda value: value

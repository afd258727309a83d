"""What is public, and where each name has its entry.

A package that lists names in ``__all__`` has these. One that lists none (`rltok_rl.functional`, `rltok_rl.diagnostics`)
has those of its modules: functions and classes that they define, and constants that they say something about.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PACKAGES = (
    "rltok_rl.functional",
    "rltok_rl.sampling",
    "rltok_rl.models",
    "rltok_rl.data",
    "rltok_rl.data.languages",
    "rltok_rl.agents",
    "rltok_rl.agents.segmenters",
    "rltok_rl.envs",
    "rltok_rl.objectives",
    "rltok_rl.training",
    "rltok_rl.evaluation",
    "rltok_rl.diagnostics",
    "rltok_rl.viz",
    "rltok_rl.viz.viewer",
    "rltok_rl",
)
"""Packages in the order of the reference. A name that several of them export has its entry with the first."""
ALSO = (
    "rltok_rl.models.flops",
    "rltok_rl.models.generation",
    "rltok_rl.models.tokens",
    "rltok_rl.objectives.segmented",
    "rltok_rl.objectives.time_last",
    "rltok_rl.training.distributed",
    "rltok_rl.training.loggers",
    "rltok_rl.training.snapshots",
    "rltok_rl.experiments.bench.traffic",
    "rltok_rl.evaluation.tasks",
    "rltok_rl.evaluation.continuations",
    "rltok_rl.evaluation.detail",
    "rltok_rl.evaluation.lm_eval",
    "rltok_rl.viz.run_figures",
    "rltok_rl.viz.text_figures",
)
"""Modules that pages send readers to, though their packages export none of their names."""


class Name(NamedTuple):
    """A public name."""

    module: str
    """That exports it."""
    name: str
    home: str
    """The module that defines it."""
    entry: str
    """Its full name in the reference, which may be that of another package."""

    @property
    def full(self) -> str:
        """As it is imported."""
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        """The object."""
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def kind(self) -> str:
        """``class``, ``exception``, ``function`` or ``data``."""
        if inspect.isclass(self.value):
            return "exception" if issubclass(self.value, BaseException) else "class"
        return "function" if inspect.isroutine(self.value) else "data"

    @property
    def doc(self) -> str:
        """Its docstring; of constants, the string that follows their assignment."""
        if self.kind == "data":
            return constant_docs(self.home).get(self.name, "")
        return inspect.cleandoc(self.value.__doc__ or "")


@cache
def public_names() -> tuple[Name, ...]:
    """All public names, package by package."""
    found: list[Name] = []
    entries: dict[tuple[str, str], str] = {}
    pages = reference_modules()
    for module in pages:
        loaded = importlib.import_module(module)
        for name, home in _named(loaded):
            first = home if home in pages else module
            entry = entries.setdefault((home, name), f"{first}.{name}")
            found.append(Name(module, name, home, entry))
    return tuple(found)


def reference_modules() -> list[str]:
    """The modules that have a page each: packages with names of their own, and the modules of those without."""
    found: list[str] = []
    for package in PACKAGES:
        loaded = importlib.import_module(package)
        if package == "rltok_rl":
            found += ALSO  # before the names that it takes from them
        found += [package] if hasattr(loaded, "__all__") else list(_modules(loaded))
    return found


def missing_packages(exporting: set[str]) -> set[str]:
    """Packages that export names and have no page.

    Args:
        exporting: packages of the library, as they are installed.
    """
    return {name for name in exporting if hasattr(importlib.import_module(name), "__all__")} - set(PACKAGES)


@cache
def constant_docs(module: str) -> dict[str, str]:
    """Strings that follow the assignments of a module.

    Args:
        module: its name.
    """
    body = _tree(module).body
    found = {}
    for one, after in zip(body, body[1:], strict=False):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            for name in _assigned(one):
                found[name] = inspect.cleandoc(after.value.value)
    return found


def _named(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Public names of a module, each with the module that defines it."""
    homes = dict(_homes(module))
    if hasattr(module, "__all__"):
        for name in module.__all__:
            value = getattr(module, name)
            own = getattr(value, "__module__", None) if inspect.isclass(value) or inspect.isroutine(value) else None
            yield name, own or _origin(homes[name], name)
        return
    for name, home in homes.items():
        if not name.startswith("_") and home == module.__name__ and _counts(module, name):
            yield name, home


def _origin(module: str, name: str) -> str:
    """The module that assigns a name, through all that hand it on."""
    home = dict(_homes(importlib.import_module(module))).get(name, module)
    return home if home == module else _origin(home, name)


def _counts(module: ModuleType, name: str) -> bool:
    """Whether a name that a module defines is one of its functions, classes or documented constants."""
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return getattr(value, "__module__", None) == module.__name__
    return name in constant_docs(module.__name__)


def _homes(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Names of a module, and the modules that define them, as its source says."""
    for node in _statements(_tree(module.__name__)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, node.module) for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, module.__name__
        else:
            yield from ((name, module.__name__) for name in _assigned(node))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, those under ``if TYPE_CHECKING:`` included."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from node.body


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _modules(package: ModuleType) -> Iterator[str]:
    folder = Path(package.__file__ or "").parent
    for path in sorted(folder.glob("*.py")):
        if not path.stem.startswith("_"):
            yield f"{package.__name__}.{path.stem}"


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8"))

"""Imports point one way: a lower layer never imports a higher one."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from .layout import ROOT, ROOTS, modules

# Lower layers first; packages on one line may not import each other either, save for themselves.
LAYERS = [
    {"renamed"},
    {"utils", "text"},
    {"functional"},
    {"sampling"},
    {"models", "data", "viz"},
    {"agents"},
    {"envs", "objectives"},
    {"training", "evaluation", "diagnostics"},
    {"experiments"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
ROOMS = [
    *("run_config", "texts", "runs", "reports", "commands"),
    *("bench", "studies", "demo", "compare", "soak", "train", "cli"),
]
"""Rooms of `experiments`, lower ones first."""
# Modules of the package itself: the version, and the front page that re-exports from everywhere.
FREE = {"rltok_rl", "rltok_rl.version"}


def imported(path: Path, name: str, known: Collection[str] = ()) -> set[str]:
    """Full names of everything that a module imports, also inside functions and under TYPE_CHECKING.

    ``from package import module`` counts as an import of the module alone, if the module is among ``known``.
    """
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            members = {f"{source}.{alias.name}" for alias in node.names}
            names |= members if members <= set(known) else members | {source}
    return names


def violations(root: Path) -> list[str]:
    """One line per import that points up, sideways, or at a folder by its name in the checkout."""
    lines = []
    known = {name for name, _ in modules(root)}
    for name, path in modules(root):
        if name in FREE:
            continue
        here = name.split(".")[1]
        if here not in RANK:
            lines.append(f"{name}: layer {here!r} is not in tests/test_import_direction.py; add it to LAYERS")
            continue
        for target in imported(path, name):
            parts = target.split(".")
            if parts[0] in set(ROOTS) - {"rltok_rl"}:
                lines.append(f"{name} imports {target}; import it as rltok_rl.{target}")
            elif parts[0] == "rltok_rl" and len(parts) > 1 and target in known and parts[1] in RANK:
                there = parts[1]
                if there != here and RANK[there] >= RANK[here]:
                    lines.append(f"{name} ({here}) imports {target} ({there}), which is not below it")
            elif target == "rltok_rl" and here != "experiments":
                lines.append(f"{name} imports the front page rltok_rl; import what it re-exports from its own module")
    return lines


def test_imports_point_one_way():
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [
        ("rltok_rl/functional/a.py", "from rltok_rl.models.b import X", "(functional) imports rltok_rl.models.b"),
        ("rltok_rl/functional/a.py", "def f():\n    import rltok_rl.models.b", "imports rltok_rl.models.b"),
        ("rltok_rl/functional/a.py", "from ..models import b", "imports rltok_rl.models"),
        ("rltok_rl/functional/a.py", "from rltok_rl import models", "imports rltok_rl.models"),
        ("agents/a.py", "import rltok_rl.envs.b", "(agents) imports rltok_rl.envs.b (envs), which is not below it"),
        ("rltok_rl/models/a.py", "from experiments import b", "import it as rltok_rl.experiments"),
        ("rltok_rl/novel/__init__.py", "", "layer 'novel' is not in"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, place, code, message):
    for package in ("rltok_rl", "rltok_rl/functional", "rltok_rl/models", "envs", "agents", "experiments"):
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").touch()
    for module in ("rltok_rl/models/b.py", "envs/b.py"):
        (tmp_path / module).touch()
    assert violations(tmp_path) == []
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(code)
    assert any(message in line for line in violations(tmp_path))


def circles(root: Path) -> list[list[str]]:
    """Modules that import each other in a circle, type hints included: the strongly connected components."""
    known = dict(modules(root))
    below = {name: [t for t in imported(path, name, known) if t in known and t != name] for name, path in known.items()}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for target in below[name]:
            if target not in number:
                visit(target)
            if target in path:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == number[name]:
            component = path[path.index(name) :]
            del path[path.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in below:
        if name not in number:
            visit(name)
    return found


def test_no_module_imports_itself_through_others():
    assert circles(ROOT) == []


def rooms_upward(root: Path) -> list[str]:
    """Imports within `experiments` that point from a lower room to a higher one."""
    rank = {name: place for place, name in enumerate(ROOMS)}
    lines = []
    for name, path in modules(root):
        parts = name.split(".")
        if parts[:2] == ["rltok_rl", "experiments"] and len(parts) > 2 and parts[2] in rank:
            for target in sorted(imported(path, name)):
                room = target.split(".")[2] if target.startswith("rltok_rl.experiments.") else parts[2]
                if rank.get(room, 0) > rank[parts[2]]:
                    lines.append(f"{name} imports {target}, whose room is above it")
    return lines


def test_rooms_of_experiments_import_downwards():
    assert rooms_upward(ROOT) == []


# A command may have the name of the module that it runs, and the method's one-file reference that of its loss.
SHARED_NAMES = {"boundaries", "estimators", "leaderboard", "lm_eval", "reinforce", "soak", "tasks"}


def test_file_names_are_unique():
    counts = Counter(path.stem for _, path in modules(ROOT) if path.stem not in ("__init__", "__main__"))
    assert {name for name, count in counts.items() if count > 1} <= SHARED_NAMES

"""Imports point one way: a lower layer never imports a higher one."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

from .layout import ROOT, ROOTS, modules

# Lower layers first; packages on one line may not import each other either, save for themselves.
LAYERS = [
    {"renamed", "start_method", "ranges"},
    {"utils", "text"},
    {"foreign"},
    {"fused"},
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
    *("run_config", "recipes", "texts", "runs", "reports", "commands"),
    *("bench", "studies", "demo", "compare", "train", "sweep", "cli"),
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


PLANTED = (
    ("rltok_rl/functional/a.py", "from rltok_rl.models.b import X", "(functional) imports rltok_rl.models.b"),
    ("rltok_rl/functional/a.py", "def f():\n    import rltok_rl.models.b", "imports rltok_rl.models.b"),
    ("rltok_rl/functional/a.py", "from ..models import b", "imports rltok_rl.models"),
    ("rltok_rl/functional/a.py", "from rltok_rl import models", "imports rltok_rl.models"),
    ("agents/a.py", "import rltok_rl.envs.b", "(agents) imports rltok_rl.envs.b (envs), which is not below it"),
    ("rltok_rl/models/a.py", "from experiments import b", "import it as rltok_rl.experiments"),
    ("rltok_rl/novel/__init__.py", "", "layer 'novel' is not in"),
)


def test_planted_violations_are_found(tmp_path):
    for package in ("rltok_rl", "rltok_rl/functional", "rltok_rl/models", "envs", "agents", "experiments"):
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").touch()
    for module in ("rltok_rl/models/b.py", "envs/b.py"):
        (tmp_path / module).touch()
    for place, code, message in PLANTED:
        assert violations(tmp_path) == []
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(code)
        assert any(message in line for line in violations(tmp_path)), code
        (tmp_path / place).unlink()


def test_no_module_imports_itself_through_others():
    """Type hints included; the error of a circle names its modules."""
    known = dict(modules(ROOT))
    below = {name: {t for t in imported(path, name, known) if t in known} - {name} for name, path in known.items()}
    TopologicalSorter(below).prepare()


def test_rooms_of_experiments_import_downwards():
    rank = {name: place for place, name in enumerate(ROOMS)}
    upward = []
    for name, path in modules(ROOT):
        parts = name.split(".")
        if parts[:2] == ["rltok_rl", "experiments"] and len(parts) > 2 and parts[2] in rank:
            rooms = {t.split(".")[2] for t in imported(path, name) if t.startswith("rltok_rl.experiments.")}
            upward += [f"{name} imports {room}" for room in rooms if rank.get(room, 0) > rank[parts[2]]]
    assert upward == []


# A command may have the name of the module that it runs, and the method's one-file reference that of its loss.
SHARED_NAMES = {"boundaries", "estimators", "leaderboard", "lm_eval", "reinforce", "tasks"}


def test_file_names_are_unique():
    counts = Counter(path.stem for _, path in modules(ROOT) if path.stem not in ("__init__", "__main__"))
    assert {name for name, count in counts.items() if count > 1} <= SHARED_NAMES

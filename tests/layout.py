"""Where the package's modules lie in a checkout, shared by the tests that walk them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
# Folder in the checkout, and the package that it is installed as.
ROOTS = {
    "rltok_rl": "rltok_rl",
    "envs": "rltok_rl.envs",
    "agents": "rltok_rl.agents",
    "experiments": "rltok_rl.experiments",
}


def modules(root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Every module as (installed name, file)."""
    for folder, package in ROOTS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            yield ".".join((package, *parts)), path


def packages(root: Path = ROOT) -> set[str]:
    """Every package as it is installed."""
    return {name for name, path in modules(root) if path.name == "__init__.py"}


ONE_GRAPH = pytest.mark.skipif(
    torch.__version__.startswith("2.7."), reason="the compiler of torch 2.7 does not trace this in one graph"
)

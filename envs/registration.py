"""Register the gymnasium ids, without importing gymnasium before the program does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BYTE_BOUNDARY = "rltok_rl/ByteBoundary-v0"
ENVIRONMENTS = {
    BYTE_BOUNDARY: ("gym_env:ByteBoundaryGym", "gym_vector:ByteBoundaryVectorEnv"),
    "rltok_rl/Recall-v0": ("gym_languages:RecallGym", "gym_languages:RecallVectorEnv"),
    "rltok_rl/Lexicon-v0": ("gym_languages:LexiconGym", "gym_languages:LexiconVectorEnv"),
}
"""Ids, and where in this package their single and their vector environment are."""


def register() -> None:
    """Register the environments by name; their modules are imported when the first environment is made."""
    import gymnasium

    for name, (single, vector) in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name, entry_point=f"rltok_rl.envs.{single}", vector_entry_point=f"rltok_rl.envs.{vector}"
            )


def register_on_import() -> None:
    """Register the environments now if gymnasium is imported already, else at the end of its import."""
    if "gymnasium" not in sys.modules:
        if _AfterGymnasium not in sys.meta_path:
            sys.meta_path.insert(0, _AfterGymnasium)
        return
    if hasattr(sys.modules["gymnasium"], "registry"):
        register()


class _AfterGymnasium:
    """Import hook: gymnasium is found and loaded as without it, and registers our environments at the end."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        finders: list[Any] = [one for one in sys.meta_path if one is not cls and hasattr(one, "find_spec")]
        for finder in finders:
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                loader: Any = spec.loader
                if loader is not None:
                    loader.exec_module = _and_then_register(loader.exec_module)
                return spec
        return None


def _and_then_register(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == "gymnasium":
            register()

    return exec_module

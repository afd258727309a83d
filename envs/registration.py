"""Registration of the gymnasium ids, without importing gymnasium before the program does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BYTE_BOUNDARY = "rltok_rl/ByteBoundary-v0"
ENVIRONMENTS = {
    BYTE_BOUNDARY: ("gym_env:ByteBoundaryGym", "gym_vector:ByteBoundaryVectorEnv"),
    "rltok_rl/Recall-v0": ("gym_languages:RecallGym", "gym_languages:RecallVectorEnv"),
    "rltok_rl/Lexicon-v0": ("gym_languages:LexiconGym", "gym_languages:LexiconVectorEnv"),
}
"""Single and vector environment of each id, within this package."""


def register() -> None:
    """Register the environments; their modules are imported when the first environment is made."""
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
    elif hasattr(sys.modules["gymnasium"], "registry"):
        register()


class _AfterGymnasium:
    """Import hook that registers the environments after gymnasium has been loaded as usual."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        finders: list[Any] = [finder for finder in sys.meta_path if finder is not cls and hasattr(finder, "find_spec")]
        spec: ModuleSpec | None = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is not None:
            loader: Any = spec.loader
            loader.exec_module = _and_register(loader.exec_module)
        return spec


def _and_register(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == "gymnasium":
            register()

    return exec_module

"""Registration of the gymnasium ids, without importing gymnasium before the program does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

BYTE_BOUNDARY = "rltok_rl/ByteBoundary-v0"
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    BYTE_BOUNDARY: {},
    "rltok_rl/Recall-v0": {},
    "rltok_rl/Lexicon-v0": {},
    "rltok_rl/ByteBoundary-v1": {"kwargs": {"model": "pocket", "text": "novel"}},
    "rltok_rl/Recall-v1": {"kwargs": {"model": "recall-world", "price": 0.25}, "reward_threshold": 22.2},
    "rltok_rl/Lexicon-v1": {"kwargs": {"model": "lexicon-world", "price": 0.25}, "reward_threshold": 40.0},
}
"""Options of ``gymnasium.register`` by id. The default model is untrained in version 0 and trained in version 1."""


def register() -> None:
    """Register the environments; their modules are imported when the first environment is made."""
    import gymnasium

    for name, options in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            kind = f"rltok_rl.envs:{name.split('/')[1].split('-')[0]}"
            gymnasium.register(name, f"{kind}Gym", vector_entry_point=f"{kind}VectorEnv", **options)


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

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
_TASKS = {  # price and threshold of each grade
    "recall-tight": ((0.25, 0.5, 1.0, 1.5), (16.8, 14.3, 9.3, 4.4)),
    "delay": ((0.25,) * 4, (16.8, 5.3, 6.1, 6.3)),
    "noise": ((0.25,) * 4, (16.8,) * 4),
    "decoy": ((0.25,) * 4, (11.7, 9.0, 6.1, 3.6)),
    "knapsack": ((2.1,) * 4, (5.6, 3.5, 2.9, 2.7)),
    "pair": ((0.1,) * 4, (2.3, 4.3, 5.7, 9.0)),
    "clock": ((0.25,) * 4, (23.0, 19.0, 13.9, 8.7)),
    "garden-path": ((0.1,) * 4, (5.4, 8.9, 11.0, 12.2)),
    "switch": ((0.25,) * 4, (16.8, 16.8, 11.7, 11.7)),
    "nest": ((0.25,) * 4, (21.2, 18.9, 36.6, 71.8)),
}
TASK_ENVIRONMENTS: dict[str, dict[str, Any]] = {
    f"rltok_rl/{task.title().replace('-', '')}-{grade}-v1": {
        "kwargs": {"task": task, "grade": grade, "price": price},
        "reward_threshold": threshold,
    }
    for task, columns in _TASKS.items()
    for grade, (price, threshold) in enumerate(zip(*columns, strict=True), 1)
}
"""Options by id of the boundary suite's tasks, which have a perfect reader in the place of a model."""


def register() -> None:
    """Register the environments; their modules are imported when the first environment is made."""
    import gymnasium

    for name, options in (ENVIRONMENTS | TASK_ENVIRONMENTS).items():
        if name not in gymnasium.registry:
            kind = f"rltok_rl.envs:{'Task' if name in TASK_ENVIRONMENTS else name.split('/')[1].split('-')[0]}"
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

"""The byte stream and its language model as a TorchRL environment, with adapters for gymnasium.

Installed as ``rltok_rl.envs``; import it by that name only. Names are imported on first use, so that registering the
gymnasium environments costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "ByteBoundaryEnv": "byte_boundary",
    "parallel_rollout": "parallel",
    "ParallelCollector": "collector",
    "ByteBoundaryGym": "gym_env",
    "ByteBoundaryVectorEnv": "gym_vector",
    "RecallGym": "gym_languages",
    "RecallVectorEnv": "gym_languages",
    "LexiconGym": "gym_languages",
    "LexiconVectorEnv": "gym_languages",
    "SB3VecEnv": "sb3",
    "TaskGym": "gym_tasks",
    "TaskVectorEnv": "gym_tasks",
}
__all__ = list(_HOME)  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

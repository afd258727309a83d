"""The gymnasium ids."""

from __future__ import annotations

import importlib.util

BYTE_BOUNDARY = "rltok_rl/ByteBoundary-v0"


def register() -> None:
    """Make the environments known to gymnasium, by name only: nothing is loaded before one is made."""
    if importlib.util.find_spec("gymnasium") is None:  # a machine that only runs models
        return
    import gymnasium

    if BYTE_BOUNDARY not in gymnasium.registry:
        gymnasium.register(
            BYTE_BOUNDARY,
            entry_point="rltok_rl.envs.gym_env:ByteBoundaryGym",
            vector_entry_point="rltok_rl.envs.gym_vector:ByteBoundaryVectorEnv",
        )

"""The gymnasium ids."""

from __future__ import annotations

import importlib.util

BYTE_BOUNDARY = "rltok_rl/ByteBoundary-v0"
ENVIRONMENTS = {
    BYTE_BOUNDARY: ("gym_env:ByteBoundaryGym", "gym_vector:ByteBoundaryVectorEnv"),
    "rltok_rl/Recall-v0": ("gym_languages:RecallGym", "gym_languages:RecallVectorEnv"),
    "rltok_rl/Lexicon-v0": ("gym_languages:LexiconGym", "gym_languages:LexiconVectorEnv"),
}
"""Ids, and where in this package their single and their vector environment are."""


def register() -> None:
    """Make the environments known to gymnasium, by name only: nothing is loaded before one is made."""
    if importlib.util.find_spec("gymnasium") is None:  # a machine that only runs models
        return
    import gymnasium

    for name, (single, vector) in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name, entry_point=f"rltok_rl.envs.{single}", vector_entry_point=f"rltok_rl.envs.{vector}"
            )

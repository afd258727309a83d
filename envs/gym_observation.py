"""Observation space and episode counts that the single and the vector environment share."""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv
from tensordict import TensorDictBase

_LARGE = 1e6  # encoder states have no proven bound, and gymnasium's checker warns of infinite ones


def observation_space(env: ByteBoundaryEnv) -> spaces.Dict:
    """Return the space of one row's observation."""
    config = env.model.config
    space: dict[str, spaces.Space] = {
        "byte": spaces.Discrete(config.num_ids),
        "recent": spaces.MultiBinary(config.num_lags),
        "position": spaces.Box(0, env.num_steps, (1,), np.int64),
        "encoder_state": spaces.Box(-_LARGE, _LARGE, (config.width,), np.float32),
    }
    if config.rate_embedding:
        space["target_rate"] = spaces.Box(0.0, 1.0, (1,), np.float32)
    if env.observe_entropy:
        space["early_entropy"] = spaces.Box(0.0, math.log(256) + 1e-3, (1,), np.float32)
    return spaces.Dict(space)


class EpisodeCounts:
    """Tokens drawn and bits of the bytes so far, per row."""

    def __init__(self, num_rows: int) -> None:
        self.num_tokens = np.zeros(num_rows, dtype=np.int64)
        self.bits = np.zeros(num_rows)
        self.early_bits = np.zeros(num_rows)

    def restart(self, rows: np.ndarray) -> None:
        """Reset the counts of rows [n] bool."""
        for counts in (self.num_tokens, self.bits, self.early_bits):
            counts[rows] = 0

    def step(self, boundaries: np.ndarray, after: TensorDictBase) -> None:
        """Count boundaries [n] bool, and the cost of the bytes that they revealed."""
        self.num_tokens += boundaries
        for total, key in ((self.bits, "final_log_prob"), (self.early_bits, "early_log_prob")):
            total -= after.get(key).reshape(-1).double().numpy(force=True) / math.log(2)

"""What the single and the batched gymnasium environment share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv
from rltok_rl.envs.gym_given import refuse_names
from tensordict import TensorDictBase

# States have no bound that a proof would give, but normalised layers add to them one unit each. Gymnasium's checker
# warns of infinite limits, and these are not meant to be met.
_LARGE = 1e6


def observation_space(env: ByteBoundaryEnv) -> spaces.Dict:
    """The space of one row's observation."""
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


class Told:
    """What an episode has told so far: tokens drawn and bits paid, per row."""

    def __init__(self, num_rows: int) -> None:
        self.num_tokens = np.zeros(num_rows, dtype=np.int64)
        self.bits = np.zeros(num_rows)
        self.early_bits = np.zeros(num_rows)

    def restart(self, rows: np.ndarray) -> None:
        """Rows [n] bool begin a new text."""
        for counts in (self.num_tokens, self.bits, self.early_bits):
            counts[rows] = 0

    def step(self, boundaries: np.ndarray, after: TensorDictBase) -> None:
        """Count the boundaries drawn, [n] bool, and what the bytes revealed cost."""
        self.num_tokens += boundaries
        for total, key in ((self.bits, "final_log_prob"), (self.early_bits, "early_log_prob")):
            total -= after.get(key).reshape(-1).double().numpy(force=True) / math.log(2)


def known_options(options: dict[str, Any] | None, *names: str) -> dict[str, Any]:
    """Reset options, none of which may be a slip of the pen."""
    unknown = sorted(set(options or {}) - set(names))
    if unknown:
        raise ValueError(f"options may hold {list(names)}, got {unknown}")
    given = dict(options or {})
    refuse_names(given.get("text"))
    return given

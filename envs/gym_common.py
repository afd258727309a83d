"""What the single and the batched gymnasium environment share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv
from tensordict import TensorDictBase

from rltok_rl.data import WindowSource, local_prose
from rltok_rl.data.source import Documents
from rltok_rl.models import UNet, preset

# States have no bound that a proof would give, but normalised layers add to them one unit each. Gymnasium's checker
# asks for finite limits, and these are not meant to be met.
_LARGE = 1e6


def build_env(
    model: str | UNet,
    text: Documents | WindowSource | None,
    batch_size: tuple[int, ...],
    *,
    overrides: Mapping[str, Any] | None = None,
    **options: Any,
) -> ByteBoundaryEnv:
    """A TorchRL environment from what a gymnasium user gives.

    Args:
        model: a preset's name (with weights that are always the same), or a U-Net.
        text: documents to draw windows from, or a source of them; None is prose that every Python brings along.
        batch_size: ``()`` or ``(n,)``.
        overrides: fields of the preset to replace.
        **options: passed on to :class:`~rltok_rl.envs.ByteBoundaryEnv`.
    """
    if isinstance(model, str):
        with torch.random.fork_rng(devices=[]):  # two environments of one name are one environment
            torch.manual_seed(0)
            model = UNet(preset(model, **(overrides or {}))).eval()
    elif overrides:
        raise ValueError(f"overrides are for a model given by name, got {dict(overrides)} and a U-Net")
    return ByteBoundaryEnv(model, local_prose() if text is None else text, batch_size=batch_size, **options)


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
    return dict(options or {})

"""The environment for gymnasium, many texts in one batched step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rltok_rl.envs.gym_common import Told, build_env, known_options, observation_space
from tensordict import TensorDict, TensorDictBase

from rltok_rl.data import WindowSource
from rltok_rl.data.source import Documents
from rltok_rl.functional.numbers import check_count
from rltok_rl.models import UNet


class ByteBoundaryVectorEnv(VectorEnv):
    """Many texts in one batched step of :class:`~rltok_rl.envs.ByteBoundaryEnv`; see :class:`ByteBoundaryGym`.

    Args:
        num_envs: texts that are read at the same time.
        model: as for :class:`ByteBoundaryGym`.
        text: as for :class:`ByteBoundaryGym`.
        num_steps: as for :class:`ByteBoundaryGym`.
        autoreset_mode: ``DISABLED`` (ended texts are reset with ``options={"reset_mask": ...}``: the mode to prefer, no
            transition is ever made of two texts) or ``SAME_STEP`` (they are reset at once; their last observation is
            ``info["final_obs"]``).
        **options: as for :class:`ByteBoundaryGym`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}

    def __init__(
        self,
        num_envs: int = 1,
        model: str | UNet = "tiny",
        text: Documents | WindowSource | None = None,
        num_steps: int = 256,
        autoreset_mode: AutoresetMode | str = AutoresetMode.DISABLED,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        num_envs = check_count("num_envs", num_envs)
        if render_mode is not None:
            raise ValueError(
                f"render_mode must be None for many texts at once, got {render_mode!r}; render a single one"
            )
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        if self.autoreset_mode == AutoresetMode.NEXT_STEP:
            raise ValueError("autoreset_mode must be Disabled or SameStep, got NextStep")
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.num_envs, self.render_mode = num_envs, render_mode
        self.env = build_env(model, text, (num_envs,), num_steps=num_steps, **options)
        self.single_observation_space = observation_space(self.env)
        self._names = list(self.single_observation_space.spaces)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._told = Told(num_envs)
        self._first = np.ones(num_envs, dtype=bool)
        self._latest: TensorDictBase = TensorDict(batch_size=(num_envs,), device=self.env.device)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start all texts, or those of ``options={"reset_mask": bool[n]}``."""
        if isinstance(seed, list):
            raise TypeError("seed must be one integer: all texts come from one source of random numbers")
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        given = known_options(options, "text", "reset_mask")
        mask = given.pop("reset_mask", None)
        rows = np.ones(self.num_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if rows.shape != (self.num_envs,):
            raise ValueError(f"reset_mask must have shape [{self.num_envs}], got {list(rows.shape)}")
        seen = self._restart(rows, **given)
        return self._observation(seen), self._info(seen)

    def step(self, actions):
        """Decide about the current byte of every text."""
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or not np.isin(actions, (0, 1)).all():
            raise ValueError(f"actions must be 0 or 1, of shape [{self.num_envs}], got {actions!r}")
        chosen = torch.as_tensor(actions.astype(np.int64), device=self.env.device)
        given = TensorDict({"action": chosen}, (self.num_envs,), device=self.env.device)
        after = self.env.step(given)["next"]
        self._latest = after.exclude("reward")
        self._told.step((actions == 1) | self._first, after)
        self._first[:] = False
        reward = after["reward"].reshape(-1).double().numpy(force=True)
        terminated, truncated = (after[name].reshape(-1).numpy(force=True) for name in ("terminated", "truncated"))
        over = terminated | truncated
        observation, info = self._observation(after), self._info(after)
        if self.autoreset_mode == AutoresetMode.SAME_STEP and over.any():
            final = {
                "final_obs": _by_row(observation, over),
                "final_info": info,
                "_final_obs": over,
                "_final_info": over,
            }
            seen = self._restart(over)
            observation, info = self._observation(seen), {**self._info(seen), **final}
        return observation, reward, terminated, truncated, info

    def _restart(self, rows: np.ndarray, **options: Any) -> TensorDictBase:
        self._told.restart(rows)
        self._first[rows] = True
        # TorchRL takes the rows that go on from the tensordict it is given, so that it must have been given one.
        mask = torch.as_tensor(rows, device=self.env.device)[:, None]
        self._latest = self.env.reset(self._latest.set("_reset", mask), **options)
        return self._latest

    def _observation(self, seen: TensorDictBase) -> dict[str, np.ndarray]:
        return {name: seen.get(name).numpy(force=True) for name in self._names}

    def _info(self, seen: TensorDictBase) -> dict[str, Any]:
        told = self._told
        counts = {"num_tokens": told.num_tokens, "bits": told.bits, "early_bits": told.early_bits}
        return {"byte": seen["byte"].numpy(force=True)} | {name: values.copy() for name, values in counts.items()}


def _by_row(observation: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """An object array with the observation of each of ``rows``, as gymnasium hands out final observations."""
    out = np.empty(len(rows), dtype=object)
    for row in rows.nonzero()[0]:
        out[row] = {name: values[row] for name, values in observation.items()}
    return out

"""The environment for gymnasium, many texts in one batched step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rltok_rl.envs.gym_env import EpisodeCounts, observation_space
from rltok_rl.envs.gym_options import (
    Model,
    Texts,
    build_env,
    check_actions,
    check_autoreset_mode,
    check_options,
    check_reset_options,
    last_seen,
)
from torch import Tensor

from rltok_rl.utils import check_count


class ByteBoundaryVectorEnv(VectorEnv):
    """Many texts in one batched step of :class:`~rltok_rl.envs.ByteBoundaryEnv`; see :class:`ByteBoundaryGym`.

    Args:
        num_envs: texts that are read at the same time.
        autoreset_mode: when texts that ended restart. ``NEXT_STEP``, gymnasium's default: in the next call of ``step``,
            which ignores their actions and pays 0; these transitions connect two texts and should not be learned from.
            ``SAME_STEP``: at once; their last observation is ``info["final_obs"]``. ``DISABLED``: by
            ``reset(options={"reset_mask": ...})``, which :class:`torchrl.envs.GymWrapper` prefers.
        **options: these and the others as for :class:`ByteBoundaryGym`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        model: Model = "tiny",
        text: Texts = None,
        num_steps: int = 256,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        check_options(self, options)
        if render_mode is not None:
            raise ValueError(f"render_mode must be None for many texts, got {render_mode!r}; render a single one")
        self.autoreset_mode = check_autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.num_envs, self.render_mode = check_count("num_envs", num_envs), render_mode
        self.env = build_env(model, text, (num_envs,), num_steps=num_steps, **options)
        self.single_observation_space = observation_space(self.env)
        self._names = list(self.single_observation_space)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._counts = EpisodeCounts(self.env)
        self._first, self._over = np.ones(num_envs, dtype=bool), np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start all texts, or those of ``options={"reset_mask": bool[n]}``."""
        if seed is not None and not isinstance(seed, (int, np.integer)):
            raise TypeError(
                f"seed must be one integer, got {seed!r}: all texts come from one source of random numbers "
                f"(make_vec with vectorization_mode='sync' has one per text, and takes many times as long)"
            )
        super().reset(seed=None if seed is None else int(seed))
        if seed is not None:
            self.env.set_seed(int(seed))
        options = check_reset_options(options, "text", "reset_mask")
        mask = options.pop("reset_mask", None)
        rows = np.ones(self.num_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if rows.shape != (self.num_envs,):
            raise ValueError(f"reset_mask must have shape [{self.num_envs}], got {list(rows.shape)}")
        seen = self._restart(rows, **options)
        return self._observation(seen), self._info(seen)

    def step(self, actions):
        """Decide about the current byte of every text."""
        actions = check_actions(actions, self.num_envs)
        if self.autoreset_mode == AutoresetMode.DISABLED and self._over.any():
            raise RuntimeError(
                f"step was called after the end of the episode in rows {self._over.nonzero()[0].tolist()}; call "
                f"reset(options={{'reset_mask': terminated | truncated}}) first, or make the environment with "
                f"autoreset_mode='SameStep' or 'NextStep'"
            )
        waiting = self._over.copy()  # rows that restart in this step
        if waiting.all():
            after, reward = self._restart(waiting), np.zeros(self.num_envs)
            over = np.zeros(self.num_envs, dtype=bool)
            return self._observation(after), reward, over, over.copy(), self._info(after)
        if waiting.any():
            with self.env.kept_random_state():  # of rates, which the next texts draw
                self._restart(waiting, text="  ")  # all rows step together: a placeholder for this step
        after, reward, terminated, truncated = self._decide(actions)
        if waiting.any():
            after = self._restart(waiting)
            reward[waiting], terminated[waiting], truncated[waiting] = 0.0, False, False
        over = terminated | truncated
        self._over = over.copy()  # a later reset writes into it
        observation, info = self._observation(after), self._info(after)
        if self.autoreset_mode == AutoresetMode.SAME_STEP and over.any():
            final = last_seen(over, observation, info)
            after = self._restart(over)
            observation, info = self._observation(after), {**self._info(after), **final}
        return observation, reward, terminated, truncated, info

    def _decide(self, actions: np.ndarray) -> tuple[dict[str, Tensor], np.ndarray, np.ndarray, np.ndarray]:
        """Step all rows; returns the next observation, and rewards, terminated and truncated, [n] each."""
        after = self.env.apply_actions(torch.as_tensor(actions.astype(np.int64), device=self.env.device))
        self._counts.step((actions == 1) | self._first, after)
        self._first[:] = False
        reward = after["reward"].reshape(-1).double().numpy(force=True)
        terminated, truncated = (after[name].reshape(-1).numpy(force=True) for name in ("terminated", "truncated"))
        return after, reward, terminated, truncated

    def _restart(self, rows: np.ndarray, **options: Any) -> dict[str, Tensor]:
        seen = self.env.begin_texts(torch.as_tensor(rows, device=self.env.device), **options)
        self._counts.restart(rows)
        self._first[rows], self._over[rows] = True, False
        return seen

    def _observation(self, seen: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return {name: seen[name].numpy(force=True) for name in self._names}

    def _info(self, seen: dict[str, Tensor]) -> dict[str, Any]:
        counts = {name: values.copy() for name, values in vars(self._counts).items()}
        return {"byte": seen["byte"].numpy(force=True), **counts}

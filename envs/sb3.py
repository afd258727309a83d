"""The batched environment as a Stable-Baselines3 ``VecEnv``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from rltok_rl.envs.gym_options import check_reset_options
from rltok_rl.envs.gym_tasks import TaskVectorEnv
from rltok_rl.envs.gym_vector import ByteBoundaryVectorEnv
from rltok_rl.envs.registration import BYTE_BOUNDARY, ENVIRONMENTS, TASK_ENVIRONMENTS
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv


class SB3VecEnv(VecEnv):
    """A Stable-Baselines3 ``VecEnv`` over one batched environment.

    Args:
        num_envs: texts that are read at the same time.
        env_id: an id of this library, such as ``"rltok_rl/ByteBoundary-v1"``, ``"rltok_rl/Recall-v1"``, or
            ``"rltok_rl/Delay-1-v1"``, a task of the suite.
        **options: those of the environment, such as of :class:`~rltok_rl.envs.ByteBoundaryVectorEnv`,
            :class:`~rltok_rl.envs.RecallVectorEnv` or :class:`~rltok_rl.envs.TaskVectorEnv`, without
            ``autoreset_mode``.
    """

    def __init__(self, num_envs: int, env_id: str = BYTE_BOUNDARY, **options: Any) -> None:
        if isinstance(num_envs, str):
            raise TypeError(f"num_envs must be an integer, got {num_envs!r}; an id is given as env_id={num_envs!r}")
        if env_id not in ENVIRONMENTS | TASK_ENVIRONMENTS:
            tasks = f"or a task of the suite, such as {next(iter(TASK_ENVIRONMENTS))!r}"
            raise ValueError(f"env_id must be one of {[*ENVIRONMENTS]}, {tasks}; got {env_id!r}")
        if "autoreset_mode" in options:
            raise ValueError(f"autoreset_mode is SameStep for Stable-Baselines3, got {options['autoreset_mode']!r}")
        spec = gymnasium.spec(env_id)  # make_vec warns of version 0 by name, the default here
        vector = gymnasium.make_vec(spec, num_envs=num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)
        self.vector = cast("ByteBoundaryVectorEnv | TaskVectorEnv", vector.unwrapped)
        self.render_mode = None
        super().__init__(num_envs, self.vector.single_observation_space, self.vector.single_action_space)
        self._actions: np.ndarray | None = None
        self._start = time.time()
        self._returns, self._steps = np.zeros(num_envs), np.zeros(num_envs, dtype=np.int64)

    def reset(self) -> dict[str, np.ndarray]:
        """Start all texts; honours ``seed(...)`` and ``set_options({"text": ...})``."""
        seeds = [seed for seed in self._seeds if seed is not None]
        observation, _ = self.vector.reset(seed=seeds[0] if seeds else None, options=self._joint_options())
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._steps[:] = 0, 0
        return observation

    def _joint_options(self) -> dict[str, Any] | None:
        """The options of all texts in one dict."""
        texts = [check_reset_options(options, "text").get("text") for options in self._options]
        if None in texts and any(text is not None for text in texts):
            raise ValueError(f"options must give a text to every row or to none, got none in row {texts.index(None)}")
        return None if None in texts else {"text": texts}

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for :meth:`step_wait`."""
        self._actions = actions

    def step_wait(self):
        """Step; texts that ended restart, with their last observation and ``episode`` in their info.

        ``episode`` is that of Stable-Baselines3's ``VecMonitor``: return ``r``, steps ``l``, and seconds ``t``.
        """
        observation, reward, terminated, truncated, info = self.vector.step(self._actions)
        over = terminated | truncated
        self._returns += reward
        self._steps += 1
        infos: list[dict[str, Any]] = []
        for row in range(self.num_envs):
            source = info["final_info"] if over[row] else info
            infos.append({name: rows[row] for name, rows in source.items() if not name.startswith(("_", "final_"))})
            infos[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            if over[row]:
                infos[row]["terminal_observation"] = info["final_obs"][row]
                result = {"r": float(self._returns[row]), "l": int(self._steps[row])}
                infos[row]["episode"] = {**result, "t": round(time.time() - self._start, 6)}
        self._returns[over], self._steps[over] = 0, 0
        return observation, reward.astype(np.float32), over, infos

    def close(self) -> None:
        """Do nothing; nothing is open."""

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """Return an attribute of the batched environment, once per text."""
        return [getattr(self.vector, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Set an attribute of the batched environment."""
        setattr(self.vector, attr_name, value)

    def env_method(
        self, method_name: str, *args: Any, indices: int | Iterable[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of the batched environment once."""
        return [getattr(self.vector, method_name)(*args, **kwargs)] * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        """Return True for Stable-Baselines3's ``Monitor``, whose ``episode`` is in infos, else False."""
        monitored = isinstance(wrapper_class, type) and issubclass(wrapper_class, Monitor)
        return [monitored] * len(list(self._get_indices(indices)))

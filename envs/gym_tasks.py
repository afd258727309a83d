"""Gymnasium environments of the boundary suite's frozen track: a perfect reader, exact rewards, known optima."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rltok_rl.envs.gym_options import check_actions, check_autoreset_mode, check_reset_options, last_seen

from rltok_rl.data.languages.reader import PerfectReader
from rltok_rl.data.languages.suite_tasks import TASKS
from rltok_rl.ranges import check_number
from rltok_rl.utils import check_count

LAGS = 16
"""Earlier boundaries in an observation."""


class _World:
    """Texts of a task that are read together, all from their first byte to their last."""

    def __init__(
        self, num_rows: int, task: str, grade: int, num_steps: int | None, price: float, options: dict[str, Any]
    ) -> None:
        if task not in TASKS:
            raise ValueError(f"task must be one of {[*TASKS]}, got {task!r}")
        check_number("price", price, "[0, inf)")
        self.language = TASKS[task].make(TASKS[task].dial(grade), **options)
        self.num_rows = check_count("num_envs", num_rows)
        self.price = float(price)  # times an action in 8 bits, a large integer would overflow
        self.num_steps = check_count("num_steps", TASKS[task].num_steps[grade - 1] if num_steps is None else num_steps)
        self.position = -1
        """Bytes before the current one; -1 before the first text."""
        self.observation_space = spaces.Dict(
            {
                "bytes": spaces.MultiDiscrete([256] * self.language.window),
                "recent": spaces.MultiBinary(LAGS),
                "position": spaces.Box(0, self.num_steps, (1,), np.int64),
            }
        )

    def begin(self, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Draw new texts and read their first bytes."""
        language = self.language
        self.byte_ids = language.draw_ids(self.num_rows, self.num_steps + 1, torch.Generator().manual_seed(seed))
        self._symbols = language._symbols(self.byte_ids)
        self._states, _ = language._follow(self._symbols)
        self._reader, self._floor = (PerfectReader(language, self.num_rows) for _ in range(2))
        self._boundaries = np.zeros((self.num_rows, LAGS + self.num_steps), np.int8)
        self.position = -1
        self._read()
        return self.observe()

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Draw boundaries [n] or not, read the next bytes, and return the rewards [n]."""
        if not 0 <= self.position < self.num_steps:
            when = "before reset" if self.position < 0 else "after the end of the episode"
            raise RuntimeError(f"step was called {when}; call reset() first")
        self._boundaries[:, LAGS + self.position] = actions
        self._reader.keep(torch.from_numpy(actions == 1))
        return self._read() - self.price * actions

    def _read(self) -> np.ndarray:
        self.position += 1
        read = self._symbols[:, self.position], self._states[:, self.position + 1]
        gained: np.ndarray = (self._reader.read(*read) - self._floor.read(*read)).numpy()
        return gained

    def observe(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return observations and information, [n, ...] each."""
        t, window = self.position, self.language.window
        last = np.zeros((self.num_rows, window), np.int64)
        seen = self.byte_ids[:, max(0, t + 1 - window) : t + 1].flip(1).numpy()
        last[:, : seen.shape[1]] = seen
        observation = {
            "bytes": last,
            "recent": self._boundaries[:, t : t + LAGS][:, ::-1].copy(),
            "position": np.full((self.num_rows, 1), t),
        }
        drawn = self._boundaries.sum(1, dtype=np.int64)
        return observation, {"byte": last[:, 0].copy(), "num_tokens": drawn}


class TaskGym(gymnasium.Env):
    """Draw the boundaries that a perfect reader of tokens needs, in a task of the boundary suite.

    A :class:`~rltok_rl.data.languages.reader.PerfectReader` takes the place of a trained model: it sees the last 4
    bytes, keeps those at boundaries, and predicts by Bayes' rule. The reward of a boundary decision is the
    log-likelihood, in nats, that the next byte gains over the same reader without any boundary, minus ``price`` for a
    boundary. Rewards have no noise but the text's, never drawing earns exactly 0, and the optimum is computed by
    dynamic programming.

    The action space is ``Discrete(2)``: 1 draws a boundary after the current byte. No boundary is forced. Observations
    are a ``Dict``, whose ``bytes`` and ``recent`` begin with the newest and are 0 before the text:

    | key | space | meaning |
    |---|---|---|
    | ``bytes`` | ``MultiDiscrete([256] * 4)`` | the last bytes |
    | ``recent`` | ``MultiBinary(16)`` | the last boundaries |
    | ``position`` | ``Box(0, num_steps, (1,), int64)`` | bytes since the text began |

    The information has ``byte`` and ``num_tokens``. Episodes are truncated after ``num_steps`` decisions.
    ``env.unwrapped.language.optimal_boundaries(byte_ids)`` are the task's best boundaries.

    Ids are ``rltok_rl/TASK-GRADE-v1``, such as ``rltok_rl/GardenPath-2-v1``. One is solved at nine tenths of the return
    of the task's best boundaries (``reward_threshold``), as a mean over 100 episodes. Exact returns of grades 1 to 4;
    random boundaries have the task's rate:

    | task | price | optimum | random | always |
    |---|---|---|---|---|
    | recall-tight | 0.25, 0.5, 1, 1.5 | 18.8, 16.2, 11, 5.8 | 5.8, 0.9, -5.4, -9.7 | -11, -43, -107, -171 |
    | delay | 0.25 | 18.8, 6, 6.8, 7 | 3.6, -0.1, -0.7, -0.9 | -11, -25, -120, -504 |
    | noise | 0.25 | 18.8 | 3.6 | -11 |
    | decoy | 0.25 | 13.1, 10, 6.8, 4.1 | 1.4, 0.5, -0.1, -0.3 | -17, -20, -24, -27 |
    | knapsack | 2.1 | 6.9, 4.6, 3.9, 3.7 | -7.8, -7.8, -7.8, -7.9 | -247, -247, -247, -248 |
    | pair | 0.1 | 2.6, 4.8, 6.4, 10.1 | -0.8, -0.6, -0.4, 0 | -9, -7, -5, -2 |
    | clock | 0.25 | 26, 21.5, 15.8, 10.2 | 12, 8.1, 3.9, 1 | 0, -6, -13, -20 |
    | garden-path | 0.1 | 6.1, 10, 12.2, 13.6 | 1, 2, 2.5, 2.8 | -6, -2, 0, 2 |
    | switch | 0.25 | 18.8, 18.8, 13.1, 13.1 | 3.6, 3.6, 1.4, 1.4 | -11, -11, -17, -17 |
    | nest | 0.25 | 25, 22, 41.7, 80.9 | 6.5, 5, 8.9, 16.7 | -5, -8, -17, -37 |

    The optimum is at most 1.4 above the best boundaries, which also keep values that the text ends too early to ask
    for. ``python -m tests.tools.task_worlds``, in a checkout, computes the table.

    Args:
        task: a key of :data:`~rltok_rl.data.languages.TASKS`.
        grade: 1 to 4.
        num_steps: decisions per episode; default: the task's.
        price: nats per boundary. In ``knapsack`` half of the values are worth it, and in ``recall-tight`` the grade is
            the price.
        render_mode: None; nothing is drawn.
        **options: of the task's language: ``window``, bytes that the reader sees; ``before=True``, the first language
            of ``switch``, in which an agent can be trained before it meets the second.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/Delay-2-v1")
    ```
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        task: str,
        grade: int = 1,
        num_steps: int | None = None,
        price: float = 0.25,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        _check_render_mode(render_mode)
        self.render_mode = None
        self.world = _World(1, task, grade, num_steps, price, options)
        self.language = self.world.language
        self.observation_space, self.action_space = self.world.observation_space, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start a text."""
        super().reset(seed=seed)
        check_reset_options(options)
        return _first(self.world.begin(_draw_seed(self.np_random)))

    def step(self, action):
        """Decide about the current byte."""
        reward = self.world.step(check_actions([action], 1).astype(np.int8))
        observation, info = _first(self.world.observe())
        return observation, float(reward[0]), False, self.world.position == self.world.num_steps, info


class TaskVectorEnv(VectorEnv):
    """Many texts in one batched step of :class:`TaskGym`.

    All texts are equally long and end together.

    Args:
        num_envs: texts that are read at the same time.
        autoreset_mode: when they restart, as in :class:`~rltok_rl.envs.ByteBoundaryVectorEnv`. ``NEXT_STEP``,
            gymnasium's default: in the next call of ``step``, which ignores its actions and pays 0. ``SAME_STEP``: at
            once. ``DISABLED``: by ``reset``, whose ``options={"reset_mask": ...}`` must name all texts.
        **options: these and the others as for :class:`TaskGym`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        task: str = "delay",
        grade: int = 1,
        num_steps: int | None = None,
        price: float = 0.25,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        _check_render_mode(render_mode)
        self.autoreset_mode = check_autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode, self.num_envs = None, num_envs
        self.world = _World(num_envs, task, grade, num_steps, price, options)
        self.language = self.world.language
        self.single_observation_space, self.single_action_space = self.world.observation_space, spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start all texts."""
        super().reset(seed=seed)
        mask = check_reset_options(options, "reset_mask").get("reset_mask", True)
        if not np.all(mask):
            raise ValueError(f"reset_mask must be true for all texts, which end together, got {mask!r}")
        return self.world.begin(_draw_seed(self.np_random))

    def step(self, actions):
        """Decide about the current byte of every text."""
        actions = check_actions(actions, self.num_envs).astype(np.int8)
        none = np.zeros(self.num_envs, dtype=bool)
        if self._is_over and self.autoreset_mode == AutoresetMode.NEXT_STEP:
            observation, info = self.reset()
            return observation, np.zeros(self.num_envs), none, none.copy(), info
        reward = self.world.step(actions)
        over = np.full(self.num_envs, self._is_over)
        observation, info = self.world.observe()
        if self._is_over and self.autoreset_mode == AutoresetMode.SAME_STEP:
            final = last_seen(over, observation, info)
            observation, info = self.reset()
            info |= final
        return observation, reward, none, over, info

    @property
    def _is_over(self) -> bool:
        return self.world.position == self.world.num_steps


def _draw_seed(generator: np.random.Generator) -> int:
    return int(generator.integers(2**31))


def _first(seen: tuple[dict[str, np.ndarray], dict[str, Any]]) -> tuple[dict, dict]:
    observation, info = seen
    return {name: rows[0] for name, rows in observation.items()}, {name: int(rows[0]) for name, rows in info.items()}


def _check_render_mode(render_mode: str | None) -> None:
    if render_mode is not None:
        raise ValueError(f"render_mode must be None, got {render_mode!r}")

"""The environment for gymnasium: one text, or many in one batched step."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv
from tensordict import TensorDict, TensorDictBase

from rltok_rl.data import TextSource, local_prose
from rltok_rl.data.source import Documents
from rltok_rl.models import UNet, preset
from rltok_rl.viz.picture import boundary_picture
from rltok_rl.viz.terminal import boundary_text

# States have no bound that a proof would give, but normalised layers add to them one unit each. Gymnasium's checker
# asks for finite limits, and these are not meant to be met.
_LARGE = 1e6


def build_env(
    model: str | UNet, text: Documents | TextSource | None, batch_size: tuple[int, ...], **options: Any
) -> ByteBoundaryEnv:
    """A TorchRL environment from what a gymnasium user gives.

    Args:
        model: a preset's name (with weights that are always the same), or a U-Net.
        text: documents to draw windows from, or a source of them; None is prose that every Python brings along.
        batch_size: ``()`` or ``(n,)``.
        **options: passed on to :class:`~rltok_rl.envs.ByteBoundaryEnv`.
    """
    if isinstance(model, str):
        with torch.random.fork_rng(devices=[]):  # two environments of one name are one environment
            torch.manual_seed(0)
            model = UNet(preset(model)).eval()
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
    if env.observe_entropy:
        space["early_entropy"] = spaces.Box(0.0, math.log(256) + 1e-3, (1,), np.float32)
    return spaces.Dict(space)


class _Told:
    """What an episode has told so far: tokens drawn and bits paid, per row."""

    def __init__(self, num_rows: int) -> None:
        self.num_tokens = np.zeros(num_rows, dtype=np.int64)
        self.bits = np.zeros(num_rows)
        self.early_bits = np.zeros(num_rows)

    def restart(self, rows: np.ndarray) -> None:
        for counts in (self.num_tokens, self.bits, self.early_bits):
            counts[rows] = 0

    def step(self, boundaries: np.ndarray, after: TensorDictBase) -> None:
        self.num_tokens += boundaries
        for total, key in ((self.bits, "final_log_prob"), (self.early_bits, "early_log_prob")):
            total -= after.get(key).reshape(-1).double().numpy(force=True) / math.log(2)


class ByteBoundaryGym(gymnasium.Env):
    """Decide after each byte of a text whether a token ends.

    ### Description
    :class:`~rltok_rl.envs.ByteBoundaryEnv` with one text, for gymnasium. The agent draws token boundaries; a byte-level
    U-Net predicts the next byte with them; the agent is paid for how well it does.

    ### Action Space
    ``Discrete(2)``: 1 draws a boundary after the current byte. At the first byte one is drawn whatever the action.

    ### Observation Space
    A ``Dict``:

    | key | space | meaning |
    |---|---|---|
    | ``byte`` | ``Discrete(256)`` | the current byte |
    | ``recent`` | ``MultiBinary(w)`` | the last w boundaries, newest first |
    | ``position`` | ``Box(0, num_steps, (1,), int64)`` | bytes since the text began |
    | ``encoder_state`` | ``Box(-1e6, 1e6, (D,), float32)`` | what the encoder makes of the bytes |
    | ``early_entropy`` | ``Box(0, ln 256, (1,), float32)`` | nats about the next byte; on request |

    ### Rewards
    By default how much better the next byte was predicted than by the early exit, in nats; see ``reward`` and ``price``
    of :class:`~rltok_rl.envs.ByteBoundaryEnv`.

    ### Starting State
    The first byte of a window at a random place of the documents, or of ``options={"text": ...}``.

    ### Episode End
    Terminated at the end of a document, truncated after ``num_steps`` decisions.

    ### Information
    ``byte``, ``num_tokens`` so far, ``bits`` that the bytes so far cost under the whole model, ``early_bits`` under the
    early exit.

    ### Arguments
    Args:
        model: a preset's name (``"tiny"``, ``"small"``, ...), or a U-Net.
        text: documents; None is prose that every Python brings along.
        num_steps: decisions per episode.
        render_mode: ``"ansi"`` for text with a ``|`` at each boundary, ``"rgb_array"`` for a picture of it.
        **options: ``reward``, ``price``, ``observe_entropy``.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/ByteBoundary-v0", num_steps=128)
    ```

    ### Version History
    v0: first version.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(
        self,
        model: str | UNet = "tiny",
        text: Documents | TextSource | None = None,
        num_steps: int = 256,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']} or None, got {render_mode!r}")
        self.env = build_env(model, text, (), num_steps=num_steps, **options)
        self.render_mode = render_mode
        self.observation_space = observation_space(self.env)
        self._names = list(self.observation_space.spaces)
        self.action_space = spaces.Discrete(2)
        self._told = _Told(1)
        self._text, self._boundaries = bytearray(), []  # type: bytearray, list[bool]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start a text; ``options={"text": ...}`` says which."""
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        seen = self.env.reset(**_known(options, "text"))
        self._told.restart(np.array([True]))
        self._text, self._boundaries = bytearray([int(seen["byte"])]), []
        return self._observation(seen), self._info(seen)

    def step(self, action):
        """Decide about the current byte."""
        if not self.action_space.contains(np.int64(action) if isinstance(action, int) else action):
            raise ValueError(f"action must be 0 (no boundary) or 1 (boundary), got {action!r}")
        given = TensorDict({"action": torch.tensor(int(action), device=self.env.device)}, (), device=self.env.device)
        after = self.env.step(given)["next"]
        drawn = bool(action) or not self._boundaries
        self._boundaries.append(drawn)
        self._told.step(np.array([drawn]), after)
        self._text.append(int(after["byte"]))
        flags = (bool(after["terminated"]), bool(after["truncated"]))
        return self._observation(after), float(after["reward"]), *flags, self._info(after)

    def render(self):
        """The text so far, with its boundaries."""
        if self.render_mode is None:
            gymnasium.logger.warn("render was called without a render_mode; pass one to gymnasium.make")
            return None
        boundaries = [*self._boundaries, False]  # the current byte is not decided yet
        if self.render_mode == "ansi":
            return boundary_text(bytes(self._text), boundaries, colour=False)
        return boundary_picture(bytes(self._text), boundaries)

    def _observation(self, seen: TensorDictBase) -> dict[str, Any]:
        arrays = {name: seen.get(name).numpy(force=True) for name in self._names}
        return {**arrays, "byte": np.int64(arrays["byte"])}

    def _info(self, seen: TensorDictBase) -> dict[str, Any]:
        told = self._told
        return {
            "byte": int(seen["byte"]),
            "num_tokens": int(told.num_tokens[0]),
            "bits": float(told.bits[0]),
            "early_bits": float(told.early_bits[0]),
        }


class ByteBoundaryVectorEnv(VectorEnv):
    """Many texts in one batched step of :class:`~rltok_rl.envs.ByteBoundaryEnv`; see :class:`ByteBoundaryGym`.

    Args:
        num_envs: texts that are read at the same time.
        model: as for :class:`ByteBoundaryGym`.
        text: as for :class:`ByteBoundaryGym`.
        num_steps: as for :class:`ByteBoundaryGym`.
        autoreset_mode: ``DISABLED`` (ended texts are reset with ``options={"reset_mask": ...}``) or ``SAME_STEP`` (they
            are reset at once; their last observation is ``info["final_obs"]``).
        **options: as for :class:`ByteBoundaryGym`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4, "autoreset_mode": AutoresetMode.DISABLED}

    def __init__(
        self,
        num_envs: int = 1,
        model: str | UNet = "tiny",
        text: Documents | TextSource | None = None,
        num_steps: int = 256,
        autoreset_mode: AutoresetMode | str = AutoresetMode.DISABLED,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
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
        self._told = _Told(num_envs)
        self._first = np.ones(num_envs, dtype=bool)
        self._latest: TensorDictBase = TensorDict(batch_size=(num_envs,), device=self.env.device)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start all texts, or those of ``options={"reset_mask": bool[n]}``."""
        if isinstance(seed, list):
            raise TypeError("seed must be one integer: all texts come from one source of random numbers")
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        given = _known(options, "text", "reset_mask")
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


def _known(options: dict[str, Any] | None, *names: str) -> dict[str, Any]:
    """Reset options, none of which may be a slip of the pen."""
    unknown = sorted(set(options or {}) - set(names))
    if unknown:
        raise ValueError(f"options may hold {list(names)}, got {unknown}")
    return dict(options or {})


def _by_row(observation: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """An object array with the observation of each of ``rows``, as gymnasium hands out final observations."""
    out = np.empty(len(rows), dtype=object)
    for row in rows.nonzero()[0]:
        out[row] = {name: values[row] for name, values in observation.items()}
    return out

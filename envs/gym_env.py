"""The environment for gymnasium, one text at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv
from rltok_rl.envs.gym_options import Model, Texts, build_env, check_options, check_reset_options
from tensordict import TensorDict, TensorDictBase

from rltok_rl.viz.frames import boundary_picture
from rltok_rl.viz.terminal import boundary_text

_LARGE = 1e6  # encoder states have no proven bound, and gymnasium's checker warns of infinite ones


class ByteBoundaryGym(gymnasium.Env):
    """Decide after each byte of a text whether a token ends.

    :class:`~rltok_rl.envs.ByteBoundaryEnv` with one text, for gymnasium: rewards, starting states and episode ends are
    the same. The action space is ``Discrete(2)``: 1 draws a boundary after the current byte; the first byte always has
    one. Observations are a ``Dict``:

    | key | space | meaning |
    |---|---|---|
    | ``byte`` | ``Discrete(256)`` | the current byte; of models with special ids, ``Discrete(256 + num_special)`` |
    | ``recent`` | ``MultiBinary(w)`` | the last w boundaries, newest first; left out if w is 0 |
    | ``position`` | ``Box(0, num_steps, (1,), int64)`` | bytes since the text began |
    | ``encoder_state`` | ``Box(-1e6, 1e6, (D,), float32)`` | state of the encoder |
    | ``early_entropy`` | ``Box(0, ln 256, (1,), float32)`` | nats about the next byte; with ``observe_entropy`` |

    The information has ``byte``; ``num_tokens``, ``bits`` (cost under the whole model) and ``early_bits`` (under the
    early exit) so far; with ``reference`` or ``reward="relative"`` also ``reference_return``, the sum of the
    reference's rewards so far. ``reset(options={"text": ...})`` starts a given text.

    ``ByteBoundary-v1`` reads the packaged novel with the packaged model, which was trained on other books. Mean returns
    of 256 decisions on 256 texts, with standard errors of 2.1 at most:

    | boundaries | return |
    |---|---|
    | the model's own policy | 110.4 |
    | at spaces | 97.5 |
    | always | 65.5 |
    | every 5 bytes | 27.9 |
    | random, at 0.2 | 24.9 |
    | never | -6.0 |

    ``ByteBoundary-v0`` has an untrained model, whose tokens are worth nothing yet, and prose that comes with Python.

    Args:
        model: an argument of ``UNet.from_pretrained`` (a folder, a run, a hub id, ``"pocket"``), which is trained; the
            name of another preset (``"tiny"``, ``"small"``, ...) or a ``UNetConfig``, which are untrained with weights
            that are always the same; or a U-Net.
        text: documents; a ``Path`` or several, whose documents are read; a source; None is prose that comes with
            Python, ``"novel"`` the packaged :func:`~rltok_rl.data.packaged_novel`.
        num_steps: decisions per episode.
        render_mode: ``"ansi"`` for text with a ``|`` at each boundary, ``"rgb_array"`` for a picture of it, coloured by
            rewards.
        **options: ``reward``, ``reference``, ``price``, ``observe_entropy`` and ``target_rates`` of
            :class:`~rltok_rl.envs.ByteBoundaryEnv`; ``short_documents`` of :class:`~rltok_rl.data.TextSource`;
            ``overrides``, fields to replace in a preset.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/ByteBoundary-v1", num_steps=128)
    ```
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(
        self,
        model: Model = "tiny",
        text: Texts = None,
        num_steps: int = 256,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        check_options(self, options)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']} or None, got {render_mode!r}")
        self.env = build_env(model, text, (), num_steps=num_steps, **options)
        self.render_mode = render_mode
        self.observation_space = observation_space(self.env)
        self._names = list(self.observation_space)
        self.action_space = spaces.Discrete(2)
        self._counts = EpisodeCounts(self.env)
        self._ids: list[int] = []
        self._boundaries: list[bool] = []
        self._rewards: list[float] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start a text, which ``options={"text": ...}`` may give."""
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        seen = self.env.reset(**check_reset_options(options, "text"))
        self._counts.restart(np.array([True]))
        self._ids, self._boundaries, self._rewards = [int(seen["byte"])], [], []
        return self._observation(seen), self._info(seen)

    def step(self, action):
        """Decide about the current byte."""
        if not self.action_space.contains(np.int64(action) if isinstance(action, int) else action):
            raise ValueError(f"action must be 0 (no boundary) or 1 (boundary), got {action!r}")
        decision = TensorDict({"action": torch.tensor(int(action), device=self.env.device)}, (), device=self.env.device)
        after = self.env.step(decision)["next"]
        drawn = bool(action) or not self._boundaries
        self._boundaries.append(drawn)
        self._counts.step(np.array([drawn]), after)
        self._ids.append(int(after["byte"]))
        self._rewards.append(float(after["reward"]))
        flags = (bool(after["terminated"]), bool(after["truncated"]))
        return self._observation(after), self._rewards[-1], *flags, self._info(after)

    def render(self):
        """Show the text so far, with its boundaries."""
        if self.render_mode is None:
            gymnasium.logger.warn("render was called without a render_mode; pass one to gymnasium.make")
            return None
        if not self._ids:
            raise RuntimeError("render was called before reset; call reset() first")
        marks = self.env.model.config.num_marks  # not shown
        text = bytes(self._ids[marks:])
        boundaries = [*self._boundaries, False][marks:]  # the current byte is not decided yet
        if self.render_mode == "ansi":
            return boundary_text(text, boundaries, colour=False)
        rewards = [math.nan, *self._rewards][marks:]  # each byte with the reward of the decision before it
        size = self.env.window_bytes
        return boundary_picture(text, boundaries, rewards=rewards, title=self._title(), least_characters=size)

    def _title(self) -> str:
        counts, predicted = self._counts, len(self._rewards)
        if not predicted:
            return "no byte has been predicted yet"
        bits, early = counts.bits[0] / predicted, counts.early_bits[0] / predicted
        return (
            f"{int(counts.num_tokens[0])} tokens in {predicted} bytes, return {sum(self._rewards):.2f}, "
            f"{bits:.2f} bits per byte (early exit {early:.2f})"
        )

    def _observation(self, seen: TensorDictBase) -> dict[str, Any]:
        arrays = {name: seen.get(name).numpy(force=True) for name in self._names}
        return {**arrays, "byte": np.int64(arrays["byte"])}

    def _info(self, seen: TensorDictBase) -> dict[str, Any]:
        counts = {name: values[0].item() for name, values in vars(self._counts).items()}
        return {"byte": int(seen["byte"]), **counts}


def observation_space(env: ByteBoundaryEnv) -> spaces.Dict:
    """Return the space of one row's observation."""
    config = env.model.config
    space: dict[str, spaces.Space] = {
        "byte": spaces.Discrete(config.num_ids),
        # Gymnasium has no space without numbers.
        **({"recent": spaces.MultiBinary(config.num_lags)} if config.num_lags else {}),
        "position": spaces.Box(0, env.num_steps, (1,), np.int64),
        "encoder_state": spaces.Box(-_LARGE, _LARGE, (config.width,), np.float32),
    }
    if config.rate_embedding:
        space["target_rate"] = spaces.Box(0.0, 1.0, (1,), np.float32)
    if env.observe_entropy:
        space["early_entropy"] = spaces.Box(0.0, math.log(256) + 1e-3, (1,), np.float32)
    return spaces.Dict(space)


_SUMS = (
    ("bits", "final_log_prob", -math.log(2)),
    ("early_bits", "early_log_prob", -math.log(2)),
    ("reference_return", "reference_reward", 1.0),
)
"""Sums of observations in the information, and their units."""


class EpisodeCounts:
    """Tokens drawn, bits of the bytes and return of the reference so far, per row."""

    def __init__(self, env: ByteBoundaryEnv) -> None:
        self.num_tokens = np.zeros(env.num_rows, dtype=np.int64)
        self.bits = np.zeros(env.num_rows)
        self.early_bits = np.zeros(env.num_rows)
        if env.has_reference:
            self.reference_return = np.zeros(env.num_rows)

    def restart(self, rows: np.ndarray) -> None:
        """Reset the counts of rows [n] bool."""
        for counts in vars(self).values():
            counts[rows] = 0

    def step(self, boundaries: np.ndarray, after: Mapping[str, Any] | TensorDictBase) -> None:
        """Count boundaries [n] bool, and the cost of the bytes that they revealed."""
        self.num_tokens += boundaries
        for name, key, unit in _SUMS:
            if hasattr(self, name):
                total = getattr(self, name)
                total += after[key].reshape(-1).double().numpy(force=True) / unit

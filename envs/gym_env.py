"""The environment for gymnasium, one text at a time."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from rltok_rl.envs.gym_common import Told, known_options, observation_space
from rltok_rl.envs.gym_given import Model, Texts, build_env, check_options
from tensordict import TensorDict, TensorDictBase

from rltok_rl.viz.frames import boundary_picture
from rltok_rl.viz.terminal import boundary_text


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
        model: what ``UNet.from_pretrained`` takes (a folder, a run, a hub id, ``"pocket"``), which is trained; the name
            of another preset (``"tiny"``, ``"small"``, ...) or a ``UNetConfig``, which are untrained; or a U-Net.
        text: documents; a ``Path``, or several, whose documents are read; a source; None is prose that every Python
            brings along.
        num_steps: decisions per episode.
        render_mode: ``"ansi"`` for text with a ``|`` at each boundary, ``"rgb_array"`` for a picture of it, coloured by
            rewards.
        **options: ``reward``, ``price``, ``observe_entropy`` and ``target_rates`` of
            :class:`~rltok_rl.envs.ByteBoundaryEnv`; ``short_documents`` of :class:`~rltok_rl.data.TextSource`;
            ``overrides``, fields to replace of a preset that is given by name.

    ```python
    import gymnasium
    env = gymnasium.make("rltok_rl:rltok_rl/ByteBoundary-v0", num_steps=128)
    ```

    ### Version History
    v0: first version.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}
    _named: ClassVar = ("model", "text", "num_steps", "render_mode")

    def __init__(
        self,
        model: Model = "tiny",
        text: Texts = None,
        num_steps: int = 256,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        check_options(options, *self._named)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']} or None, got {render_mode!r}")
        self.env = build_env(model, text, (), num_steps=num_steps, **options)
        self.render_mode = render_mode
        self.observation_space = observation_space(self.env)
        self._names = list(self.observation_space.spaces)
        self.action_space = spaces.Discrete(2)
        self._told = Told(1)
        self._text = bytearray()
        self._boundaries: list[bool] = []
        self._rewards: list[float] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start a text; ``options={"text": ...}`` says which."""
        super().reset(seed=seed)
        if seed is not None:
            self.env.set_seed(seed)
        seen = self.env.reset(**known_options(options, "text"))
        self._told.restart(np.array([True]))
        self._text, self._boundaries, self._rewards = bytearray([int(seen["byte"])]), [], []
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
        self._rewards.append(float(after["reward"]))
        flags = (bool(after["terminated"]), bool(after["truncated"]))
        return self._observation(after), self._rewards[-1], *flags, self._info(after)

    def render(self):
        """The text so far, with its boundaries."""
        if self.render_mode is None:
            gymnasium.logger.warn("render was called without a render_mode; pass one to gymnasium.make")
            return None
        if not self._text:
            raise RuntimeError("render was called before reset; call reset() first")
        boundaries = [*self._boundaries, False]  # the current byte is not decided yet
        if self.render_mode == "ansi":
            return boundary_text(bytes(self._text), boundaries, colour=False)
        rewards = [math.nan, *self._rewards]  # of the decision before each byte: how well that byte was predicted
        return boundary_picture(
            bytes(self._text), boundaries, rewards=rewards, title=self._title(), least_characters=self.env.num_steps + 1
        )

    def _title(self) -> str:
        told, predicted = self._told, len(self._rewards)
        if not predicted:
            return "no byte has been predicted yet"
        bits, early = told.bits[0] / predicted, told.early_bits[0] / predicted
        return (
            f"{int(told.num_tokens[0])} tokens in {predicted} bytes, return {sum(self._rewards):.2f}, "
            f"{bits:.2f} bits per byte (early exit {early:.2f})"
        )

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

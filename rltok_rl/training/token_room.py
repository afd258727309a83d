"""Room for packed tokens that grows: an update with more tokens than places is repeated with more room.

Nobody waits for the number of tokens on an accelerator. An update that lacks room is skipped there, with all later
ones, and found when metrics are fetched. The trainer then returns to the state before it, so that results do not
depend on the room.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchrl.envs import EnvBase, TransformedEnv

from rltok_rl.models.tokens import Packing
from rltok_rl.objectives import JointLoss

MARGIN = 1.25
"""Room per token that was drawn, after growing."""


class TokenRoom:
    """Layouts with room for a fixed number of tokens, of a rollout and of local flips, which grow together."""

    def __init__(self, env: EnvBase, loss: JointLoss) -> None:
        while isinstance(env, TransformedEnv):  # it passes reads on, and keeps what is written
            env = env.base_env
        self._users: list[Any] = [part for part in (env, *loss.modules()) if _is_fixed(part)]
        self._start = [part.layout for part in self._users]

    @property
    def fixed(self) -> bool:
        """Whether any layout has a fixed room."""
        return bool(self._users)

    def grow(self, need: float) -> None:
        """Make room for ``need`` times as many tokens, with a margin."""
        if all(part.layout.tokens >= 1 and (part.layout.second or 1.0) >= 1 for part in self._users):
            raise RuntimeError(f"room for a token per byte must suffice, got {need:.3g} times as many")
        for part in self._users:
            part.layout = _scaled(part.layout, MARGIN * need)

    @property
    def described(self) -> str:
        """The room in words."""
        rooms = (f"{part.layout.tokens:.3g} tokens per byte" for part in self._users)
        return " and ".join(dict.fromkeys(rooms))

    def state(self) -> list[float]:
        """Return how much each layout has grown."""
        return [part.layout.tokens / first.tokens for part, first in zip(self._users, self._start, strict=True)]

    def load(self, state: list[float]) -> None:
        """Grow the layouts as those of a run were; another layout, which resumed runs may have, keeps its room."""
        for part, first, factor in zip(self._users, self._start, state, strict=False):
            part.layout = first if factor == 1.0 else _scaled(first, factor)


def _is_fixed(part: Any) -> bool:
    layout = getattr(part, "layout", None)
    return isinstance(layout, Packing) and layout.tokens is not None


def _scaled(layout: Packing, factor: float) -> Packing:
    second = None if layout.second is None else factor * layout.second
    return replace(layout, tokens=factor * (layout.tokens or 0.0), second=second)

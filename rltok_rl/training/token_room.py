"""Growing room for packed tokens: an update that overflows is repeated with more room.

The host never waits for a token count of an accelerator. An update that overflows is skipped on the device, with those
after it, and detected when metrics are fetched. The trainer then returns to the state before it, so that results do not
depend on the room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._pytree import tree_map_only
from torchrl.envs import EnvBase

from rltok_rl.envs.reward_transforms import without_transforms
from rltok_rl.models.tokens import Packing
from rltok_rl.ranges import check_number
from rltok_rl.training.metrics import Pending
from rltok_rl.training.training_step import TrainingStep

MARGIN = 1.25
"""Room per token that was drawn, after growing."""


def largest_need(needs: Sequence[Tensor], group: ProcessGroup | None) -> Tensor:
    """Return the largest value of all processes, without waiting for the device."""
    largest = torch.stack([*needs]).max()
    if group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest


class TokenRoom:
    """Layouts with room for a fixed number of tokens, of a rollout and of local flips, which grow together."""

    def __init__(self, env: EnvBase, step: TrainingStep) -> None:
        env = without_transforms(env)  # a TransformedEnv passes reads on, and keeps what is written
        self.step = step
        self.warnings: list[str] = []
        """Warnings of the next update."""
        self._parts: list[Any] = [part for part in (env, *step.loss.modules()) if _is_fixed(part)]
        self._start = [part.layout for part in self._parts]

    def state_to_repeat(self, progress: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Copy the trainer's progress and the buffers; None if no layout has a fixed room.

        An update changes nothing else but parameters, which stay as they are if its tokens lack room.
        """
        if not self._parts:
            return None
        state: dict[str, Any] = {"progress": progress(), "buffers": [*self.step.buffers()]}
        return tree_map_only(Tensor, Tensor.clone, state)

    @torch.no_grad()
    def repeat(self, update: Pending, need: float) -> dict[str, Any]:
        """Make more room for an update, restore the buffers, and return the progress before it."""
        assert update.state_to_repeat is not None
        for buffer, value in zip(self.step.buffers(), update.state_to_repeat["buffers"], strict=True):
            buffer.copy_(value)
        self.grow(need)
        rooms = dict.fromkeys(f"{part.layout.tokens:.3g} tokens per byte" for part in self._parts)
        planned = f"{need:.3g} times the tokens that compute.token_room plans with"
        self.warnings = [*update.warnings, f"{planned}: repeated with room for {' and '.join(rooms)}"]
        progress: dict[str, Any] = update.state_to_repeat["progress"]
        return progress

    def grow(self, need: float) -> None:
        """Make room for ``need`` times as many tokens, with a margin."""
        if all(part.layout.tokens >= 1 and (part.layout.second or 1.0) >= 1 for part in self._parts):
            raise RuntimeError(f"room for a token per byte must suffice, got {need:.3g} times as many")
        for part in self._parts:
            part.layout = _scaled(part.layout, MARGIN * need)

    def state(self) -> dict[str, Any]:
        """Return how much each layout has grown, and the warnings of the next update."""
        grown = [part.layout.tokens / first.tokens for part, first in zip(self._parts, self._start, strict=True)]
        return {"grown": grown, "notes": self.warnings}

    def load(self, state: dict[str, Any]) -> None:
        """Grow the layouts as those of a run were; another layout, which resumed runs may have, keeps its room."""
        for part, first, factor in zip(self._parts, self._start, state["grown"], strict=False):
            check_number("grown", factor, "(0, inf)")
            part.layout = first if factor == 1.0 else _scaled(first, factor)
        self.warnings = [*state["notes"]]


def _is_fixed(part: Any) -> bool:
    layout = getattr(part, "layout", None)
    return isinstance(layout, Packing) and layout.tokens is not None


def _scaled(layout: Packing, factor: float) -> Packing:
    second = None if layout.second is None else factor * layout.second
    return replace(layout, tokens=factor * (layout.tokens or 0.0), second=second)

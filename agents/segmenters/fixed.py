"""Segmenters without parameters: actors that exist, an exact number at random, and SpaceByte's rule."""

from __future__ import annotations

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments, State, check_rate
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.modules import set_recurrent_mode

from rltok_rl.functional.boundary_rules import select_exactly, select_next, spacebyte, spacelike
from rltok_rl.models.mixing import Mixing
from rltok_rl.sampling import draw_boundary
from rltok_rl.utils import check_count


class ActorSegmenter(Segmenter):
    """An actor of :mod:`rltok_rl.agents` as a segmenter: fixed rules, constant rates, the learned policy.

    Its losses are not here: a learned policy is trained by :class:`~rltok_rl.objectives.JointLoss` in the environment.

    Args:
        actor: an actor that draws windows.
        target_rate: boundaries per byte that it aims at.
    """

    def __init__(self, actor: TensorDictModuleBase, *, target_rate: float | None = None) -> None:
        super().__init__()
        if not getattr(actor, "draws_windows", False):
            raise TypeError(f"actor must draw whole windows (those of rltok_rl.agents do), got {type(actor).__name__}")
        self.actor, self.target_rate = actor, target_rate

    @property
    def draws_at_random(self) -> bool:
        """Whether the actor does."""
        return self.actor.draws_at_random

    @property
    def _num_lags(self) -> int:
        return getattr(getattr(self.actor, "terms", None), "num_lags", 0)

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        position = torch.arange(byte_ids.shape[1], device=byte_ids.device).expand_as(byte_ids)
        given = _observed(states, byte_ids, position)
        if uniforms is not None:
            given.set("uniform", uniforms)
        with set_recurrent_mode(True):
            drawn = self.actor(given)
        return Segments(drawn.get("action").bool(), logits=drawn.get("logits", None))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"recent": torch.zeros(num_rows, self._num_lags, dtype=torch.bool, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        given = _observed(states, byte_ids, state["position"])
        given.set("recent", state["recent"])
        if hasattr(self.actor, "get_dist"):
            logits = self.actor.get_dist(given).logits
            drawn = Segments(draw_boundary(logits, uniforms) | given.get("forced"), logits=logits)
        else:
            drawn = Segments(self.actor(given).get("action").bool())
        recent = torch.cat((drawn.boundaries[:, None], state["recent"]), 1)[:, : self._num_lags]
        return drawn, {"recent": recent}


def _observed(states: Tensor, byte_ids: Tensor, position: Tensor) -> TensorDict:
    """What an environment would show an actor."""
    entries = {
        "byte": byte_ids,
        "position": position.unsqueeze(-1),
        "forced": position == 0,
        "encoder_state": states,
    }
    return TensorDict(entries, byte_ids.shape)


class ExactRandom(Segmenter):
    """Boundaries anywhere, but an exact number of them in every block of bytes.

    Args:
        rate: boundaries per byte, in (0, 1].
        block: bytes that the count is kept over; ``ceil(rate * block)`` boundaries lie in each.
    """

    def __init__(self, rate: float, *, block: int) -> None:
        super().__init__()
        self.target_rate, self.block = check_rate(rate), check_count("block", block)

    @property
    def draws_at_random(self) -> bool:
        """Always."""
        return True

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        assert uniforms is not None and self.target_rate is not None
        # Thousands of tiny steps: launching them on an accelerator costs more than the way to the CPU and back.
        drawn = select_exactly(uniforms.cpu(), self.target_rate, self.block)
        return Segments(drawn.to(byte_ids.device))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"drawn": torch.zeros(num_rows, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        assert uniforms is not None and self.target_rate is not None
        drawn = state["drawn"].to(uniforms.dtype)
        boundaries, drawn = select_next(uniforms, state["position"], drawn, self.target_rate, self.block)
        return Segments(boundaries), {"drawn": drawn}


class SpaceByte(Segmenter):
    """A boundary at the first spacelike byte after others; see :func:`~rltok_rl.functional.boundary_rules.spacebyte`.

    Args:
        repeat: let all bytes up to the next boundary receive a token, as the U-Net does. SpaceByte itself adds it at
            the boundary byte alone (False).
    """

    def __init__(self, *, repeat: bool = True) -> None:
        super().__init__()
        self.repeat = repeat

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        boundaries = spacebyte(byte_ids)
        first = torch.arange(byte_ids.shape[1], device=byte_ids.device) == 0
        return Segments(boundaries, mixing=self._mixing(boundaries | first))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"space": torch.zeros(num_rows, dtype=torch.bool, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        space = spacelike(byte_ids)
        boundaries = space & ~state["space"]
        return Segments(boundaries, mixing=self._mixing(boundaries | (state["position"] == 0))), {"space": space}

    def _mixing(self, boundaries: Tensor) -> Mixing | None:
        return None if self.repeat else Mixing(receive=boundaries)

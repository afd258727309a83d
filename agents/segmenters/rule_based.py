"""Segmenters without losses: actors as segmenters, an exact number of random boundaries, SpaceByte's rule."""

from __future__ import annotations

import torch
from rltok_rl.agents.bernoulli import LearnedBoundaryActor, RandomActor, lags_of
from rltok_rl.agents.rules import FixedStrideActor, RuleActor, UniformActor, WhitespaceActor, check_rate
from rltok_rl.agents.segmenters.segmenter import (
    Offset,
    Probability,
    Rate,
    Reach,
    Segmenter,
    Segments,
    State,
    rate_or_default,
)
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.modules import set_recurrent_mode

from rltok_rl.functional import boundary_rules
from rltok_rl.functional.boundary_rules import select_exactly, select_next, spacelike
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import draw_boundary
from rltok_rl.utils import check_count


class ActorSegmenter(Segmenter):
    """An actor of :mod:`rltok_rl.agents` as a segmenter: a fixed rule, a constant rate, the learned policy.

    It has no losses: :class:`~rltok_rl.objectives.JointLoss` trains a learned policy in the environment.
    """

    def __init__(self, actor: TensorDictModuleBase, *, target_rate: float | None = None) -> None:
        super().__init__()
        if not getattr(actor, "draws_windows", False):
            raise TypeError(f"actor must draw whole windows (those of rltok_rl.agents do), got {type(actor).__name__}")
        self.actor, self.target_rate = actor, target_rate
        self.reads_states = "encoder_state" in actor.in_keys

    @property
    def draws_at_random(self) -> bool:
        """Whether the actor's decisions are random now."""
        return self.actor.draws_at_random

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        position = torch.arange(byte_ids.shape[1], device=byte_ids.device).expand_as(byte_ids)
        return self._draw(states, byte_ids, position, uniforms)

    @property
    def draws_parts(self) -> bool:
        """Whether decisions depend on their own byte, position and random number alone."""
        return isinstance(self.actor, (RuleActor, RandomActor))

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        position = state["position"][:, None] + torch.arange(byte_ids.shape[1], device=byte_ids.device)  # [B, n]
        return self._draw(states, byte_ids, position, uniforms), {}

    def _draw(self, states: Tensor, byte_ids: Tensor, position: Tensor, uniforms: Tensor | None) -> Segments:
        observation = _observation(states, byte_ids, position)
        if uniforms is not None:
            observation.set("uniform", uniforms)
        with set_recurrent_mode(True):
            decisions = self.actor(observation)
        return Segments(decisions.get("action").bool(), logits=decisions.get("logits", None))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"recent": torch.zeros(num_rows, lags_of(self.actor), dtype=torch.bool, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        observation = _observation(states, byte_ids, state["position"])
        observation.set("recent", state["recent"])
        if hasattr(self.actor, "get_dist"):
            logits = self.actor.get_dist(observation).logits
            segments = Segments(draw_boundary(logits, uniforms) | observation.get("forced"), logits=logits)
        else:
            segments = Segments(self.actor(observation).get("action").bool())
        recent = torch.cat((segments.boundaries[:, None], state["recent"]), 1)[:, : lags_of(self.actor)]
        return segments, {"recent": recent}


def _observation(states: Tensor, byte_ids: Tensor, position: Tensor) -> TensorDict:
    """Return the keys of an environment's observation that actors read."""
    places = {"position": position.unsqueeze(-1), "forced": position == 0}
    return TensorDict({"byte": byte_ids, **places, "encoder_state": states}, byte_ids.shape)


class ExactRandom(Segmenter):
    """Boundaries at random places, exactly ``ceil(rate * block)`` of them in every block of bytes."""

    evaluation = "sample"
    reads_states = False
    target_rate: float

    def __init__(self, rate: float, *, block: int) -> None:
        super().__init__()
        self.target_rate, self.block = check_rate(rate), check_count("block", block)

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        assert uniforms is not None
        # On the CPU: launching thousands of tiny steps on an accelerator costs more than copying.
        return Segments(select_exactly(uniforms.cpu(), self.target_rate, self.block).to(byte_ids.device))

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        assert uniforms is not None
        numbers, position, drawn = uniforms.cpu(), state["position"].cpu(), state["drawn"].cpu()
        boundaries = []
        for t in range(byte_ids.shape[1]):
            number = numbers[:, t]
            boundary, drawn = select_next(number, position + t, drawn.to(number.dtype), self.target_rate, self.block)
            boundaries.append(boundary)
        return Segments(torch.stack(boundaries, 1).to(byte_ids.device)), {"drawn": drawn}

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"drawn": torch.zeros(num_rows, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        assert uniforms is not None
        drawn = state["drawn"].to(uniforms.dtype)
        boundaries, drawn = select_next(uniforms, state["position"], drawn, self.target_rate, self.block)
        return Segments(boundaries), {"drawn": drawn}


class SpaceByte(Segmenter):
    """A boundary at the first spacelike byte after others; see :func:`~rltok_rl.functional.boundary_rules.spacebyte`.

    With ``repeat``, a token is added to all bytes up to the next boundary, as the U-Net does. SpaceByte itself adds it
    to the boundary byte alone (False). Boundaries come ``offset`` bytes later: with 3, after the third letter of
    words of three letters or more.
    """

    reads_states = False

    def __init__(self, *, repeat: bool = True, offset: Offset = 0) -> None:
        super().__init__()
        self.repeat, self.offset = repeat, check_count("offset", offset, minimum=0)

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        start = self._start(len(byte_ids), byte_ids.device)
        boundaries, _ = self._delay(boundary_rules.spacebyte(byte_ids), start)
        return self._segments(boundaries, torch.arange(byte_ids.shape[1], device=byte_ids.device))

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        space = spacelike(byte_ids)  # [B, n]
        before = torch.cat((state["space"][:, None], space[:, :-1]), 1)
        boundaries, pending = self._delay(space & ~before, state)
        return Segments(boundaries), {"space": space[:, -1], **pending}

    def _start(self, num_rows: int, device: torch.device) -> State:
        pending = torch.zeros(num_rows, self.offset, dtype=torch.bool, device=device)
        return {"space": pending.new_zeros(num_rows), "pending": pending}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        space = spacelike(byte_ids)
        boundaries, pending = self._delay((space & ~state["space"])[:, None], state)
        return self._segments(boundaries[:, 0], state["position"]), {"space": space, **pending}

    def _delay(self, boundaries: Tensor, state: State) -> tuple[Tensor, State]:
        """Delay boundaries [B, n] by ``offset`` bytes: those of these bytes, and the state with those still to come."""
        length = boundaries.shape[1]
        joined = torch.cat((state["pending"], boundaries), 1)  # [B, offset + n]
        return joined[:, :length], {"pending": joined[:, length:]}

    def _segments(self, boundaries: Tensor, position: Tensor) -> Segments:
        return Segments(boundaries, mixing=None if self.repeat else Mixing(receive=boundaries | (position == 0)))


def learned(model: UNet) -> ActorSegmenter:
    """Draw by the model's own policy, at its configured rate."""
    rate = model.config.target_rate if model.config.rate_embedding else None
    return ActorSegmenter(LearnedBoundaryActor(model, target_rate=rate), target_rate=model.config.target_rate)


def uniform(model: UNet, rate: Rate | None = None) -> ActorSegmenter:
    """Draw evenly spaced boundaries."""
    rate = rate_or_default(model, rate)
    return ActorSegmenter(UniformActor(rate), target_rate=rate)


def bernoulli(model: UNet, rate: Probability | None = None) -> ActorSegmenter:
    """Draw boundaries with the same probability at every byte."""
    rate = rate_or_default(model, rate)
    return ActorSegmenter(RandomActor(rate), target_rate=rate)


def random(model: UNet, rate: Rate | None = None, block: Reach = 4096) -> ExactRandom:
    """Draw an exact number of boundaries at random places."""
    return ExactRandom(rate_or_default(model, rate), block=block)


def stride(model: UNet, stride: Reach | None = None) -> ActorSegmenter:
    """Draw a boundary at every ``stride``-th byte."""
    stride = round(1 / model.config.target_rate) if stride is None else stride
    return ActorSegmenter(FixedStrideActor(stride), target_rate=1 / stride)


def whitespace(model: UNet) -> ActorSegmenter:
    """Draw a boundary at every white-space byte."""
    return ActorSegmenter(WhitespaceActor())


def spacebyte(model: UNet, repeat: bool = True, offset: Offset = 0) -> SpaceByte:
    """Draw SpaceByte's boundaries, or the bytes ``offset`` after them."""
    return SpaceByte(repeat=repeat, offset=offset)

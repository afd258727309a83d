"""The segmenter interface: draw token boundaries in whole windows and byte by byte.

Shapes: B rows, T bytes, D width. A segmenter reads encoder states and bytes up to t and decides ``a_t``. It may also
return differentiable boundaries and its own way to make tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from rltok_rl.models.mixing import Mixing
from rltok_rl.models.unet import UNet
from rltok_rl.utils import check_count

T = TypeVar("T")
Evaluation = Literal["sample", "round"]
Hidden = Annotated[int, "[1, 1e6]"]
Layers = Annotated[int, "[1, 10_000]"]
Reach = Annotated[int, "[1, inf)"]
GroupSize = Annotated[int, "[2, inf)"]
Offset = Annotated[int, "[0, 64]"]
Rate = Annotated[float, "(0, 1]"]
Probability = Annotated[float, "(0, 1)"]
Weight = Annotated[float, "[0, inf)"]
"""Hidden units, layers, bytes back, rows of a group, bytes ahead, boundaries per byte and weights of losses: options
with ranges."""
State = dict[str, Any]
"""A segmenter's memory between two bytes; always holds ``position`` [B]."""


@dataclass(frozen=True)
class Segments:
    """Boundaries and related quantities: [B, T] for a window, [B] for a step."""

    boundaries: Tensor
    """bool, True at the first byte of a text."""
    logits: Tensor | None = None
    """Boundary logits l_t, if decisions have a probability sigmoid(l_t)."""
    scores: Tensor | None = None
    """Scores that decisions are thresholded from: an entropy, its rise, a routing probability."""
    soft: Tensor | None = None
    """Straight-through decisions: 0 or 1 in value, with the gradient of a relaxation."""
    mixing: Mixing | None = None
    """How tokens are pooled from bytes and added back; None is the model's way."""


class Segmenter(nn.Module):
    """Draws the boundaries of windows, and the same boundaries byte by byte.

    Subclasses define how whole windows (``_window``) and single bytes (``_step``) are segmented. The first byte of a
    text always has a boundary. Random segmenters draw with ``uniforms`` in [0, 1), shaped like the bytes, or from
    ``generator``.
    """

    looks_ahead: bool = False
    """Whether a boundary may depend on later bytes, which no causal model knows."""
    reads_states: bool = True
    """Whether boundaries depend on encoder states; if not, they can be drawn before the encoder runs."""
    target_rate: float | None = None
    """Target boundaries per byte; None if the text alone decides."""
    second_rate: float | None = None
    """Target tokens of tokens per token for a model with a second level; None is the model's target."""
    coefficients: Mapping[str, float] = {}
    """Weights of the entries of :meth:`losses`."""
    alternatives: tuple[nn.Module, ...] = ()
    """Interchangeable modules; each byte goes through exactly one."""
    evaluation: Evaluation | None = None
    """How a stochastic segmenter decides outside training: ``"sample"``, or ``"round"`` its probabilities. None is a
    deterministic segmenter."""

    @property
    def draws_at_random(self) -> bool:
        """Whether decisions are random now."""
        return self.evaluation == "sample" or (self.evaluation == "round" and self.training)

    def forward(
        self,
        states: Tensor,
        byte_ids: Tensor,
        *,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Segments:
        """Draw the boundaries of whole texts: encoder states [B, T, D] and bytes [B, T] from each text's first."""
        _check_shapes(states, byte_ids, "B, T")
        segments = self._window(states, byte_ids, self._uniforms(byte_ids, uniforms, generator))
        boundaries = segments.boundaries.clone()
        boundaries[:, 0] = True
        return replace(segments, boundaries=boundaries)

    def start(self, num_rows: int, *, device: torch.device | str | None = None) -> State:
        """Return the state before the first byte of ``num_rows`` texts."""
        position = torch.zeros(check_count("num_rows", num_rows), dtype=torch.int64, device=device)
        return {"position": position, **self._start(num_rows, position.device)}

    @torch.no_grad()
    def step(
        self,
        states: Tensor,
        byte_ids: Tensor,
        state: State,
        *,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Segments, State]:
        """Draw one boundary per row, from encoder states [B, D] and bytes [B]; ``state`` must not be used again."""
        _check_shapes(states, byte_ids, "B")
        segments, after = self._step(states, byte_ids, state, self._uniforms(byte_ids, uniforms, generator))
        boundaries = segments.boundaries | (state["position"] == 0)
        return replace(segments, boundaries=boundaries), {"position": state["position"] + 1, **after}

    @property
    def draws_parts(self) -> bool:
        """Whether :meth:`draw_part` works; a subclass with its own ``_window`` must define ``_part`` again."""
        order = type(self).__mro__
        part, window = (next(n for n, kind in enumerate(order) if name in vars(kind)) for name in ("_part", "_window"))
        return order[part] is not Segmenter and part <= window

    @torch.no_grad()
    def draw_part(
        self, states: Tensor, byte_ids: Tensor, state: State, *, uniforms: Tensor | None = None
    ) -> tuple[Segments, State]:
        """Draw the next boundaries [B, n] of long texts: those of ``forward`` on whole texts, without mixing.

        ``state`` is that of :meth:`start` or of the part before; :meth:`step` has other states.
        """
        _check_shapes(states, byte_ids, "B, n")
        segments, after = self._part(states, byte_ids, state, self._uniforms(byte_ids, uniforms, None))
        position, boundaries = state["position"], segments.boundaries.clone()
        boundaries[:, 0] |= position == 0
        return replace(segments, boundaries=boundaries), {"position": position + byte_ids.shape[1], **after}

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute losses by name, without coefficients, given ``forward`` and next-byte logits [B, T, 256]."""
        return {}

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        raise NotImplementedError

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        raise NotImplementedError

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        raise NotImplementedError

    def _uniforms(self, byte_ids: Tensor, uniforms: Tensor | None, generator: torch.Generator | None) -> Tensor | None:
        if not self.draws_at_random:
            return None
        if uniforms is None:
            return torch.rand(byte_ids.shape, generator=generator, device=byte_ids.device)
        if uniforms.shape != byte_ids.shape:
            raise ValueError(f"uniforms must have the shape of byte_ids, {[*byte_ids.shape]}, got {[*uniforms.shape]}")
        return uniforms


class SegmenterActor(nn.Module):
    """A segmenter as an actor, so that environments and trainers accept it like any policy.

    ``env.parallel_rollout(actor)`` decodes with the segmenter's mixing and writes its losses as ``segmenter_<name>``.
    Single steps of an environment do not support mixing; use ``read_byte`` instead.
    """

    draws_windows = True

    def __init__(self, segmenter: Segmenter) -> None:
        super().__init__()
        self.segmenter = segmenter

    @property
    def draws_at_random(self) -> bool:
        """Whether the segmenter's decisions are random now."""
        return self.segmenter.draws_at_random

    def draw(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        """Segment texts [n, L] by their encoder states [n, L, D]."""
        return self.segmenter(states, byte_ids, uniforms=uniforms)

    def draw_from_bytes(self, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        """Segment texts [n, L] before they are encoded."""
        return draw_from_bytes(self.segmenter, byte_ids, uniforms=uniforms)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Expand the segmenter's losses to all steps, [n, L]; a loss that these texts do not have is 0."""
        losses = self.segmenter.losses(segments, byte_ids, final_logits)
        zero = final_logits.new_zeros(())
        names = self.segmenter.coefficients
        return {f"segmenter_{name}": losses.get(name, zero).expand(byte_ids.shape) for name in names}

    def forward(self, *_: Any, **__: Any) -> Any:
        """Raise an error: a step of the environment would make tokens in the model's way."""
        raise TypeError(
            f"{type(self.segmenter).__name__} draws whole windows in an environment (env.parallel_rollout); "
            f"read_byte reads byte by byte with it"
        )


def encode_and_draw(model: UNet, segmenter: Segmenter, byte_ids: Tensor, **draws: Any) -> tuple[Tensor, Segments]:
    """Return the encoder states [B, T, D] and the segments of windows [B, T]; ``draws`` are random numbers.

    With ``byte_scope="token"`` boundaries come first, because the encoder stops at them.
    """
    if model.config.byte_scope == "token":
        segments = draw_from_bytes(segmenter, byte_ids, **draws)
        return model.encode(byte_ids, segments.boundaries), segments
    states = model.encode(byte_ids)
    return states, segmenter(states, byte_ids, **draws)


def draw_from_bytes(segmenter: Segmenter, byte_ids: Tensor, **draws: Any) -> Segments:
    """Segment windows [B, T] without encoder states."""
    check_reads_bytes(segmenter)
    return segmenter(torch.zeros(*byte_ids.shape, 1, device=byte_ids.device), byte_ids, **draws)


def check_reads_bytes(segmenter: Segmenter, name: str | None = None) -> None:
    """Require a segmenter that reads no encoder states, as ``byte_scope="token"`` does."""
    if segmenter.reads_states:
        raise ValueError(
            f"segmenter must decide from bytes alone with byte_scope='token', whose encoder stops at boundaries "
            f"('whitespace', 'spacebyte', 'stride', tokenizers), got {name or type(segmenter).__name__!r}, which reads "
            f"encoder states"
        )


def _check_shapes(states: Tensor, byte_ids: Tensor, shape: str) -> None:
    if byte_ids.dim() != shape.count(",") + 1 or states.shape[:-1] != byte_ids.shape or 0 in byte_ids.shape:
        shapes = f"{[*states.shape]} and {[*byte_ids.shape]}"
        raise ValueError(f"states [{shape}, D] and byte_ids [{shape}] must agree and not be empty, got {shapes}")


def rate_or_default(model: UNet, rate: float | None) -> float:
    """Return a segmenter's rate, by default the model's target."""
    return model.config.target_rate if rate is None else rate


def second_rate(model: UNet, segmenter: Segmenter | None) -> float:
    """Return the target rate of the second level, by default the model's."""
    rate = None if segmenter is None else segmenter.second_rate
    return model.config.second_rate if rate is None else rate


def check_choice(name: str, value: T, literal: Any) -> T:
    """Require one of the values of a ``Literal``."""
    if value not in get_args(literal):
        raise ValueError(f"{name} must be one of {[*get_args(literal)]}, got {value!r}")
    return value

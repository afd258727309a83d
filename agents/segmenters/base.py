"""What draws boundaries: one interface for windows and for single bytes.

Shapes: B rows, T bytes, D width. A segmenter reads encoder states and bytes up to t and says ``a_t``; where its
boundaries are differentiable, or its tokens are made in a way of their own, it says that too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rltok_rl.models.mixing import Mixing
from rltok_rl.utils import check_count

State = dict[str, Any]
"""What a segmenter remembers between two bytes; ``position`` [B] is always there."""


@dataclass(frozen=True)
class Segments:
    """Boundaries and what belongs to them: [B, T] of a window, [B] of a step."""

    boundaries: Tensor
    """bool, True at the first byte of a text."""
    logits: Tensor | None = None
    """Boundary logits l_t, where decisions have a probability sigmoid(l_t)."""
    scores: Tensor | None = None
    """What a decision was read off instead: an entropy, its rise, a routing probability."""
    soft: Tensor | None = None
    """The decisions again, straight through: 0 or 1 in value, with the gradient of a relaxation."""
    mixing: Mixing | None = None
    """How tokens are made of bytes and given back; None is the model's way."""


class Segmenter(nn.Module):
    """Draws the boundaries of windows, and the same ones byte by byte.

    A subclass says what it draws from whole windows (``_window``) and from one byte after others (``_step``); the first
    byte of a text has a boundary whatever they say.
    """

    looks_ahead: bool = False
    """Whether a boundary may depend on bytes after it, which no causal model can know."""
    target_rate: float | None = None
    """Boundaries per byte that it aims at; None where the text alone decides."""
    second_rate: float | None = None
    """Tokens of tokens per token, where it says so for a model with a second level; None is the model's own target."""
    coefficients: Mapping[str, float] = {}
    """What the losses of :meth:`losses` are multiplied with."""

    @property
    def alternatives(self) -> tuple[nn.Module, ...]:
        """Parts of one shape, of which a byte is read by one alone."""
        return ()

    @property
    def draws_at_random(self) -> bool:
        """Whether it needs random numbers now."""
        return False

    def forward(
        self,
        states: Tensor,
        byte_ids: Tensor,
        *,
        uniforms: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Segments:
        """Draw the boundaries of whole texts.

        Args:
            states: [B, T, D] encoder states.
            byte_ids: [B, T] the bytes, each row from the first byte of its text on.
            uniforms: [B, T] in [0, 1) to draw with; not looked at where nothing is drawn at random.
            generator: source of the random numbers otherwise.
        """
        _check(states, byte_ids, ("B", "T"))
        segments = self._window(states, byte_ids, self._uniforms(byte_ids, uniforms, generator))
        boundaries = segments.boundaries.clone()
        boundaries[:, 0] = True
        return replace(segments, boundaries=boundaries)

    def start(self, num_rows: int, *, device: torch.device | str | None = None) -> State:
        """The state before the first byte of ``num_rows`` texts.

        Args:
            num_rows: B.
            device: where it is kept.
        """
        num_rows = check_count("num_rows", num_rows)
        position = torch.zeros(num_rows, dtype=torch.int64, device=device)
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
        """Draw one boundary in every row.

        Args:
            states: [B, D] encoder states of the bytes just read.
            byte_ids: [B] the bytes.
            state: what :meth:`start` or the step before gave; it is used up.
            uniforms: [B] in [0, 1) to draw with.
            generator: source of the random numbers otherwise.

        Returns:
            The boundaries, and the state after them.
        """
        _check(states, byte_ids, ("B",))
        segments, after = self._step(states, byte_ids, state, self._uniforms(byte_ids, uniforms, generator))
        boundaries = segments.boundaries | (state["position"] == 0)
        return replace(segments, boundaries=boundaries), {"position": state["position"] + 1, **after}

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """The segmenter's own losses by name, without their coefficients.

        They come after the decoder has run, because some learn from the model's predictions.

        Args:
            segments: what ``forward`` gave.
            byte_ids: [B, T] the bytes of the window.
            final_logits: [B, T, 256] next-byte logits of the whole model.
        """
        return {}

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        raise NotImplementedError

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        raise NotImplementedError

    def _uniforms(self, byte_ids: Tensor, uniforms: Tensor | None, generator: torch.Generator | None) -> Tensor | None:
        if not self.draws_at_random:
            return None
        if uniforms is None:
            return torch.rand(byte_ids.shape, generator=generator, device=byte_ids.device)
        if uniforms.shape != byte_ids.shape:
            raise ValueError(f"uniforms must have the shape of byte_ids, {[*byte_ids.shape]}, got {[*uniforms.shape]}")
        return uniforms


def _check(states: Tensor, byte_ids: Tensor, shape: tuple[str, ...]) -> None:
    if states.dim() != len(shape) + 1 or states.shape[:-1] != byte_ids.shape or 0 in byte_ids.shape:
        wanted = ", ".join(shape)
        raise ValueError(
            f"states [{wanted}, D] and byte_ids [{wanted}] must agree and not be empty, got {[*states.shape]} and "
            f"{[*byte_ids.shape]}"
        )


def check_rate(rate: float) -> float:
    """Require a rate in (0, 1]."""
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"rate must lie in (0, 1], got {rate}")
    return rate

"""A segmenter in the place of an actor, so that environments and trainers take it as they take any policy."""

from __future__ import annotations

from typing import Any

from rltok_rl.agents.segmenters.base import Segmenter, Segments
from torch import Tensor, nn


class SegmenterActor(nn.Module):
    """Draws the boundaries of whole windows by a segmenter; its tokens are made in the segmenter's way.

    ``env.parallel_rollout(actor)`` decodes with their mixing, and writes the segmenter's own losses as
    ``segmenter_<name>``. Single steps of an environment know nothing of mixing: there is ``read_byte`` for them.

    Args:
        segmenter: any of :data:`~rltok_rl.agents.segmenters.SEGMENTERS`.
    """

    draws_windows = True

    def __init__(self, segmenter: Segmenter) -> None:
        super().__init__()
        self.segmenter = segmenter

    @property
    def draws_at_random(self) -> bool:
        """Whether the segmenter needs random numbers now."""
        return self.segmenter.draws_at_random

    def draw(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        """Boundaries of texts [n, L] from encoder states [n, L, D], and what belongs to them."""
        return self.segmenter(states, byte_ids, uniforms=uniforms)

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """The segmenter's own losses, ``segmenter_<name>``, as an entry of every step: [n, L], the same in all.

        A loss that the segmenter does not have of these texts is 0.

        Args:
            segments: what :meth:`draw` gave.
            byte_ids: [n, L] the bytes that were read.
            final_logits: [n, L, 256] next-byte logits of the whole model.
        """
        found = self.segmenter.losses(segments, byte_ids, final_logits)
        zero = final_logits.new_zeros(())
        return {
            f"segmenter_{name}": found.get(name, zero).expand(byte_ids.shape) for name in self.segmenter.coefficients
        }

    def forward(self, *_: Any, **__: Any) -> Any:
        """Refused: a step of an environment would make tokens in the model's way."""
        raise TypeError(
            f"{type(self.segmenter).__name__} draws whole windows in an environment (env.parallel_rollout); "
            f"read_byte reads byte by byte with it"
        )

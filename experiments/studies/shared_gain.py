"""Token gains of all tokens, and gains that the rows of a text share: close to the truth, and not made for training."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.objectives.base import read
from rltok_rl.objectives.token_gain import TokenGain


class SharedGain(TokenGain):
    """Token gains from several passes, averaged over the rows of a text.

        A_t = (a_t - p_t) mean of the measured gains of a boundary at t    over rows of the text that have one there

    The mean is over the texts' own decisions before t, so that an effect that depends on them is only right on
    average: a bias, for far less noise. Decisions against a boundary learn as well. With one row per text advantages
    are those of :class:`~rltok_rl.objectives.token_gain.TokenGain`, averaged over passes.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        apart: leave out one token in every ``apart`` in each pass.
        num_passes: forward passes per row, each without other tokens; ``apart`` of them measure every token.
        group_size: consecutive rows with the same text.
        **options: of :class:`~rltok_rl.objectives.token_gain.TokenGain`.
    """

    def __init__(
        self, model: Any, *, gamma: float, apart: int = 2, num_passes: int = 1, group_size: int = 1, **options: Any
    ) -> None:
        super().__init__(model, gamma=gamma, apart=apart, **options)
        if not 1 <= num_passes <= apart:
            raise ValueError(f"num_passes must lie in [1, apart = {apart}], got {num_passes}")
        self.num_passes, self.group_size = num_passes, group_size

    def flops(self, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
        """Return the FLOPs of all passes."""
        return self.num_passes * super().flops(num_bytes, num_tokens, num_second=num_second)

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        first = torch.randint(self.apart, (len(rollout), 1), generator=self.generator)
        gains = torch.zeros(())
        for number in range(self.num_passes):
            self._places = (first + number) % self.apart
            gains = gains + super()._trial_advantages(rollout) / self.num_passes
        if self.group_size == 1:
            return gains
        forced, of_texts = read(rollout, "forced"), (-1, self.group_size)
        drawn = (read(rollout, "action").bool() | forced).to(gains.dtype).unflatten(0, of_texts)  # [texts, rows, T]
        probs = read(rollout, "logits").sigmoid().to(gains.dtype).unflatten(0, of_texts)
        effect = gains.unflatten(0, of_texts).sum(1, keepdim=True) / drawn.sum(1, keepdim=True).clamp(min=1)
        return ((drawn - probs) * effect).flatten(0, 1).masked_fill(forced, 0.0)

    def _choose(self, drawn: Tensor) -> Tensor:
        """Mark the boundaries [B, T] of the tokens of this pass."""
        return drawn & (drawn.cumsum(-1) % self.apart == self._places)

"""Token gains of all tokens, and gains that the rows of a text share: close to the truth, and not made for training."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.objectives.base import read
from rltok_rl.objectives.token_gain import TokenGain
from rltok_rl.objectives.trials import drawn_boundaries


class SharedGain(TokenGain):
    """Token gains from several passes, averaged over the rows of a text.

        A_t = (a_t - p_t) sum_r A^gain_{r, t} / number of rows r of the text with a boundary at t

    A^gain are the advantages of :class:`~rltok_rl.objectives.token_gain.TokenGain`, means over the passes; they are 0
    where nothing was measured, and ``apart`` times the gain where something was. Decisions against a boundary learn as
    well. Rows have different earlier boundaries, on which an effect depends: a bias, for far less noise in single
    advantages. With one row per text advantages are A^gain.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        apart: leave out one token in every ``apart`` in each pass.
        num_passes: forward passes per row, each without other tokens; ``apart`` of them measure every token.
        group_size: consecutive rows with the same text.
        **options: of :class:`~rltok_rl.objectives.token_gain.TokenGain`; ``every`` must be 1 with several rows.
    """

    def __init__(
        self, model: Any, *, gamma: float, apart: int = 2, num_passes: int = 1, group_size: int = 1, **options: Any
    ) -> None:
        super().__init__(model, gamma=gamma, apart=apart, **options)
        if not 1 <= num_passes <= apart:
            raise ValueError(f"num_passes must lie in [1, apart = {apart}], got {num_passes}")
        if group_size > 1 and self.every > 1:
            raise ValueError(f"every must be 1 with group_size = {group_size}, got {self.every}: it draws single rows")
        self.num_passes, self.group_size = num_passes, group_size

    def flops(self, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
        """Return the FLOPs of all passes."""
        return self.num_passes * super().flops(num_bytes, num_tokens, num_second=num_second)

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        forced = read(rollout, "forced")
        drawn = drawn_boundaries(rollout)
        number, places = drawn.cumsum(-1), self._draw_places(drawn)
        passes = [drawn & (number % self.apart == (places + first) % self.apart) for first in range(self.num_passes)]
        gains = sum((self._gains(rollout, chosen) for chosen in passes), torch.zeros(())) / self.num_passes
        if self.group_size == 1:
            return gains
        byte_ids = self._by_text(read(rollout, "byte"))
        if not bool((byte_ids == byte_ids[:, :1]).all()):
            raise ValueError(f"group_size must be the number of consecutive rows with one text, got {self.group_size}")
        decided, probs, gains = map(self._by_text, (drawn.to(gains), read(rollout, "logits").sigmoid(), gains))
        effect = gains.sum(1, keepdim=True) / decided.sum(1, keepdim=True).clamp(min=1)
        return ((decided - probs) * effect).flatten(0, 1).masked_fill(forced, 0.0)

    def _by_text(self, rows: Tensor) -> Tensor:
        """View rows [B, T] as [texts, rows of a text, T]."""
        if len(rows) % self.group_size:
            raise ValueError(f"group_size must divide the rows of the rollout, {len(rows)}, got {self.group_size}")
        return rows.unflatten(0, (-1, self.group_size))

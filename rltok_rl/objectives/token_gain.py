"""Token gains: the advantage of a boundary is what the text loses without it."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read
from rltok_rl.objectives.trials import Trials, drawn_boundaries
from rltok_rl.utils import check_count


@register_value_estimator("token_gain", default_kwargs={"gamma": 1.0})
class TokenGain(Trials):
    """Advantages from leaving out one token in every ``apart``, registered as ``"token_gain"``.

        A_t = m a_t [i(t) mod m = c] sum_{k < n} gamma^k (R_{t+1+k} - R^without_{t+1+k}),    m = apart

    Every row runs once more, without encoder and gradient, and without the boundaries of every m-th token; c is drawn
    for each row. Other decisions are redrawn with random numbers for which the policy decides as in the rollout, so
    that it can make up for the missing boundaries. n counts the bytes up to the next boundary that was left out.

    Decisions against a boundary have the advantage 0: ``a_t`` is drawn with probability ``p_t``, so the expected
    gradient is ``p_t (1 - p_t)`` times the expected gain all the same. It is exact if one token of a row is left out
    (``apart`` at least the number of tokens) and gamma is 1. Tokens left out nearby interact: a bias, for many more
    measurements per forward pass. Unlike :class:`~rltok_rl.objectives.flips.LocalFlips`, it never tries a boundary that
    the policy did not draw. The rollout must have whole texts, each row from the first byte of its text.

    These are difference rewards (Wolpert and Tumer 2002) of several decisions at once.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        apart: leave out one token in every m = ``apart``.
        **options: of :class:`~rltok_rl.objectives.trials.Trials`.
    """

    def __init__(self, model: UNet, *, gamma: float, apart: Annotated[int, "[1, 1e6]"] = 2, **options: Any) -> None:
        super().__init__(model, gamma=gamma, **options)
        self.apart = check_count("apart", apart)

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        return self._gains(rollout, self._choose(drawn_boundaries(rollout)))

    def _gains(self, rollout: TensorDictBase, chosen: Tensor) -> Tensor:
        """Return ``apart`` times what rows lose without the ``chosen`` boundaries [B, T] that are not forced."""
        forced = read(rollout, "forced")
        left_out = chosen & ~forced
        fixed = torch.where(left_out, 0, torch.where(forced, 1, -1)).unsqueeze(1)  # [B, 1, T]
        gained = self._gained(rollout, *self._redraw(rollout, fixed)).squeeze(1)
        ends = F.pad(left_out[:, 1:], (0, 1), value=True)  # the next boundary is left out
        return (self.apart * discounted_return(gained, self.gamma, done=ends)).masked_fill(~left_out, 0.0)

    def _choose(self, drawn: Tensor) -> Tensor:
        """Mark the boundaries [B, T] of every m-th token."""
        return drawn & (drawn.cumsum(-1) % self.apart == self._draw_places(drawn))

    def _draw_places(self, drawn: Tensor) -> Tensor:
        """Draw the first token of each row that is left out: [B, 1], counted from 0 to ``apart - 1``."""
        shape = (self._rows_of_all(len(drawn)), 1)
        places = torch.randint(self.apart, shape, generator=self.generator, device=drawn.device)
        return places[self._own_rows(len(drawn))]

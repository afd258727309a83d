"""Advantages over a second row of each text that runs forward only: independent, coupled or antithetic."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.functional.baselines import leave_one_out
from rltok_rl.functional.policy import boundary_logits
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read, under_next
from rltok_rl.objectives.trials import Trials, below_one, drawn_boundaries
from rltok_rl.utils import check_count

Coupling = Literal["independent", "blocks", "antithetic"]
_COUPLINGS = get_args(Coupling)


class SiblingTrials(Trials):
    """Advantages over a second row of each text, which runs forward only: the language model does not learn from it.

        A_t = c_t [(G_t - b_t) - (G'_t - b_t) (a_t - E[a_t | a'_t]) / (a_t - p_t)]

    a' are the decisions of the second row and G' its returns; b_t is the mean of the other rows' returns. The factor
    removes the dependence of a_t on a'_t, so that the expected gradient is exact for gamma 1, with any coupling and
    with lags:

    - ``independent``: separate random numbers. The factor and c_t are 1, and b cancels.
    - ``blocks``: separate random numbers in every other block of ``span`` bytes, those of the row elsewhere, so that
      the two differ locally. In blocks with separate numbers the factor is 1 and c_t is 2, elsewhere c_t is 0.
    - ``antithetic``: 1 - u where the row has u. Then E[a | a' = 1] = max(0, p + p' - 1) / p', and c_t is 1. At least
      two rows must have trials. :class:`~rltok_rl.objectives.disarm.DisARM` has less variance, and is biased with lags.

    Two rows of a text in a batch (``baseline=group_mean``) have the first form, but train the language model twice on
    the same text.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        coupling: what the random numbers of the second row share with those of the first.
        span: bytes per block.
        **options: of :class:`~rltok_rl.objectives.trials.Trials`.
    """

    def __init__(
        self,
        model: UNet,
        *,
        gamma: float,
        coupling: Coupling = "independent",
        span: Annotated[int, "[1, 1e6]"] = 16,
        **options: Any,
    ) -> None:
        super().__init__(model, gamma=gamma, **options)
        if coupling not in _COUPLINGS:
            raise ValueError(f"coupling must be one of {list(_COUPLINGS)}, got {coupling!r}")
        self.coupling, self.span = coupling, check_count("span", span)

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        forced, logits = read(rollout, "forced"), read(rollout, "logits")
        uniforms, scale = self._couple(rollout)
        boundaries, gained = self._run_second_row(rollout, uniforms)
        advantages = discounted_return(gained, self.gamma)  # G - G'
        if self.coupling == "antithetic":
            factor = self._factor(rollout, boundaries)
            advantages = (1 - factor) * self._relative_returns(rollout) + factor * advantages
        return (scale * advantages).to(logits.dtype).masked_fill(forced, 0.0)

    def _couple(self, rollout: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Return random numbers of the second row and c_t, [B, T] each."""
        logits = read(rollout, "logits")
        if self.coupling == "independent":
            return self._uniforms(logits), torch.ones_like(logits)
        uniforms = self._random_numbers(rollout)
        if self.coupling == "antithetic":
            return below_one(1 - uniforms), torch.ones_like(logits)
        block = torch.arange(logits.shape[1], device=logits.device) // self.span
        separate = block % 2 == (self._uniforms(logits[:, :1]) < 0.5).long()
        return torch.where(separate, self._uniforms(logits), uniforms), 2.0 * separate

    def _relative_returns(self, rollout: TensorDictBase) -> Tensor:
        """Return G_t - b_t, [B, T]."""
        if self._rows_of_all(len(rollout)) < 2:
            raise ValueError(
                f"every must leave at least two rows with trials for coupling='antithetic', got {self.every} for "
                f"{self.every} rows"
            )
        mask = self._real(rollout)
        returns = discounted_return(read(rollout, under_next(self.tensor_keys.reward)), self.gamma, mask=mask)
        return leave_one_out(returns, mask=mask, process_group=self.process_group)

    def _factor(self, rollout: TensorDictBase, boundaries: Tensor) -> Tensor:
        """Return (a_t - E[a_t | a'_t]) / (a_t - p_t) [B, T] for antithetic ``boundaries``."""
        states, rates = self._states_and_rates(rollout)
        base, lags = self.model.boundary_terms(states, target_rate=rates)
        chance = boundary_logits(base, lags, boundaries, cap=self.model.boundary_cap).sigmoid()  # p'
        probs = read(rollout, "logits").sigmoid()
        both = F.relu(probs + chance - 1)
        expected = torch.where(boundaries, both / chance, (probs - both) / (1 - chance))
        decided = drawn_boundaries(rollout).to(probs)
        certain = decided == probs  # rounded: the gradient of such a decision is 0
        return torch.where(certain, 1.0, (decided - expected) / (decided - probs))

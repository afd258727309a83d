"""Local flips while the policy is undecided, returns otherwise."""

from __future__ import annotations

import math
from typing import Annotated, Any

from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.policy import boundary_entropy
from rltok_rl.functional.reduction import masked_mean
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.flips import LocalFlips
from rltok_rl.objectives.time_last import View
from rltok_rl.ranges import check_number


@register_value_estimator("budgeted_flips", default_kwargs={"gamma": 0.99})
class BudgetedFlips(LocalFlips):
    """Local flips in some rows while the policy is undecided, registered as ``"budgeted_flips"``.

        A_t = k [row drawn] A^flips_t    if the mean entropy of the batch before was at least ``settled``, k = every
        A_t = baseline(G)_t              otherwise

    Flips measure a decision with far less noise than a return does, but every flipped row costs a forward pass. A
    settled policy learns little from either, so that returns, which cost nothing, take over; flips come back if its
    entropy rises. The batch before decides, because a choice by the batch itself would depend on its decisions. Both
    estimators have their own bias: of flips, that of ``span`` and of neighbouring flips; of returns, that of gamma.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        settled: mean entropy of free decisions, in nats, below which the next batch has no flips.
        num_flips, every: as for :class:`~rltok_rl.objectives.flips.LocalFlips`, with other defaults.
        **options: of :class:`~rltok_rl.objectives.flips.LocalFlips`, and ``baseline`` with its options.
    """

    uses_baseline = True

    def __init__(
        self,
        model: UNet,
        *,
        gamma: float,
        settled: Annotated[float, "[0, inf)"] = 0.1,
        num_flips: Annotated[int, "[1, 1000]"] = 2,
        every: Annotated[int, "[1, 1e6]"] = 4,
        **options: Any,
    ) -> None:
        super().__init__(model, gamma=gamma, num_flips=num_flips, every=every, **options)
        self.settled = check_number("settled", settled, "[0, inf)")
        self._entropy: Tensor | float = math.inf

    @property
    def entropy(self) -> float:
        """Mean entropy of the last batch's free decisions, part of the state; infinite before the first batch."""
        return float(self._entropy)

    @entropy.setter
    def entropy(self, value: float) -> None:
        self._entropy = check_number("entropy", value, "[0, inf]")

    def get_extra_state(self) -> dict[str, float]:
        """Return the non-tensor state."""
        return {**super().get_extra_state(), "entropy": self.entropy}

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        self.ran_trials = self.entropy >= self.settled
        self._entropy = self._mean_entropy(view)
        if self.ran_trials:
            return super()._advantages(returns, view)
        return ReturnEstimator._advantages(self, returns, view)

    def _mean_entropy(self, view: View) -> Tensor:
        """Return the mean entropy of all processes' free decisions, so that all decide alike."""
        logits, forced = view.read("logits"), view.read("forced").bool()
        free = ~forced if view.mask is None else view.mask & ~forced
        return masked_mean(boundary_entropy(logits.detach(), forced=forced), free, process_group=self.process_group)

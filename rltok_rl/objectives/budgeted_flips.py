"""Local flips while the policy is undecided, returns afterwards."""

from __future__ import annotations

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
    """Local flips in some rows until the policy has settled, registered as ``"budgeted_flips"``.

        A_t = every A^flips_t [t in a drawn row]    while mean_t H(a_t) >= settled
        A_t = baseline(G)_t                         otherwise

    Flips measure a decision with far less noise than a return does, but every flipped row costs a forward pass. A
    policy that has settled learns little from either, so that returns, which cost nothing, take over. Both have the
    same expected gradient, up to the bias of ``span``.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        settled: mean entropy of free decisions, in nats, below which a batch has no flips.
        num_flips: as for :class:`~rltok_rl.objectives.flips.LocalFlips`, as are ``span``, ``every`` and the rest.
        every: flip decisions of one row in every so many.
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
        self.tried = True
        """Whether the last batch had flips, whose FLOPs a trainer counts."""

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        self.tried = self._mean_entropy(view) >= self.settled
        return super()._advantages(returns, view) if self.tried else ReturnEstimator._advantages(self, returns, view)

    def _mean_entropy(self, view: View) -> float:
        """Of the free decisions of all processes, which therefore agree; a GPU is waited for."""
        logits, forced = view.read("logits"), view.read("forced").bool()
        free = ~forced if view.mask is None else view.mask & ~forced
        entropy = boundary_entropy(logits.detach(), forced=forced)
        return float(masked_mean(entropy, free, process_group=self.process_group))

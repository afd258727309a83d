"""Returns whose gradient has the same size for decided and undecided positions."""

from __future__ import annotations

from typing import Annotated, Any

from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.policy_gradient import natural_advantage
from rltok_rl.objectives.base import under_next
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View
from rltok_rl.ranges import check_number


@register_value_estimator("natural_gradient", default_kwargs={"gamma": 0.99})
class NaturalGradient(ReturnEstimator):
    """Discounted returns minus a baseline, over the information of the logit, registered as ``"natural_gradient"``.

        A_t = baseline(G)_t (1/4) / max(p_t (1 - p_t), floor)

    See :func:`~rltok_rl.functional.policy_gradient.natural_advantage`. The rollout must have the policy's ``logits``.

    Args:
        gamma: discount in [0, 1].
        floor: least p (1 - p) to divide by; with 0.25 these are plain returns.
        **options: of :class:`~rltok_rl.objectives.estimators.ReturnEstimator`.
    """

    uses_baseline = True

    def __init__(self, *, gamma: float, floor: Annotated[float, "(0, 0.25]"] = 0.05, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        self.floor = check_number("floor", floor, "(0, 0.25]")

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards, ends and logits."""
        keys = self.tensor_keys  # a property of super() breaks the graph of torch.compile
        return [under_next(keys.reward), under_next(keys.done), "logits"]

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        advantages = super()._advantages(returns, view)
        return natural_advantage(advantages, view.read("logits"), floor=self.floor, mask=view.mask)

"""Returns whose gradient has the same size for decided and undecided positions."""

from __future__ import annotations

from typing import Annotated, Any

from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View
from rltok_rl.ranges import check_number

_UNDECIDED = 0.25  # p (1 - p) at p = 1/2


class NaturalGradient(ReturnEstimator):
    """Discounted returns minus a baseline, divided by the Fisher information of the boundary's logit.

        A_t = baseline(G)_t (1/4) / max(p_t (1 - p_t), floor)

    The policy gradient of a logit is the effect of its decision times p (1 - p), which vanishes where the policy has
    almost decided; this one is a quarter of the effect wherever p (1 - p) is at least ``floor``, and the usual gradient
    where p = 1/2. It is the natural gradient (Kakade 2001) of each logit by itself: the joint information of weights,
    which logits share, is not inverted.

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
        """Rewards and logits."""
        return [*super().in_keys, "logits"]

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        probs = view.read("logits").detach().sigmoid()
        scale = _UNDECIDED / (probs * (1 - probs)).clamp(min=self.floor)
        return super()._advantages(returns, view) * scale.to(returns.dtype)

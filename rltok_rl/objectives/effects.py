"""Advantages from a linear regression of decisions' effects."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.functional.linear_effect import EffectSums, linear_effect
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View


@register_value_estimator("linear_effect", default_kwargs={"gamma": 0.9})
class LinearEffect(ReturnEstimator):
    """What a boundary changes, regressed on the policy's input over many batches, registered as ``"linear_effect"``.

    Features are a constant, the encoder's state and the last boundaries, which the policy reads too. See
    :func:`~rltok_rl.functional.linear_effect.linear_effect`; its returns have the baseline subtracted. The memory
    grows in training mode, by one batch per call, and is part of the estimator's state.

    Args:
        model: the U-Net of the rollout, for the sizes of its policy's input.
        gamma: discount in [0, 1].
        decay: weight of earlier batches, for each batch since.
        ridge: penalty of the regression, relative to its normal equations.
        **options: of :class:`~rltok_rl.objectives.estimators.ReturnEstimator`.
    """

    uses_baseline = True
    squares: Tensor
    products: Tensor

    def __init__(self, model: UNet, *, gamma: float, decay: float = 0.98, ridge: float = 0.01, **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        self.decay, self.ridge, self.num_lags = decay, ridge, model.config.num_lags
        for name, value in EffectSums.empty(1 + model.config.width + self.num_lags)._asdict().items():
            self.register_buffer(name, value)

    @property
    def in_keys(self) -> list[NestedKey]:
        """Rewards, decisions, and the policy's input."""
        return [*super().in_keys, "action", "logits", "forced", "encoder_state"]

    def flops(self, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
        """Return the FLOPs of the regression's sums; solving it once per update is not counted."""
        width = len(self.products)
        return 2.0 * width * (width + 2) * num_bytes

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        returns = super()._advantages(returns, view)
        forced = view.read("forced")
        drawn, free = view.read("action").bool() | forced, ~forced
        free = free if view.mask is None else free & view.mask
        earlier = [F.pad(drawn, (lag, 0))[..., : drawn.shape[-1]] for lag in range(1, self.num_lags + 1)]
        one = torch.ones_like(returns)
        features = torch.cat((view.read_features("encoder_state"), torch.stack((one, *earlier), -1)), -1)
        probs, sums = view.read("logits").sigmoid(), EffectSums(self.squares, self.products)
        options: dict[str, Any] = {"decay": self.decay, "ridge": self.ridge, "process_group": self.process_group}
        advantages, sums = linear_effect(returns, features, drawn, probs, sums, mask=free, **options)
        if self.training:
            self.squares.copy_(sums.squares)
            self.products.copy_(sums.products)
        return advantages

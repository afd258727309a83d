"""Local flips with a regression that predicts their effects."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torchrl.objectives.utils import register_value_estimator

from rltok_rl.models.unet import UNet
from rltok_rl.objectives.budgeted_flips import BudgetedFlips
from rltok_rl.objectives.time_last import View
from rltok_rl.ranges import check_number

NUM_LAGS = 8
"""Earlier boundaries among the regressors."""
RIDGE = 1e-2
"""Penalty of the regression, relative to the mean square of each regressor."""


@register_value_estimator("doubly_robust_flips", default_kwargs={"gamma": 0.99})
class DoublyRobustFlips(BudgetedFlips):
    """Local flips in some rows, and predictions of their effects in all, registered as ``"doubly_robust_flips"``.

        A_t = pi(a_t) s_t d(z_t) + k [row drawn] pi(a_t) / (n q_t) [t flipped] (D_t - s_t d(z_t))

    D_t is the measured effect of the rollout's decision, s_t is 1 where that is a boundary and -1 elsewhere, and d(z_t)
    predicts the effect of a boundary. Predictions serve every byte, measured effects correct them where they were
    measured: the expected gradient is that of :class:`~rltok_rl.objectives.budgeted_flips.BudgetedFlips`, whatever d
    predicts. d is a ridge regression on the encoder's state, the last eight boundaries and the distance of the last
    one, fitted to the effects of earlier batches, so that it does not depend on the batch that it judges.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        memory: share of earlier effects that is kept per batch.
        **options: of :class:`~rltok_rl.objectives.budgeted_flips.BudgetedFlips`.

    Reference: doubly robust off-policy evaluation, Dudik et al. 2011; Jiang and Li 2016.
    """

    gram: Tensor
    moment: Tensor

    def __init__(self, model: UNet, *, gamma: float, memory: Annotated[float, "[0, 1)"] = 0.98, **options: Any) -> None:
        super().__init__(model, gamma=gamma, **options)
        self.memory = check_number("memory", memory, "[0, 1)")
        size = model.config.width + 2 * NUM_LAGS + 2
        weight = model.embedding.weight
        self.register_buffer("gram", torch.zeros(size, size, dtype=torch.float64, device=weight.device))
        self.register_buffer("moment", torch.zeros(size, dtype=torch.float64, device=weight.device))

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        if not self._begin(view):
            return self._baseline_advantages(returns, view)
        rollout = view.rollout
        rows = self._drawn_rows(len(returns), returns.device)
        regressors = _regressors(view)  # [B, T, F]
        slopes = self._slopes()
        gained = (regressors.double() @ slopes).to(returns.dtype)  # d, [B, T]
        drawn, forced = view.read("action").bool(), view.read("forced").bool()
        probs = view.read("logits").sigmoid()
        sign = torch.where(drawn, 1.0, -1.0)
        advantages = torch.where(drawn, probs, 1 - probs) * sign * gained
        advantages = advantages.masked_fill(forced, 0.0).to(returns.dtype)
        flips = self._flip(rollout[rows])
        expected = (sign * gained)[rows].gather(1, flips.where)
        corrections = self.every * flips.advantages(expected).to(returns.dtype)
        used = regressors[rows].gather(1, flips.where.unsqueeze(-1).expand(-1, -1, regressors.shape[-1]))
        self._fit(used, sign[rows].gather(1, flips.where) * flips.effect, flips.weight > 0)
        return advantages.index_add(0, rows, corrections)

    def _slopes(self) -> Tensor:
        scale = self.gram.diagonal()
        penalty = torch.diag_embed(RIDGE * scale + 1e-12)
        return torch.linalg.solve(self.gram + penalty, self.moment)

    def _fit(self, regressors: Tensor, effects: Tensor, known: Tensor) -> None:
        """Forget a share of what was learned before, and add effects [B, F] with their regressors [B, F, size]."""
        z = (regressors * known.unsqueeze(-1)).double().flatten(0, 1)
        gram, moment = z.mT @ z, z.mT @ effects.double().flatten()
        if self.process_group is not None:
            dist.all_reduce(gram, group=self.process_group)
            dist.all_reduce(moment, group=self.process_group)
        self.gram.mul_(self.memory).add_(gram)
        self.moment.mul_(self.memory).add_(moment)


def _regressors(view: View) -> Tensor:
    """A constant, the encoder's state, the last boundaries, and the distance of the last one: [B, T, F]."""
    states = view.read_features("encoder_state")
    drawn = (view.read("action").bool() | view.read("forced").bool()).to(states.dtype)
    length = drawn.shape[-1]
    lags = F.pad(drawn, (NUM_LAGS, 0)).unfold(-1, NUM_LAGS, 1)[..., :length, :]  # [B, T, lags], before t
    place = torch.arange(length, device=drawn.device)
    last = torch.where(drawn.bool(), place, -1).cummax(-1).values
    before = F.pad(last, (1, 0), value=-1)[..., :length]
    distance = (place - before).clamp(max=2**NUM_LAGS).log2().floor().long()  # 0: one byte, 1: two or three, ...
    apart = F.one_hot(distance, NUM_LAGS + 1).to(states.dtype)
    return torch.cat((torch.ones_like(drawn).unsqueeze(-1), states, lags, apart), -1)

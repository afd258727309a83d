"""Local flips with a regression that predicts their effects at every byte."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read
from rltok_rl.objectives.flips import LocalFlips
from rltok_rl.objectives.time_last import View
from rltok_rl.ranges import check_number

_NUM_LAGS = 8  # earlier boundaries among the regressors
_RIDGE = 1e-2  # penalty, relative to the mean square of each regressor


class DoublyRobustFlips(LocalFlips):
    """Local flips in some rows, and predictions of their effects in all.

        A_t = pi(a_t) s_t d(z_t) + k [row drawn] pi(a_t) / (n q_t) [t flipped] (D_t - s_t d(z_t))

    D_t is the measured effect of the rollout's decision, s_t is 1 where that is a boundary and -1 elsewhere, and d(z_t)
    predicts the effect of a boundary. Predictions serve every byte, measured effects correct them where they were
    measured: the expected gradient is that of :class:`~rltok_rl.objectives.flips.LocalFlips`, whatever d predicts. d is
    a ridge regression on the encoder's state, the last eight boundaries and the distance of the last one. It is fitted
    to the effects of earlier batches, so that it does not depend on the batch that it judges.

    Reference: doubly robust off-policy evaluation, Dudik et al. 2011; Jiang and Li 2016.

    Args:
        model: the U-Net of the rollout.
        gamma: discount in [0, 1].
        memory: share of earlier effects that is kept per batch.
        **options: of :class:`~rltok_rl.objectives.flips.LocalFlips`.
    """

    gram: Tensor
    moment: Tensor

    def __init__(self, model: UNet, *, gamma: float, memory: Annotated[float, "[0, 1)"] = 0.98, **options: Any) -> None:
        super().__init__(model, gamma=gamma, **options)
        self.memory = check_number("memory", memory, "[0, 1)")
        size, device = model.config.width + 2 * _NUM_LAGS + 2, model.embedding.weight.device
        self.register_buffer("gram", torch.zeros(size, size, dtype=torch.float64, device=device))
        self.register_buffer("moment", torch.zeros(size, dtype=torch.float64, device=device))

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        predicted = self._predicted(view.rollout)  # before this batch is learned from
        measured = super()._advantages(returns, view)
        if not self.ran_trials:
            return measured
        chance = self._chance(view.rollout)
        return measured + (chance * predicted).to(measured.dtype).masked_fill(read(view.rollout, "forced"), 0.0)

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        where, weight, effect = self._flip(rollout)
        expected = self._predicted(rollout).gather(1, where)
        if self.training:
            self._fit(_regressors(rollout), _sign(rollout), where, effect, weight > 0)
        none = torch.zeros_like(read(rollout, "logits"))
        return none.scatter_add_(1, where, (weight * (effect - expected)).to(none.dtype))

    def _predicted(self, rollout: TensorDictBase) -> Tensor:
        """Return s_t d(z_t), [B, T]."""
        penalty = torch.diag_embed(_RIDGE * self.gram.diagonal() + 1e-12)
        slopes = torch.linalg.solve(self.gram + penalty, self.moment)
        return _sign(rollout) * (_regressors(rollout).double() @ slopes)

    def _fit(self, regressors: Tensor, sign: Tensor, where: Tensor, effect: Tensor, known: Tensor) -> None:
        """Forget a share of what was learned before, and learn the effects [B, F] that are known."""
        used = regressors.gather(1, where.unsqueeze(-1).expand(-1, -1, regressors.shape[-1]))
        used = (used * known.unsqueeze(-1)).double().flatten(0, 1)
        learned = used.mT @ used, used.mT @ (sign.gather(1, where) * effect).double().flatten()
        for kept, new in zip((self.gram, self.moment), learned, strict=True):
            if self.process_group is not None:
                dist.all_reduce(new, group=self.process_group)
            kept.mul_(self.memory).add_(new)

    @staticmethod
    def _chance(rollout: TensorDictBase) -> Tensor:
        """Return pi(a_t), [B, T]."""
        probs = read(rollout, "logits").sigmoid()
        return torch.where(read(rollout, "action").bool(), probs, 1 - probs)


def _sign(rollout: TensorDictBase) -> Tensor:
    """Return 1 where the rollout has a boundary and -1 elsewhere, [B, T]."""
    return torch.where(read(rollout, "action").bool() | read(rollout, "forced"), 1.0, -1.0)


def _regressors(rollout: TensorDictBase) -> Tensor:
    """A constant, the encoder's state, the last boundaries, and the distance of the last one: [B, T, F]."""
    states = rollout["encoder_state"]
    drawn = (read(rollout, "action").bool() | read(rollout, "forced")).to(states.dtype)
    length = drawn.shape[-1]
    lags = F.pad(drawn, (_NUM_LAGS, 0)).unfold(-1, _NUM_LAGS, 1)[..., :length, :]  # [B, T, lags], before t
    place = torch.arange(length, device=drawn.device)
    last = torch.where(drawn.bool(), place, -1).cummax(-1).values
    before = F.pad(last, (1, 0), value=-1)[..., :length]
    distance = (place - before).clamp(max=2**_NUM_LAGS).log2().floor().long()  # 0: one byte, 1: two or three, ...
    apart = F.one_hot(distance, _NUM_LAGS + 1).to(states.dtype)
    return torch.cat((torch.ones_like(drawn).unsqueeze(-1), states, lags, apart), -1)

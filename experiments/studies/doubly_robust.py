"""Local flips with a regression that predicts their effects at every byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.functional.policy import recent_boundaries
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read
from rltok_rl.objectives.flips import LocalFlips
from rltok_rl.objectives.time_last import View, split_rows
from rltok_rl.objectives.trials import drawn_boundaries
from rltok_rl.ranges import check_number

_NUM_LAGS, _NUM_DISTANCES = 8, 9  # earlier boundaries, and classes of distances, among the regressors
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
        size, device = 1 + model.config.width + _NUM_LAGS + _NUM_DISTANCES, model.embedding.weight.device
        self.register_buffer("gram", torch.zeros(size, size, dtype=torch.float64, device=device))
        self.register_buffer("moment", torch.zeros(size, dtype=torch.float64, device=device))

    def flops(self, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
        """Return the FLOPs of the extra rows, of predictions, and of their fit to what was measured."""
        size, measured = len(self.moment), self.num_flips / (self.span * self.every)
        own = 2.0 * size * (1 + 1 / self.every) + 2.0 * size**2 * measured
        return super().flops(num_bytes, num_tokens, num_second=num_second) + own * num_bytes

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        slopes = self._slopes()  # before this batch is learned from
        measured = super()._advantages(returns, view)
        if not self.ran_trials:
            return measured
        rollout = self._without_padding(view)
        probs, drawn = read(rollout, "logits").sigmoid(), drawn_boundaries(rollout)
        predicted = torch.where(drawn, probs, 1 - probs) * self._effects(rollout, slopes)
        return measured + predicted.to(measured.dtype).masked_fill(read(rollout, "forced"), 0.0)

    def _trial_advantages(self, rollout: TensorDictBase) -> Tensor:
        where, weight, effect = self._measure_flips(rollout)
        sign, read = _sign(rollout).gather(1, where), self._regressors_at(rollout, where)
        expected = sign * (read.double() @ self._slopes())
        if self.training:
            self._fit(read, sign * effect, weight > 0)
        return self._sum_by_byte(rollout, where, weight * (effect - expected))

    def _effects(self, rollout: TensorDictBase, slopes: Tensor) -> Tensor:
        """Return the predicted effects of a rollout's decisions, s_t d(z_t), [B, T], ``rows_per_pass`` at a time."""
        return torch.cat([_sign(rows) * (_regressors(rows).double() @ slopes) for rows in self._parts(rollout)])

    def _regressors_at(self, rollout: TensorDictBase, where: Tensor) -> Tensor:
        """Return the regressors at the flipped decisions ``where`` [B, F], [B, F, size]."""
        parts = self._parts(rollout)
        places = where.unsqueeze(-1).expand(-1, -1, len(self.moment)).split([len(rows) for rows in parts])
        return torch.cat([_regressors(rows).gather(1, at) for rows, at in zip(parts, places, strict=True)])

    def _parts(self, rollout: TensorDictBase) -> Sequence[TensorDictBase]:
        return split_rows(rollout, self.rows_per_pass, 1)

    def _slopes(self) -> Tensor:
        gram, moment = self.gram.double(), self.moment.double()
        return torch.linalg.solve(gram + torch.diag_embed(_RIDGE * gram.diagonal() + 1e-12), moment)

    def _fit(self, read: Tensor, effect: Tensor, measured: Tensor) -> None:
        """Forget a share of what was learned before, and learn the ``measured`` effects of boundaries [B, F]."""
        used = (read * measured.unsqueeze(-1)).double().flatten(0, 1)
        sums = used.mT @ used, used.mT @ effect.double().flatten()
        for kept, new in zip((self.gram, self.moment), sums, strict=True):
            if self.process_group is not None:
                dist.all_reduce(new, group=self.process_group)
            kept.mul_(self.memory).add_(new)


def _sign(rollout: TensorDictBase) -> Tensor:
    """Return 1 where the rollout has a boundary and -1 elsewhere, [B, T]."""
    return torch.where(drawn_boundaries(rollout), 1.0, -1.0)


def _regressors(rollout: TensorDictBase) -> Tensor:
    """Return a constant, the encoder's state, the last boundaries, and the distance of the last one: [B, T, F]."""
    states, drawn = rollout["encoder_state"], drawn_boundaries(rollout)
    place = torch.arange(drawn.shape[-1], device=drawn.device)
    last = F.pad(torch.where(drawn, place, -1).cummax(-1).values, (1, -1), value=-1)  # before each byte
    distance = (place - last).clamp(max=2 ** (_NUM_DISTANCES - 1)).log2().floor().long()  # 0: one, 1: two or three, ...
    parts = (torch.ones_like(states[..., :1]), states, recent_boundaries(drawn, _NUM_LAGS))
    return torch.cat((*parts, F.one_hot(distance, _NUM_DISTANCES)), -1).to(states.dtype)

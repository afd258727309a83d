"""Returns in units of their standard deviation at each position, or in each row."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rltok_rl.functional.baselines import batch_mean
from rltok_rl.functional.reduction import sum_and_count
from rltok_rl.objectives.estimators import ReturnEstimator
from rltok_rl.objectives.time_last import View

Scale = Literal["position", "row"]
_SCALES = get_args(Scale)


class ScaledReturn(ReturnEstimator):
    """Returns minus the batch mean, over their standard deviation.

        A_{t,b} = C_{t,b} / (s + eps),    C_{t,b} = G_{t,b} - mean_b' G_{t,b'}

    s^2 is the mean of C^2 over the rows of position t (``position``), or over the positions of row b (``row``). The
    baseline :func:`~rltok_rl.functional.baselines.z_score` has one scale for the whole batch instead.

    Args:
        gamma: discount in [0, 1].
        scale: group of returns with one scale, those of a position or those of a row.
        **options: of :class:`~rltok_rl.objectives.estimators.ReturnEstimator`; it takes no baseline.
    """

    def __init__(self, *, gamma: float, scale: Scale = "position", **options: Any) -> None:
        super().__init__(gamma=gamma, **options)
        if scale not in _SCALES:
            raise ValueError(f"scale must be one of {list(_SCALES)}, got {scale!r}")
        self.scale = scale

    def _advantages(self, returns: Tensor, view: View) -> Tensor:
        centred = batch_mean(returns, mask=view.mask, process_group=self.process_group)
        by_position = self.scale == "position"
        rows = tuple(range(returns.dim() - 1))
        total, count = sum_and_count(
            centred.square(),
            view.mask,
            dim=rows if by_position else -1,
            process_group=self.process_group if by_position else None,
        )
        variance = (total / count.clamp(min=1)).to(returns.dtype)
        return centred / (variance.sqrt() + torch.finfo(returns.dtype).eps)

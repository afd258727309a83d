"""Rate control as a loss term."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.functional.rate import (
    RATE_CONTROLS,
    Controller,
    check_target,
    control_per_rows,
    controlled_logits,
    controller_update,
    priced_boundaries,
)
from rltok_rl.functional.reduction import Mask
from rltok_rl.objectives.base import StepLoss, read, with_last_byte
from rltok_rl.ranges import check_number
from rltok_rl.utils import check_count

CONTROLLERS = {"pi": (3.0, 0.005), "price": (15.0, 0.02)}
"""Controls with memory and their gains (proportional, integral): proportional-integral controllers of the mean logit
and of a price per boundary. The proportional part keeps the integral from swinging around the target."""
LARGEST_ERROR = 0.02
"""Largest error that one call adds to the integral."""
RELEASED_LOGIT = 100.0  # of the ends, in the authors' released code
ENDS = ("excluded", "window")
"""How forced decisions and the end of a row count in the rate."""


class RateLoss(StepLoss):
    """Keep the rate of boundaries at a target.

    Writes ``loss_rate`` and the metrics ``rate`` (boundaries per free decision), ``mean_prob``, and ``push``, the
    coefficient or price of a control with memory. If the rollout has ``target_rate`` (models with ``rate_embedding``),
    it replaces ``target`` step by step; only ``"logit_pressure"`` can follow several targets.

    Args:
        target: boundaries per byte, in (0, 1).
        control: a key of :data:`~rltok_rl.functional.rate.RATE_CONTROLS`, ``"pi"`` or ``"price"``.
        ends: ``"excluded"`` ignores forced decisions. ``"window"`` counts all T + 1 bytes of a row's window: forced
            decisions and the last byte, which is read and predicts nothing, have probability 1 and logit 100. The free
            rate then settles below the target, by about ``2 (1 - target) / T``. The authors' released code does that,
            with one text per row.
        rows_per_mean: take the mean probability over groups of so many consecutive rows, and average the losses of all
            groups; None is one group of all rows of all processes. Not for controls with memory.
        proportional: gain of ``"pi"`` and ``"price"`` on the error; None is that of :data:`CONTROLLERS`.
        integral: their gain on the sum of errors, which is in a buffer and grows with every call in training mode.
        **options: of :class:`~rltok_rl.objectives.base.StepLoss`; ``reduction`` must be ``"mean"``.
    """

    @dataclass
    class _AcceptedKeys:
        logits: NestedKey = "logits"
        action: NestedKey = "action"
        forced: NestedKey = "forced"
        target_rate: NestedKey = "target_rate"

    optional_keys = ("target_rate",)
    out_keys = ["loss_rate", "rate", "mean_prob", "push"]
    integral: Tensor
    push: Tensor

    def __init__(
        self,
        target: float,
        *,
        control: str = "logit_pressure",
        ends: Literal["excluded", "window"] = "excluded",
        rows_per_mean: int | None = None,
        proportional: Annotated[float, "[0, 1e6]"] | None = None,
        integral: Annotated[float, "[0, 1e6]"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        allowed = [*RATE_CONTROLS, *CONTROLLERS]
        if control not in allowed:
            raise ValueError(f"control must be one of {allowed}, got {control!r}")
        if ends not in ENDS:
            raise ValueError(f"ends must be one of {list(ENDS)}, got {ends!r}")
        if rows_per_mean is not None:
            check_count("rows_per_mean", rows_per_mean)
            if control in CONTROLLERS:
                raise ValueError(f"rows_per_mean must be None for {control!r}, which has a memory, got {rows_per_mean}")
        self.rows_per_mean = rows_per_mean
        self.require_mean()
        self.target_rate, self.control, self.ends = check_target(target), control, ends
        for name, gain in (("proportional", proportional), ("integral", integral)):
            if gain is not None and control not in CONTROLLERS:
                raise ValueError(
                    f"{name} must be None unless control is one of {[*CONTROLLERS]}, got {gain} with {control!r}"
                )
            check_number(name, gain, "[0, 1e6]", optional=True)
        gains = CONTROLLERS.get(control, (0.0, 0.0))
        self.proportional = gains[0] if proportional is None else proportional
        self.integral_gain = gains[1] if integral is None else integral
        for name, value in zip(("integral", "push"), Controller.empty(), strict=True):
            self.register_buffer(name, value)

    def compute(self, tensordict: TensorDictBase) -> dict[str, Tensor]:
        """Compute the loss and its metrics."""
        keys = self.tensor_keys
        target: float | Tensor = self.target_rate
        logits, boundaries = read(tensordict, keys.logits), read(tensordict, keys.action).bool()
        mask = self.free_steps(tensordict)
        metrics = {
            "rate": self.metric(boundaries.to(logits.dtype), mask),
            "mean_prob": self.metric(logits.sigmoid(), mask),
        }
        if tensordict.get(keys.target_rate, None) is not None:
            target = read(tensordict, keys.target_rate)
            if self.control != "logit_pressure":
                raise ValueError(
                    f"control must be 'logit_pressure' if each text has its own target rate, got "
                    f"{self.control!r}; a rollout without 'target_rate' has one target for all"
                )
        if self.ends == "window":
            if tensordict.get(keys.forced, None) is not None:
                forced = read(tensordict, keys.forced)
                logits, boundaries = logits.masked_fill(forced, RELEASED_LOGIT), boundaries | forced
            mask = with_last_byte(self.steps(tensordict), boundaries)  # [*B, T + 1]
            logits, boundaries = F.pad(logits, (0, 1), value=RELEASED_LOGIT), F.pad(boundaries, (0, 1), value=True)
            target = torch.cat((target, target[..., :1]), -1) if isinstance(target, Tensor) else target
        if self.control in RATE_CONTROLS:
            control = RATE_CONTROLS[self.control]
            if self.rows_per_mean is not None:
                control = partial(control_per_rows, control=control, rows_per_mean=self.rows_per_mean)
            loss = control(logits, boundaries, target, mask=mask, process_group=self.process_group)
        else:
            loss = self._controlled(logits, mask)
        return {"loss_rate": loss, **metrics, "push": self.push.clone()}

    def _controlled(self, logits: Tensor, mask: Mask) -> Tensor:
        """The loss of a control with memory, which is updated first."""
        state, error = Controller(self.integral, self.push), self.metric(logits.sigmoid(), mask) - self.target_rate
        gains = {"proportional": self.proportional, "integral": self.integral_gain}
        state = controller_update(state, error, **gains, limit=LARGEST_ERROR)
        if self.training:
            self.integral.copy_(state.integral)
            self.push.copy_(state.coefficient)
        act = controlled_logits if self.control == "pi" else priced_boundaries
        return act(logits, state.coefficient, mask=mask, process_group=self.process_group)

"""Rate control as a loss term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from tensordict.utils import NestedKey
from torch import Tensor

from rltok_rl.functional.rate import (
    RATE_CONTROLS,
    Controller,
    check_target,
    controlled_logits,
    controller_update,
    priced_boundaries,
)
from rltok_rl.objectives.base import StepLoss, last_steps, read

CONTROLLERS = {"pi": (3.0, 0.005), "price": (15.0, 0.02)}
"""Controls that remember, and their gains (proportional, integral): a proportional-integral controller of the mean
logit, and of a price per boundary. The proportional part is what keeps an integral from swinging around the target."""
LARGEST_ERROR = 0.02
"""What a single call adds to the sum of errors at most."""
RELEASED_LOGIT = 100.0  # what the authors' released code assigns to the ends


class RateLoss(StepLoss):
    """Keep the rate of boundaries at a target.

    Writes ``loss_rate``, and the figures ``rate`` (boundaries per free decision), ``mean_prob``, and ``push``, the
    coefficient or price of a control that remembers.

    Where the rollout has targets of its own (``target_rate``, of models with ``rate_embedding``), each step's target is
    that one, and ``target`` is not read; only ``"logit_pressure"`` can follow several.

    Args:
        target: boundaries per byte, in (0, 1).
        control: a key of :data:`~rltok_rl.functional.rate.RATE_CONTROLS`, ``"pi"`` or ``"price"``.
        ends: ``"excluded"`` leaves forced decisions out. ``"released"`` counts them, and the last decision of each row,
            with probability 1 and logit 100, as the authors' released code does: the free rate then settles below
            the target, by about ``2 (1 - target) / T``.
        proportional: gain of ``"pi"`` and ``"price"`` on the error; None takes that of :data:`CONTROLLERS`.
        integral: their gain on the sum of errors. Their memory is in buffers and advances with every call in training
            mode.
        **options: of :class:`~rltok_rl.objectives.base.StepLoss`; ``reduction`` must be ``"mean"``: a rate belongs to
            a batch, not to a step.
    """

    @dataclass
    class _AcceptedKeys:
        """Keys of what is read."""

        logits: NestedKey = "logits"
        action: NestedKey = "action"
        forced: NestedKey = "forced"
        target_rate: NestedKey = "target_rate"

    default_keys = _AcceptedKeys
    tensor_keys: _AcceptedKeys
    out_keys = ["loss_rate", "rate", "mean_prob", "push"]
    integral: Tensor
    push: Tensor

    def __init__(
        self,
        target: float,
        *,
        control: str = "logit_pressure",
        ends: Literal["excluded", "released"] = "excluded",
        proportional: float | None = None,
        integral: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        allowed = [*RATE_CONTROLS, *CONTROLLERS]
        if control not in allowed:
            raise ValueError(f"control must be one of {allowed}, got {control!r}")
        if ends not in ("excluded", "released"):
            raise ValueError(f"ends must be one of ['excluded', 'released'], got {ends!r}")
        if self.reduction != "mean":
            raise ValueError(f"reduction must be 'mean': a rate belongs to a batch, got {self.reduction!r}")
        self.target_rate, self.control, self.ends = check_target(target), control, ends
        gains = CONTROLLERS.get(control, (0.0, 0.0))
        self.proportional = gains[0] if proportional is None else proportional
        self.integral_gain = gains[1] if integral is None else integral
        for name, value in zip(("integral", "push"), Controller.empty(), strict=True):
            self.register_buffer(name, value)

    @property
    def in_keys(self) -> list[NestedKey]:
        """Logits, decisions, and which of them were forced."""
        return [self.tensor_keys.logits, self.tensor_keys.action, self.tensor_keys.forced]

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A tensordict without batch dimension: the loss and its figures."""
        keys = self.tensor_keys
        logits, boundaries = read(tensordict, keys.logits), read(tensordict, keys.action).bool()
        free = self.free_steps(tensordict, keys.forced)
        figures = {
            "rate": self.figure(boundaries.to(logits.dtype), free),
            "mean_prob": self.figure(logits.sigmoid(), free),
        }
        mask = free
        if self.ends == "released":
            logits, boundaries, mask = self._with_ends(tensordict, logits, boundaries)
        target: Any = self.target_rate
        if tensordict.get(keys.target_rate, None) is not None:
            target = read(tensordict, keys.target_rate)
            if self.control != "logit_pressure":
                raise ValueError(
                    f"control must be 'logit_pressure' where each text has a target rate of its own, got "
                    f"{self.control!r}; a rollout without 'target_rate' has one target for all"
                )
        if self.control in RATE_CONTROLS:
            control = RATE_CONTROLS[self.control]
            loss = control(logits, boundaries, target, mask=mask, process_group=self.process_group)
        else:
            loss = self._remembering(logits, mask)
        return TensorDict({"loss_rate": loss, **figures, "push": self.push.clone()})

    def _remembering(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        error = self.figure(logits.sigmoid(), mask) - self.target_rate
        state = controller_update(
            Controller(self.integral, self.push),
            error,
            proportional=self.proportional,
            integral=self.integral_gain,
            limit=LARGEST_ERROR,
        )
        if self.training:
            self.integral.copy_(state.integral)
            self.push.copy_(state.coefficient)
        act = controlled_logits if self.control == "pi" else priced_boundaries
        return act(logits, state.coefficient, mask=mask, process_group=self.process_group)

    def _with_ends(
        self, tensordict: TensorDictBase, logits: Tensor, boundaries: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The ends of each row as the released code counts them."""
        real = self.steps(tensordict)
        ends = last_steps(real, boundaries)
        if tensordict.get(self.tensor_keys.forced, None) is not None:
            ends = ends | read(tensordict, self.tensor_keys.forced)
        return logits.masked_fill(ends, RELEASED_LOGIT), boundaries | ends, real

"""Alarms: signs in the metrics that training goes wrong, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rltok_rl.utils import check_count


class TrainingFailed(RuntimeError):
    """A loss, a gradient, a weight or a logit of the policy is not finite."""


@dataclass
class Alarms:
    """Checks of every update's metrics.

    A rate or an entropy out of bounds for ``patience`` updates in a row is reported once, until it has recovered.
    Losses and gradients that are not finite are an error.
    """

    target_rate: float | None = None
    """Boundaries per byte; None checks for rates near 0 and 1 only."""
    patience: int = 50
    least_entropy: float = 1e-3
    """Nats per decision below which a policy no longer explores."""
    _count: dict[str, int] = field(default_factory=dict)

    def check(self, metrics: Mapping[str, float], update: int) -> list[str]:
        """Return the warnings about ``loss``, ``grad_norm``, ``rate`` and ``entropy``, as far as they are there."""
        for name in ("loss", "grad_norm"):
            if not math.isfinite(metrics.get(name, 0.0)):
                remedy = (
                    "look at the reward, the estimator and the baseline, whose values must be finite"
                    if update == 1  # no step has been made yet
                    else "lower the learning rate, lengthen the warm-up, or train in float32; the last checkpoint is "
                    "from before"
                )
                raise TrainingFailed(f"{name} is {metrics[name]} at update {update}: {remedy}")
        warnings = []
        rate, entropy = metrics.get("rate"), metrics.get("entropy")
        if rate is not None:
            low = 0.01 if self.target_rate is None else 0.25 * self.target_rate
            high = 0.95 if self.target_rate is None else min(0.95, 3 * self.target_rate)
            if self.target_rate is not None and self.target_rate >= 0.95:  # of a rule, such as one token per byte
                high = math.inf
            if self._lasts("low", rate < low):
                warnings.append(f"boundaries have nearly vanished (rate {rate:.3f}): raise the rate loss's coefficient")
            if self._lasts("high", rate > high):
                warnings.append(
                    f"nearly every byte has a boundary (rate {rate:.3f}): raise the rate loss's coefficient, or use "
                    f"another rate control (rate=hinge, rate=price)"
                )
        if entropy is not None and self._lasts("entropy", entropy < self.least_entropy):
            warnings.append(
                f"the policy has stopped exploring (entropy {entropy:.1e} nats per decision): add an entropy bonus, "
                f"lower the policy's coefficient, or restart it from random boundaries"
            )
        return warnings

    def state_dict(self) -> dict[str, int]:
        """Return for how many updates in a row each metric has been out of bounds."""
        return dict(self._count)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue counting, so that a resumed run gives the same warnings."""
        self._count = {name: check_count(name, count, minimum=0) for name, count in state.items()}

    def _lasts(self, name: str, wrong: bool) -> bool:
        self._count[name] = self._count.get(name, 0) + 1 if wrong else 0
        return self._count[name] == self.patience

"""Signs that a training goes wrong, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


class TrainingFailed(RuntimeError):
    """Training cannot go on: a loss or a gradient is not a number."""


@dataclass
class Alarms:
    """Watches the figures of every update.

    A rate or an entropy has to be out of bounds for ``patience`` updates in a row before it is reported, and is
    reported again only after it has recovered. Losses that are not numbers stop the training at once.

    Args:
        target_rate: boundaries per byte that are wanted; None watches for 0 and 1 only.
        patience: updates in a row.
        least_entropy: nats per decision below which a policy no longer explores.
    """

    target_rate: float | None = None
    patience: int = 50
    least_entropy: float = 1e-3
    _count: dict[str, int] = field(default_factory=dict)

    def check(self, figures: Mapping[str, float], update: int) -> list[str]:
        """What is wrong after an update, in words; nothing most of the time.

        Args:
            figures: what the update reported; ``loss``, ``grad_norm``, ``rate`` and ``entropy`` are looked at.
            update: its number, for the message.
        """
        for name in ("loss", "grad_norm"):
            value = figures.get(name)
            if value is not None and not math.isfinite(value):
                raise TrainingFailed(
                    f"{name} is {value} at update {update}: lower the learning rate, lengthen the warm-up, or train in "
                    f"float32; the last checkpoint is from before"
                )
        return [text for name, wrong, text in self._conditions(figures) if self._lasting(name, wrong)]

    def state_dict(self) -> dict[str, int]:
        """For how many updates in a row each figure has been out of bounds."""
        return dict(self._count)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on counting, so that a training that resumes reports what one that was not interrupted does.

        Args:
            state: of :meth:`state_dict`.
        """
        self._count = dict(state)

    def _conditions(self, figures: Mapping[str, float]) -> list[tuple[str, bool, str]]:
        found = []
        rate, entropy = figures.get("rate"), figures.get("entropy")
        if rate is not None:
            low = 0.01 if self.target_rate is None else 0.25 * self.target_rate
            high = 0.95 if self.target_rate is None else min(0.95, 3 * self.target_rate)
            found.append(
                (
                    "low",
                    rate < low,
                    f"boundaries have nearly vanished (rate {rate:.3f}): raise the rate loss's coefficient",
                )
            )
            found.append(
                (
                    "high",
                    rate > high,
                    f"nearly every byte has a boundary (rate {rate:.3f}): raise the rate loss's coefficient, "
                    f"or hold it with another rate control (rate=hinge, rate=price)",
                )
            )
        if entropy is not None:
            found.append(
                (
                    "entropy",
                    entropy < self.least_entropy,
                    f"the policy has stopped exploring (entropy {entropy:.1e} nats per decision): add an entropy "
                    f"bonus, lower the policy's coefficient, or restart it from random boundaries",
                )
            )
        return found

    def _lasting(self, name: str, wrong: bool) -> bool:
        self._count[name] = self._count.get(name, 0) + 1 if wrong else 0
        return self._count[name] == self.patience

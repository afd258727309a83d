"""Signal, cost and bias of candidates on fresh batches, against an unbiased gradient of other batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rltok_rl.experiments.studies.candidates import make_candidate
from rltok_rl.experiments.studies.common import StepLines

from rltok_rl.data.windows import WindowSource
from rltok_rl.diagnostics.estimator_report import Candidate, collect_gradients, estimator_report
from rltok_rl.diagnostics.exact import TextRollouts
from rltok_rl.diagnostics.gradient_quality import Signal, signal_to_noise
from rltok_rl.models.unet import UNet

UNBIASED = "group_mean_4"
"""Candidate of the reference gradient, with gamma 1: discounts bias the gradient."""


@dataclass(frozen=True)
class GradientMeter:
    """Measures candidates for the policy gradient of a model on batches [``num_rows``, ``num_steps``] of a source."""

    model: UNet
    source: WindowSource
    num_rows: int
    num_steps: int
    seed: int = 0

    def rollouts(self, offset: int) -> TextRollouts:
        """Return rollouts of fresh windows; ``offset`` is added to the seed."""
        sizes: Any = {"num_rows": self.num_rows, "num_steps": self.num_steps}
        return TextRollouts(self.model, self.source, seed=self.seed + offset, **sizes)

    def reference(self, num_batches: int) -> Signal:
        """Measure the unbiased gradient: four rows per text, gamma 1."""
        unbiased = make_candidate(UNBIASED, 1.0, self.model, self.num_steps)
        progress = StepLines("reference gradient:", lines=20)
        gradients = collect_gradients(self.model, self.rollouts(1000), [unbiased], num_batches, progress=progress)
        return signal_to_noise(gradients[UNBIASED])

    def rate(self) -> float:
        """Return the boundaries per byte of one batch."""
        return float(self.rollouts(2000)(1)["action"].float().mean())

    def measure(
        self,
        candidates: Sequence[Candidate],
        reference: Signal,
        rate: float,
        *,
        num_batches: int,
        warm_up: int,
        label: str,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Measure candidates on ``num_batches``; those that learn get ``warm_up`` batches beforehand."""
        rows = estimator_report(
            self.model,
            self.rollouts(offset),
            candidates,
            num_batches=num_batches,
            warm_up=warm_up,
            num_rows=self.num_rows,
            num_steps=self.num_steps,
            rate=rate,
            reference=reference,
            progress=StepLines(f"{label}:", lines=20),
        )
        return [row.to_dict() for row in rows]

"""Boundaries where the next byte is uncertain: entropy spikes (Nawrot et al.) and thresholds (BLT).

Shapes: B rows, T bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from rltok_rl.agents.segmenters.gumbel import Fidelity, TrainedSpike
from rltok_rl.agents.segmenters.predictors import Predictor, PredictorName, make_predictor
from rltok_rl.agents.segmenters.segmenter import Segmenter, Segments, State, check_choice, check_rate, rate_or_default
from torch import Tensor

from rltok_rl.functional.boundary_rules import entropy_rise, entropy_spikes, never_twice, threshold_for_rate
from rltok_rl.models.unet import UNet
from rltok_rl.utils import check_count

DEFAULT_THRESHOLD = 1.335442066192627
"""BLT's threshold in nats, for its own entropy model."""
MARGIN = 1e-4
"""Smallest rise of a spike, in nats: entropies of repetitive text are equal up to rounding."""


class _EntropySegmenter(Segmenter):
    """Boundaries by a rule on the entropies of the last bytes."""

    coefficients: Mapping[str, float] = {"predictor": 1.0}
    _reach: int
    """Earlier entropies that the rule reads."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """Compute ``predictor``: the next-byte cost of a separate predictor, in nats."""
        cost = self.predictor.loss(byte_ids)
        return {} if cost is None else {"predictor": cost}

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        """Map entropies [*B, T] to boundaries and scores."""
        raise NotImplementedError

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        boundaries, scores = self._rule(self.predictor(states, byte_ids))
        return Segments(boundaries, scores=scores)

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"entropies": None, "memory": self.predictor.start(num_rows)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        memory: Any = state["memory"]
        entropies = self.predictor.step(states, byte_ids, state["position"], memory)[:, None]  # [B, 1]
        if state["entropies"] is not None:
            entropies = torch.cat((state["entropies"], entropies), 1)[:, -1 - self._reach :]
        boundaries, scores = self._rule(entropies)
        return Segments(boundaries[:, -1], scores=scores[:, -1]), {"entropies": entropies, "memory": memory}


class EntropySpike(_EntropySegmenter):
    """A boundary where the entropy exceeds each of the last ``lags``.

        a_t = [H_t > H_{t-j} + margin for j = 1 .. k]

    Args:
        lags: k.
        margin: smallest rise of a spike, in nats; 0 in the paper, where rounding decides between equals.

    Reference: https://arxiv.org/abs/2211.09761
    """

    def __init__(self, predictor: Predictor, *, lags: int = 2, margin: float = MARGIN) -> None:
        super().__init__(predictor)
        self.margin = margin
        self._reach = self.lags = check_count("lags", lags)

    @classmethod
    def from_model(
        cls,
        model: UNet,
        predictor: Literal["trained", "early_exit", "own"] = "trained",
        lags: int = 2,
        hidden: int = 2048,
        fidelity: Fidelity = "paper",
        window: int | None = None,
        num_layers: int | None = None,
    ) -> Segmenter:
        """Build it for a model; ``predictor="trained"`` is a :class:`TrainedSpike`."""
        if predictor == "trained":
            return TrainedSpike(model.config.width, lags=lags, hidden=hidden, fidelity=fidelity)
        return cls(make_predictor(model, predictor, window, num_layers), lags=lags)

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        return entropy_spikes(entropies, self.lags, margin=self.margin), entropies


class EntropyThreshold(_EntropySegmenter):
    """A boundary where the entropy, or its rise, exceeds a threshold (BLT's global and monotonic rules).

        global:     a_t = [H_t > theta]
        monotonic:  a_t = [H_t - H_{t-1} > theta]

    BLT *starts* a patch at byte t + 1 where a token ends at t here, which is the same. The threshold is a buffer, saved
    with the weights. :func:`calibrate` sets it from data.

    Args:
        target_rate: boundaries per byte to calibrate to.
        threshold: in nats.
        rule: ``"global"`` or ``"monotonic"``.

    Reference: https://arxiv.org/abs/2412.09871
    """

    threshold: Tensor

    def __init__(
        self,
        predictor: Predictor,
        *,
        target_rate: float,
        threshold: float = DEFAULT_THRESHOLD,
        rule: Literal["global", "monotonic"] = "global",
    ) -> None:
        super().__init__(predictor)
        check_choice("rule", rule, ("global", "monotonic"))
        self.rule, self.target_rate = rule, check_rate(target_rate)
        self._reach = 0 if rule == "global" else 1
        self.register_buffer("threshold", torch.tensor(float(threshold), dtype=torch.float64))

    @classmethod
    def from_model(
        cls,
        model: UNet,
        rate: float | None = None,
        predictor: PredictorName = "own",
        threshold: float = DEFAULT_THRESHOLD,
        threshold_add: float | None = None,
        window: int | None = None,
        num_layers: int | None = None,
    ) -> EntropyThreshold:
        """Build the global rule for a model; with ``threshold_add`` an :class:`EntropyCombined`."""
        entropies = make_predictor(model, predictor, window, num_layers)
        target_rate = rate_or_default(model, rate)
        if threshold_add is None:
            return EntropyThreshold(entropies, target_rate=target_rate, threshold=threshold)
        return EntropyCombined(entropies, target_rate=target_rate, threshold=threshold, threshold_add=threshold_add)

    @classmethod
    def monotonic(
        cls,
        model: UNet,
        rate: float | None = None,
        predictor: PredictorName = "own",
        threshold: float = 0.0,
        window: int | None = None,
        num_layers: int | None = None,
    ) -> EntropyThreshold:
        """Build the monotonic rule for a model."""
        entropies = make_predictor(model, predictor, window, num_layers)
        return cls(entropies, target_rate=rate_or_default(model, rate), threshold=threshold, rule="monotonic")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # The threshold follows the module's device but stays float64: a narrower type would move it.
        threshold = self.threshold
        super()._apply(fn, recurse)
        self.threshold = threshold.to(self.threshold.device)
        return self

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        scores = entropies if self.rule == "global" else entropy_rise(entropies)
        return scores.double() > self.threshold.double(), scores

    def threshold_for(self, scores: list[Tensor], count: float) -> float:
        """Find the threshold that draws about ``count`` boundaries in rows of scores [B, T], forced ones included."""
        decided = torch.cat([rows[:, 1:].flatten().double() for rows in scores])
        return threshold_for_rate(decided, (count - sum(map(len, scores))) / len(decided))


class EntropyCombined(EntropyThreshold):
    """A boundary where the entropy is high and has risen, unless the byte before has one (BLT's third rule).

        a_t = [H_t > theta and H_t - H_{t-1} > theta_add and not a_{t-1}]

    Args:
        target_rate: boundaries per byte to calibrate to.
        threshold: theta, in nats; :func:`calibrate` sets it.
        threshold_add: theta_add, in nats.

    Reference: https://arxiv.org/abs/2412.09871
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        target_rate: float,
        threshold: float = DEFAULT_THRESHOLD,
        threshold_add: float = 0.0,
    ) -> None:
        super().__init__(predictor, target_rate=target_rate, threshold=threshold)
        self.threshold_add, self._reach = float(threshold_add), 1

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        """Score candidates by their entropies, and bytes whose entropy has not risen by minus infinity."""
        risen = entropy_rise(entropies).double() > self.threshold_add
        scores = entropies.masked_fill(~risen, -math.inf)
        return scores.double() > self.threshold.double(), scores

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        candidates = super()._window(states, byte_ids, uniforms)
        return replace(candidates, boundaries=never_twice(candidates.boundaries))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {**super()._start(num_rows, device), "drawn": torch.zeros(num_rows, dtype=torch.bool, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        candidates, after = super()._step(states, byte_ids, state, uniforms)
        drawn = candidates.boundaries & ~state["drawn"] | (state["position"] == 0)
        return replace(candidates, boundaries=drawn), {**after, "drawn": drawn}

    def threshold_for(self, scores: list[Tensor], count: float) -> float:
        """Find the threshold that draws about ``count`` boundaries in rows of scores [B, T], forced ones included.

        Raising the threshold may add a boundary where it removes the one before, so bisection may miss by a few.
        """

        def drawn(theta: float) -> int:
            return sum(int(never_twice(rows.double() > theta).sum()) for rows in scores)

        num_bytes, most = sum(rows.numel() for rows in scores), drawn(-math.inf)
        if most < count - 1:
            raise ValueError(
                f"rate must be at most {most / num_bytes:.4g}, which rises of more than threshold_add="
                f"{self.threshold_add} allow, got {count / num_bytes:.4g}"
            )
        levels = torch.cat([rows.flatten() for rows in scores]).double().unique().tolist()  # ascending, -inf first
        low, high = 0, len(levels) - 1
        tried: list[tuple[float, float]] = []
        while low <= high:
            middle = (low + high) // 2
            number = drawn(levels[middle])
            tried.append((abs(number - count), levels[middle]))
            low, high = (middle + 1, high) if number > count else (low, middle - 1)
        return max(min(tried)[1], -1e30)


@torch.no_grad()
def calibrate(
    segmenter: EntropyThreshold, model: UNet, windows: Iterable[Tensor], *, rate: float | None = None
) -> float:
    """Set a segmenter's threshold so that the given text has boundaries at a target rate.

    Args:
        segmenter: the segmenter to calibrate.
        model: its U-Net.
        windows: batches [B, T >= 2] of bytes; the forced boundary at each row's first byte counts.
        rate: boundaries per byte; None is the segmenter's target.

    Returns:
        The threshold, in nats.
    """
    rate = check_rate(segmenter.target_rate if rate is None else rate)  # type: ignore[arg-type]
    scores = [segmenter(model.encode(byte_ids), byte_ids).scores.cpu() for byte_ids in windows]  # [B, T] each
    num_bytes, forced = sum(rows.numel() for rows in scores), sum(map(len, scores))
    if num_bytes == forced:
        raise ValueError(f"windows must hold bytes beside the first of each row, got {num_bytes} bytes in all")
    if rate * num_bytes < forced:
        raise ValueError(f"rate must be at least {forced / num_bytes:.4g}, which first bytes alone make, got {rate}")
    threshold = segmenter.threshold_for(scores, rate * num_bytes)
    segmenter.threshold.fill_(threshold)
    return threshold

"""Boundaries where the next byte is hard to tell: spikes (Nawrot et al.) and thresholds (BLT).

Shapes: B rows, T bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from rltok_rl.agents.segmenters.base import Segmenter, Segments, State, check_rate
from rltok_rl.agents.segmenters.predictors import Predictor
from torch import Tensor

from rltok_rl.functional.boundary_rules import entropy_rise, entropy_spikes, never_twice, threshold_for_rate
from rltok_rl.models.unet import UNet
from rltok_rl.utils import check_count

DEFAULT_THRESHOLD = 1.335442066192627
"""BLT's, in nats, for its own entropy model."""
MARGIN = 1e-4
"""Nats that a spike rises at least: in text that repeats itself entropies are equal but for rounding."""


class _EntropySegmenter(Segmenter):
    """Reads the entropies of a predictor, and of the bytes before as many as its rule needs."""

    coefficients: Mapping[str, float] = {"predictor": 1.0}
    _reach: int

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def losses(self, segments: Segments, byte_ids: Tensor, final_logits: Tensor) -> dict[str, Tensor]:
        """``predictor``: the next-byte cost of a predictor of its own, in nats."""
        cost = self.predictor.loss(byte_ids)
        return {} if cost is None else {"predictor": cost}

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        """Entropies [*B, T] to boundaries and the scores they were read off."""
        raise NotImplementedError

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        boundaries, scores = self._rule(self.predictor(states, byte_ids))
        return Segments(boundaries, scores=scores)

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {"entropies": None, "memory": self.predictor.start(num_rows)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        memory: Any = state["memory"]
        now = self.predictor.step(states, byte_ids, state["position"], memory)[:, None]  # [B, 1]
        # The rule itself, on the few entropies that it can look back to.
        seen = now if state["entropies"] is None else torch.cat((state["entropies"], now), 1)
        seen = seen[:, -1 - self._reach :]
        boundaries, scores = self._rule(seen)
        return Segments(boundaries[:, -1], scores=scores[:, -1]), {"entropies": seen, "memory": memory}


class EntropySpike(_EntropySegmenter):
    """A boundary where the entropy exceeds each of the last ``lags``.

        a_t = [H_t > H_{t-j} + margin for j = 1 .. k]

    Args:
        predictor: whose entropies.
        lags: k.
        margin: nats that a spike rises at least; 0 in the paper, where rounding decides between equals.

    Reference: https://arxiv.org/abs/2211.09761
    """

    def __init__(self, predictor: Predictor, *, lags: int = 2, margin: float = MARGIN) -> None:
        super().__init__(predictor)
        self.margin = margin
        self._reach = self.lags = check_count("lags", lags)

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        return entropy_spikes(entropies, self.lags, margin=self.margin), entropies


class EntropyThreshold(_EntropySegmenter):
    """A boundary where the entropy, or its rise, exceeds a threshold (BLT's global and monotonic rules).

        global:     a_t = [H_t > theta]
        monotonic:  a_t = [H_t - H_{t-1} > theta]

    BLT lets a patch *start* at byte t + 1 then; here the token ends at t, which is the same. The threshold is a buffer,
    saved with the weights. :func:`calibrate` sets it from data.

    Args:
        predictor: whose entropies.
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
        if rule not in ("global", "monotonic"):
            raise ValueError(f"rule must be one of ['global', 'monotonic'], got {rule!r}")
        self.rule, self.target_rate = rule, check_rate(target_rate)
        self._reach = 0 if rule == "global" else 1
        self.register_buffer("threshold", torch.tensor(float(threshold), dtype=torch.float64))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # A narrow type would move the threshold: only its device follows the module's.
        threshold = self.threshold
        super()._apply(fn, recurse)
        self.threshold = threshold.to(self.threshold.device)
        return self

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        scores = entropies if self.rule == "global" else entropy_rise(entropies)
        return scores.double() > self.threshold.double(), scores


class EntropyCombined(EntropyThreshold):
    """A boundary where the entropy is high, has risen, and the byte before has none (BLT's third rule).

        a_t = [H_t > theta and H_t - H_{t-1} > theta_add and not a_{t-1}]

    Args:
        predictor: whose entropies.
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
        """Where a boundary is wanted, and the entropies of bytes after which they have risen."""
        risen = entropy_rise(entropies).double() > self.threshold_add
        scores = entropies.masked_fill(~risen, -math.inf)
        return scores.double() > self.threshold.double(), scores

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        wanted = super()._window(states, byte_ids, uniforms)
        return replace(wanted, boundaries=never_twice(wanted.boundaries))

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {**super()._start(num_rows, device), "drawn": torch.zeros(num_rows, dtype=torch.bool, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        wanted, after = super()._step(states, byte_ids, state, uniforms)
        drawn = wanted.boundaries & ~state["drawn"] | (state["position"] == 0)
        return replace(wanted, boundaries=drawn), {**after, "drawn": drawn}

    def threshold_for(self, scores: list[Tensor], count: float) -> float:
        """The threshold that draws the number of boundaries next to ``count`` in rows of scores [B, T].

        A higher threshold may draw a boundary that a lower one has crowded out, so that the number found by halving may
        miss by a few.
        """
        levels = torch.cat([given.flatten() for given in scores]).double().unique()  # in order, -inf first
        low, high = 0, len(levels) - 1
        found: list[tuple[float, float]] = []
        while low <= high:
            middle = (low + high) // 2
            theta = float(levels[middle])
            drawn = sum(int(never_twice(given.double() > theta).sum()) for given in scores)
            found.append((abs(drawn - count), theta))
            low, high = (middle + 1, high) if drawn > count else (low, middle - 1)
        most = sum(int(never_twice(given > -math.inf).sum()) for given in scores)
        if most < count - 1:
            num_bytes = sum(given.numel() for given in scores)
            raise ValueError(
                f"rate must be at most {most / num_bytes:.4g}, which rises of more than threshold_add="
                f"{self.threshold_add} allow, got {count / num_bytes:.4g}"
            )
        return max(min(found)[1], -1e30)


@torch.no_grad()
def calibrate(
    segmenter: EntropyThreshold, model: UNet, windows: Iterable[Tensor], *, rate: float | None = None
) -> float:
    """Set a threshold so that boundaries come at a target rate on given text.

    Args:
        segmenter: whose threshold is set.
        model: the U-Net whose encoder the segmenter may read.
        windows: batches [B, T >= 2] of bytes; the boundary at each row's first byte counts, though nothing decides it.
        rate: boundaries per byte; None is the segmenter's target.

    Returns:
        The threshold, in nats.
    """
    rate = check_rate(segmenter.target_rate if rate is None else rate)  # type: ignore[arg-type]
    scores, num_bytes, forced = [], 0, 0
    for byte_ids in windows:
        found = segmenter(model.encode(byte_ids), byte_ids).scores
        scores.append(found.cpu())  # [B, T]
        num_bytes, forced = num_bytes + byte_ids.numel(), forced + len(byte_ids)
    free = num_bytes - forced
    if not free:
        raise ValueError(f"windows must hold bytes beside the first of each row, got {num_bytes} bytes in all")
    if rate * num_bytes < forced:
        raise ValueError(f"rate must be at least {forced / num_bytes:.4g}, which first bytes alone make, got {rate}")
    if isinstance(segmenter, EntropyCombined):
        threshold = segmenter.threshold_for(scores, rate * num_bytes)
    else:
        decided = torch.cat([given[:, 1:].flatten().double() for given in scores])
        threshold = threshold_for_rate(decided, (rate * num_bytes - forced) / free)
    segmenter.threshold.fill_(threshold)
    return threshold

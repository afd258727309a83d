"""Boundaries where the next byte is uncertain: entropy spikes (Nawrot et al.) and thresholds (BLT).

Shapes: B rows, T bytes. Entropies are those of a predictor: the model's early exit, or a separate byte model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from rltok_rl.agents.rules import check_rate
from rltok_rl.agents.segmenters.byte_model import ByteModel
from rltok_rl.agents.segmenters.gumbel import HIDDEN, Fidelity, TrainedSpike
from rltok_rl.agents.segmenters.segmenter import (
    Hidden,
    Layers,
    Rate,
    Reach,
    Segmenter,
    Segments,
    State,
    check_choice,
    draw_from_bytes,
    rate_or_default,
)
from torch import Tensor, nn

from rltok_rl.functional.boundary_rules import (
    entropy_rise,
    entropy_spikes,
    never_twice,
    released_combined_scores,
    threshold_for_rate,
)
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.models.unet import UNet
from rltok_rl.utils import check_count

Rule = Literal["global", "monotonic"]
PredictorName = Literal["early_exit", "own"]
DEFAULT_THRESHOLD = 1.335442066192627
"""BLT's threshold in nats, for its own entropy model."""
MARGIN = 1e-4
"""Smallest rise of a spike, in nats: entropies of repetitive text are equal up to rounding."""


class Predictor(nn.Module):
    """Predicts the entropy of the next byte, in whole windows and byte by byte."""

    reads_states: bool = True
    """Whether entropies depend on encoder states."""
    reach: int | None = None
    """Earlier bytes that an entropy depends on, if it reads no encoder states; None: any number of them."""

    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """Map encoder states [B, T, D] and bytes [B, T] to entropies H_t [B, T] of the byte after x_t, in nats."""
        raise NotImplementedError

    def start(self, num_rows: int) -> Any:
        """Return the memory before the first byte."""
        return None

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """Return entropies [B] after one more byte per row; changes ``memory`` in place."""
        return self(states, byte_ids)

    def loss(self, byte_ids: Tensor) -> Tensor | None:
        """Compute the predictor's own loss; None if there is none, as for windows of one byte."""
        return None


class EarlyExit(Predictor):
    """The early exit of a U-Net, sharing its parameters; thresholds must be calibrated again as it learns."""

    reach = 0

    def __init__(self, model: UNet) -> None:
        super().__init__()
        self.norm, self.head = model.encoder_norm, model.early_head

    @torch.no_grad()
    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """Compute entropies from encoder states."""
        return prediction_entropy(self.head(self.norm(states)))


class OwnModel(Predictor):
    """A small separate byte model, trained on next bytes alone (BLT)."""

    reads_states = False

    def __init__(self, model: ByteModel) -> None:
        super().__init__()
        self.model = model
        self.reach = model.config.num_encoder_layers * (model.config.window - 1)

    @torch.no_grad()
    def forward(self, states: Tensor, byte_ids: Tensor) -> Tensor:
        """Compute entropies from bytes."""
        return prediction_entropy(self.model(byte_ids))

    def start(self, num_rows: int) -> Any:
        """Return an empty cache of keys and values."""
        return self.model.new_cache(num_rows)

    def step(self, states: Tensor, byte_ids: Tensor, position: Tensor, memory: Any) -> Tensor:
        """Read one more byte per row."""
        return prediction_entropy(self.model.step(byte_ids, position, memory))

    def loss(self, byte_ids: Tensor) -> Tensor | None:
        """Compute the mean next-byte cost."""
        return self.model.loss(byte_ids) if byte_ids.shape[-1] > 1 else None


def _last(x: Tensor, number: int) -> Tensor:
    """Return the last entries of each row, up to a number that may be 0."""
    return x[:, max(0, x.shape[1] - number) :]


def _make_predictor(model: UNet, name: PredictorName, window: int | None, num_layers: int | None) -> Predictor:
    """Build a predictor; ``window`` and ``num_layers`` of ``"own"`` default to the encoder's."""
    if check_choice("predictor", name, PredictorName) == "early_exit":
        if window is not None or num_layers is not None:
            raise ValueError(f"window and num_layers belong to predictor 'own', got {window} and {num_layers}")
        return EarlyExit(model)
    fields: dict[str, Any] = {"window": window, "num_encoder_layers": num_layers}
    return OwnModel(ByteModel(replace(model.config, **{k: v for k, v in fields.items() if v is not None})))


class _EntropySegmenter(Segmenter):
    """Boundaries by a rule on the entropies of the last bytes."""

    coefficients: Mapping[str, float] = {"predictor": 1.0}
    _reach: int
    """Earlier entropies that the rule reads."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor, self.reads_states = predictor, predictor.reads_states

    @property
    def draws_parts(self) -> bool:
        """Whether the predictor's reach is known too."""
        return super().draws_parts and self.predictor.reach is not None

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

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        new, reach, earlier = byte_ids.shape[1], self.predictor.reach, state["entropies"]
        assert reach is not None
        known = torch.cat((state["bytes"], byte_ids), 1) if "bytes" in state else byte_ids
        entropies = self.predictor(states, known)[:, -new:]  # [B, n]
        entropies = entropies if earlier is None else torch.cat((earlier, entropies), 1)
        boundaries, scores = self._rule(entropies)
        after = {"entropies": _last(entropies, self._reach), "bytes": _last(known, reach)}
        return Segments(boundaries[:, -new:], scores=scores[:, -new:]), after

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
    """Nawrot's spikes (https://arxiv.org/abs/2211.09761): ``a_t = [H_t > H_{t-j} + margin]`` for all lags j."""

    def __init__(self, predictor: Predictor, *, lags: int = 2, margin: float = MARGIN) -> None:
        super().__init__(predictor)
        self.margin = margin
        self._reach = self.lags = check_count("lags", lags)

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        return entropy_spikes(entropies, self.lags, margin=self.margin), entropies


class EntropyThreshold(_EntropySegmenter):
    """A boundary where the entropy, or its rise, exceeds a threshold in nats (BLT, https://arxiv.org/abs/2412.09871).

        global:     a_t = [H_t > theta]
        monotonic:  a_t = [H_t - H_{t-1} > theta]

    BLT *starts* a patch at byte t + 1 where a token ends at t here, which is the same. The threshold is a buffer, saved
    with the weights; :func:`calibrate` sets it so that data has boundaries at ``target_rate``.
    """

    threshold: Tensor
    target_rate: float
    forced: int = 1
    """First bytes that always have a boundary."""
    fixed: int = 1
    """First bytes that the threshold does not decide."""

    def __init__(
        self, predictor: Predictor, *, target_rate: float, threshold: float = DEFAULT_THRESHOLD, rule: Rule = "global"
    ) -> None:
        super().__init__(predictor)
        self.rule, self.target_rate = check_choice("rule", rule, Rule), check_rate(target_rate)
        self._reach = 0 if rule == "global" else 1
        self.register_buffer("threshold", torch.tensor(float(threshold), dtype=torch.float64))

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
        decided = torch.cat([rows[:, self.fixed :].flatten().double() for rows in scores])
        forced = sum(rows[:, : self.forced].numel() for rows in scores)
        return threshold_for_rate(decided, min((count - forced) / len(decided), 1.0))


class _Combined(EntropyThreshold):
    """A rule on high entropies that have risen by more than ``threshold_add``."""

    earlier = 1
    """Earlier entropies that a step reads."""

    def __init__(
        self,
        predictor: Predictor,
        *,
        target_rate: float,
        threshold: float = DEFAULT_THRESHOLD,
        threshold_add: float = 0.0,
    ) -> None:
        super().__init__(predictor, target_rate=target_rate, threshold=threshold)
        self.threshold_add, self._reach = float(threshold_add), self.earlier

    def check_risen(self, most: int, count: float, num_bytes: int) -> None:
        """Require that at least ``count`` of the bytes may have a boundary, of which ``most`` have risen."""
        if most < count - 1:
            raise ValueError(
                f"rate must be at most {most / num_bytes:.4g}, the share of bytes whose entropy rises by more than "
                f"threshold_add={self.threshold_add}, got {count / num_bytes:.4g}"
            )


class EntropyCombined(_Combined):
    """A boundary where the entropy is high and has risen, unless the byte before has one (BLT's third rule).

        a_t = [H_t > theta and H_t - H_{t-1} > theta_add and not a_{t-1}]

    :func:`calibrate` sets ``threshold``, theta, and leaves ``threshold_add``; both are in nats.
    """

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        """Score candidates by their entropies, and bytes whose entropy has not risen by minus infinity."""
        risen = entropy_rise(entropies).double() > self.threshold_add
        scores = entropies.masked_fill(~risen, -math.inf)
        return scores.double() > self.threshold.double(), scores

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        candidates = super()._window(states, byte_ids, uniforms)
        return replace(candidates, boundaries=never_twice(candidates.boundaries))

    def _part(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        candidates, after = super()._part(states, byte_ids, state, uniforms)
        wanted, drawn = candidates.boundaries.clone(), state["drawn"]
        wanted[:, 0] |= state["position"] == 0
        # never_twice draws the first of these three, so the second has none, and the third is the last decision.
        ahead = torch.stack((torch.ones_like(drawn), torch.zeros_like(drawn), drawn), 1)
        boundaries = never_twice(torch.cat((ahead, wanted), 1))[:, 3:]
        return replace(candidates, boundaries=boundaries), {**after, "drawn": boundaries[:, -1]}

    def _start(self, num_rows: int, device: torch.device) -> State:
        return {**super()._start(num_rows, device), "drawn": torch.zeros(num_rows, dtype=torch.bool, device=device)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        candidates, after = super()._step(states, byte_ids, state, uniforms)
        drawn = candidates.boundaries & ~state["drawn"] | (state["position"] == 0)
        return replace(candidates, boundaries=drawn), {**after, "drawn": drawn}

    def threshold_for(self, scores: list[Tensor], count: float) -> float:
        """Bisect for the threshold; as it rises, a removed boundary may free the next byte, so a few may be missed."""

        def drawn(theta: float) -> int:
            return sum(int(never_twice(rows.double() > theta).sum()) for rows in scores)

        num_bytes, most = sum(rows.numel() for rows in scores), drawn(-math.inf)
        self.check_risen(most, count, num_bytes)
        levels = torch.cat([rows.flatten() for rows in scores]).double().unique().tolist()  # ascending, -inf first
        low, high = 0, len(levels) - 1
        tried: list[tuple[float, float]] = []
        while low <= high:
            middle = (low + high) // 2
            number = drawn(levels[middle])
            tried.append((abs(number - count), levels[middle]))
            low, high = (middle + 1, high) if number > count else (low, middle - 1)
        return max(min(tried)[1], -1e30)


class EntropyCombinedReleased(_Combined):
    """BLT's third rule as its code has it: later starts may be adjacent.

        a_0 = a_1 = 1,    a_2 = 0,    a_t = [H_t > theta and H_t - H_{t-1} > theta_add]

    See :func:`~rltok_rl.functional.boundary_rules.released_combined_scores`.
    """

    forced, fixed = 2, 3
    earlier = fixed  # so that a step knows whether its byte is one of them

    def _rule(self, entropies: Tensor) -> tuple[Tensor, Tensor]:
        scores = released_combined_scores(entropies, self.threshold_add)
        return scores.double() > self.threshold.double(), scores

    def threshold_for(self, scores: list[Tensor], count: float) -> float:
        """Find the threshold; an error if fewer entropies have risen than ``count`` needs."""
        num_bytes = sum(rows.numel() for rows in scores)
        self.check_risen(sum(int((rows > -math.inf).sum()) for rows in scores), count, num_bytes)
        return max(super().threshold_for(scores, count), -1e30)


@torch.no_grad()
def calibrate(
    segmenter: EntropyThreshold, model: UNet, windows: Iterable[Tensor], *, rate: float | None = None
) -> float:
    """Set a segmenter's threshold so that batches [B, T >= 2] of bytes have boundaries at ``rate``, and return it.

    The rate is by default the segmenter's target. The forced boundary at each row's first byte counts.
    """
    rate = check_rate(segmenter.target_rate if rate is None else rate)
    scores = [_scores(model, segmenter, byte_ids).cpu() for byte_ids in windows]  # [B, T] each
    num_bytes = sum(rows.numel() for rows in scores)
    forced = sum(rows[:, : segmenter.forced].numel() for rows in scores)
    if not any(rows[:, segmenter.fixed :].numel() for rows in scores):
        least = segmenter.fixed + 1
        raise ValueError(f"windows must have at least {least} bytes per row, got {num_bytes} bytes in all")
    if rate * num_bytes < forced:
        raise ValueError(f"rate must be at least {forced / num_bytes:.4g}, the share of first bytes, got {rate}")
    threshold = segmenter.threshold_for(scores, rate * num_bytes)
    segmenter.threshold.fill_(threshold)
    return threshold


def _scores(model: UNet, segmenter: EntropyThreshold, byte_ids: Tensor) -> Tensor:
    """Return the scores [B, T] of a window, encoding it only if they depend on encoder states."""
    if segmenter.reads_states:
        segments: Segments = segmenter(model.encode(byte_ids), byte_ids)
    else:
        segments = draw_from_bytes(segmenter, byte_ids)
    assert segments.scores is not None
    return segments.scores


def entropy_spike(
    model: UNet,
    predictor: Literal["trained", "early_exit", "own"] = "trained",
    lags: Reach = 2,
    hidden: Hidden = HIDDEN,
    fidelity: Fidelity = "paper",
    window: Reach | None = None,
    num_layers: Layers | None = None,
) -> Segmenter:
    """Build the spike rule for a model; ``predictor="trained"`` is a :class:`TrainedSpike`."""
    if predictor == "trained":
        return TrainedSpike(model, lags=lags, hidden=hidden, fidelity=fidelity)
    return EntropySpike(_make_predictor(model, predictor, window, num_layers), lags=lags)


def entropy_threshold(
    model: UNet,
    rate: Rate | None = None,
    predictor: PredictorName = "own",
    threshold: float | None = None,
    threshold_add: float | None = None,
    window: Reach | None = None,
    num_layers: Layers | None = None,
    rule: Rule = "global",
    fidelity: Fidelity = "paper",
) -> EntropyThreshold:
    """Build a threshold rule for a model; with ``threshold_add`` BLT's third rule, also as released (``fidelity``)."""
    check_choice("fidelity", fidelity, Fidelity)
    entropies, rate = _make_predictor(model, predictor, window, num_layers), rate_or_default(model, rate)
    if threshold is None:
        threshold = DEFAULT_THRESHOLD if rule == "global" else 0.0
    if threshold_add is None:
        if fidelity != "paper":
            raise ValueError(f"fidelity belongs to the rule with threshold_add, got {fidelity!r} without it")
        return EntropyThreshold(entropies, target_rate=rate, threshold=threshold, rule=rule)
    if rule != "global":
        raise ValueError(f"threshold_add belongs to rule 'global', got {threshold_add} with {rule!r}")
    combined = EntropyCombined if fidelity == "paper" else EntropyCombinedReleased
    return combined(entropies, target_rate=rate, threshold=threshold, threshold_add=threshold_add)

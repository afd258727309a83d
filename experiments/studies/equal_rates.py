"""Policies and rules that draw as many boundaries as their target, to be evaluated at equal rates.

A score says where boundaries are. How many there are depends on the control of the rate too, whose error of a few per
cent would decide over tasks with few boundaries.
"""

from __future__ import annotations

from typing import Any

import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.agents.bernoulli import BernoulliActor, Terms
from rltok_rl.agents.segmenters import EntropyThreshold, calibrate
from rltok_rl.envs import ByteBoundaryEnv
from torch import Tensor

from rltok_rl.data.languages import Language
from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.models.unet import UNet
from rltok_rl.sampling import sample_boundaries

_FARTHEST, _HALVINGS = 8.0, 20
"""Bounds of the offset, and halvings of the interval between them."""


class OffsetActor(BernoulliActor):
    """The policy of a U-Net with a constant added to its logits, below their soft cap."""

    def __init__(self, model: UNet, offset: float = 0.0) -> None:
        super().__init__(_OffsetTerms(LearnedBoundaryActor(model).terms, offset), in_keys=["encoder_state"])
        self.offset = offset


class _OffsetTerms(Terms):
    def __init__(self, terms: Terms, offset: float) -> None:
        super().__init__()
        self.terms, self.offset = terms, offset

    @property
    def cap(self) -> float | None:
        return self.terms.cap

    @property
    def num_lags(self) -> int:
        return self.terms.num_lags

    def forward(self, *features: Tensor) -> BoundaryTerms:
        base, lags = self.terms(*features)
        return BoundaryTerms(base + self.offset, lags)


@torch.no_grad()
def policy_at_rate(
    model: UNet, language: Language, rate: float, *, num_rows: int, num_steps: int, num_batches: int, seed: int
) -> OffsetActor:
    """Return the model's policy with the offset that draws ``rate`` free boundaries per byte on fresh texts.

    The first boundary of a text is forced and does not count. All offsets are tried with the same random numbers; if
    none reaches the rate, it is 8 or -8.
    """
    training, terms = model.training, LearnedBoundaryActor(model).terms
    model.eval()
    env = ByteBoundaryEnv(model, language, num_steps=num_steps, batch_size=(num_rows,), seed=seed)
    generator, parts = torch.Generator().manual_seed(seed), []
    for _ in range(num_batches):
        rollout = env.parallel_rollout(LearnedBoundaryActor(model), generator=generator)
        draws = torch.rand(rollout.shape, generator=generator)
        parts.append((*terms(rollout["encoder_state"]), 2 * rollout["forced"].to(torch.int8) - 1, draws))
    base, lags, forced, uniforms = map(torch.cat, zip(*parts, strict=True))
    model.train(training)
    first = model.config.num_marks + 1
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVINGS):
        offset = (low + high) / 2
        options: Any = {"uniforms": uniforms, "cap": terms.cap, "force_first": False, "forced": forced}
        drawn = sample_boundaries(base + offset, lags, **options)[:, first:]
        low, high = (offset, high) if drawn.double().mean() < rate else (low, offset)
    return OffsetActor(model, (low + high) / 2)


def calibrate_threshold(
    segmenter: Any,
    model: UNet,
    language: Language,
    rate: float,
    *,
    num_rows: int,
    num_steps: int,
    num_batches: int,
    seed: int,
) -> None:
    """Set the threshold of an entropy rule by fresh texts, so that it draws ``rate`` free boundaries per byte.

    Other segmenters stay as they are: they have no threshold.
    """
    if isinstance(segmenter, EntropyThreshold):
        generator = torch.Generator().manual_seed(seed)
        texts = [model.mark(language.draw(num_rows, num_steps, generator).byte_ids) for _ in range(num_batches)]
        calibrate(segmenter, model, texts, rate=(1 + rate * (num_steps - 1)) / num_steps)  # with the forced one

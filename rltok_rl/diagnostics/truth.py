"""Agreement of single-sample advantages with the true worth of decisions.

Two truths. *Resampled*: over many rows of one text, the mean return of those with this decision at t, minus the mean of
all. *Counterfactual*: both decisions at t in one row, with many continuations each (:mod:`.counterfactual`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.diagnostics.counterfactual import counterfactual_returns
from rltok_rl.diagnostics.estimator_report import Candidate
from rltok_rl.diagnostics.gradient_quality import correlation
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.unet import UNet
from rltok_rl.text import ids_to_bytes

Progress = Callable[[int, int], None]
_Judged = tuple[TensorDictBase, Any, Tensor, Tensor]  # a rollout, an index of decisions, their worth and texts


@dataclass(frozen=True)
class Agreement:
    """Correlations of advantages with a measured truth."""

    correlations: dict[str, tuple[float, float]]
    """Correlation and its standard error over texts, by candidate."""
    reliability: float
    """Share of the measured truth's variance that is no noise. Correlations with the truth itself are larger by one
    over its square root, for all candidates."""


@torch.no_grad()
def resampled_correlation(
    model: UNet,
    byte_ids: Tensor,
    candidates: Sequence[Candidate],
    *,
    gamma: float,
    num_samples: int,
    num_judged: int,
    seed: int = 0,
    least: int = 30,
    progress: Progress | None = None,
) -> Agreement:
    """Correlate advantages with the resampled truth, over all free decisions that went both ways ``least`` times.

    ``num_samples`` rows of each text give the truth (8,192 in the authors' notebook), and ``num_judged`` other rows are
    judged. A batch has a row of each of the texts [M, T + 1], so that batch means average over M. ``progress`` is
    called with samples drawn and samples in all.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = _repeated(model, byte_ids, 1, generator)
    shape = (len(byte_ids), byte_ids.shape[1] - 1)
    drawn = torch.zeros(shape, dtype=torch.float64)
    sums, squares = torch.zeros(2, 2, *shape, dtype=torch.float64)  # of returns, without and with the boundary
    for number in range(num_samples):
        rollout = draw()
        returns = discounted_return(rollout["next", "final_log_prob"].squeeze(-1), gamma).double()
        action = rollout["action"].double()
        sides = torch.stack((1 - action, action))
        drawn += action
        sums += returns * sides
        squares += returns.square() * sides
        if progress is not None:
            progress(number + 1, num_samples)
    counts = torch.stack((num_samples - drawn, drawn))  # [2, M, T]
    counted = (counts >= least).all(0)
    counted[:, 0] = False
    if not counted.any():
        raise ValueError(
            f"num_samples must be larger or least smaller: no decision went both ways {least} times in "
            f"{num_samples} samples"
        )
    averages = sums / counts.clamp(min=1)
    values = averages - sums.sum(0) / num_samples  # [2, M, T] worth of not drawing and of drawing
    # Noise of the difference, and what of it each side gets: Q(1) - V = (1 - p) (Q(1) - Q(0)), Q(0) - V = -p (...).
    noise = ((squares / counts.clamp(min=1) - averages.square()) / (counts - 1).clamp(min=1)).sum(0)
    chance = drawn / num_samples
    spread = chance * values[1].square() + (1 - chance) * values[0].square()  # of the truth, decisions as they fall
    share = (chance * (1 - chance) * noise)[counted].sum() / spread[counted].sum()

    def judged(size: int) -> Iterator[_Judged]:
        draw = _repeated(model, byte_ids, size, generator)
        where = counted.repeat_interleave(size, 0)
        text = torch.arange(len(counted)).repeat_interleave(size).unsqueeze(1).expand(where.shape)[where]
        without, with_boundary = values.repeat_interleave(size, 1)
        for _ in range(max(1, num_judged // size)):
            rollout = draw()
            yield rollout, where, torch.where(rollout["action"].bool(), with_boundary, without)[where], text

    return Agreement(_correlations(candidates, judged), 1 - float(share))


@torch.no_grad()
def counterfactual_correlation(
    model: UNet,
    draw: Callable[[int], TensorDictBase],
    candidates: Sequence[Candidate],
    *,
    gamma: float,
    num_batches: int,
    num_positions: int,
    pairs: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> Agreement:
    """Correlate advantages with the effect of flipping the decision, with the same random numbers afterwards.

    For each number of rows per text, ``num_batches`` rollouts [B, T] of ``draw`` are judged at ``num_positions``
    decisions per row. Each gets ``pairs`` of continuations, with and without the boundary; at least 2, to measure the
    truth's noise. ``progress`` is called with rollouts done and rollouts in all.
    """
    if pairs < 2:
        raise ValueError(f"pairs must be at least 2, got {pairs}")
    generator = torch.Generator().manual_seed(seed)
    total = num_batches * len({candidate.rows_per_text for candidate in candidates})
    squared = noise = 0.0
    done = 0

    def judged(size: int) -> Iterator[_Judged]:
        nonlocal squared, noise, done
        for number in range(num_batches):
            rollout = draw(size)
            length = rollout.shape[1]
            byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
            positions = (torch.randperm(length - 1, generator=generator)[:num_positions] + 1).sort().values
            uniforms = torch.rand(len(byte_ids), pairs, length, generator=generator)
            boundaries = rollout["action"].bool() | rollout["forced"]
            flips = counterfactual_returns(model, byte_ids, boundaries, positions, gamma=gamma, uniforms=uniforms)
            weight = (flips.boundaries.double() - flips.probs).square()
            squared += float(flips.advantage.square().sum())
            noise += float((weight * flips.differences.var(-1) / pairs).sum())
            text = torch.arange(len(byte_ids)) // size + number * len(byte_ids)
            yield rollout, (slice(None), positions), flips.advantage, text[:, None].expand(flips.advantage.shape)
            done += 1
            if progress is not None:
                progress(done, total)

    correlations = _correlations(candidates, judged)
    return Agreement(correlations, 1 - noise / squared if squared else math.nan)


def _repeated(model: UNet, byte_ids: Tensor, size: int, generator: torch.Generator) -> Callable[[], TensorDictBase]:
    """A function that draws rollouts of the same texts, with ``size`` rows each."""
    texts = [ids_to_bytes(row) for row in byte_ids.repeat_interleave(size, 0)]
    num_steps, actor = byte_ids.shape[1] - 1, LearnedBoundaryActor(model)
    env = ByteBoundaryEnv(model, texts[0], num_steps=num_steps, batch_size=(len(texts),), observe_entropy=True, seed=0)
    return lambda: env.parallel_rollout(actor, text=texts, generator=generator)


def _correlations(
    candidates: Sequence[Candidate], judged: Callable[[int], Iterable[_Judged]]
) -> dict[str, tuple[float, float]]:
    """Correlations of advantages with the worth of decisions, by candidate; ``judged`` gets the rows per text."""
    correlations: dict[str, tuple[float, float]] = {}
    for size in sorted({candidate.rows_per_text for candidate in candidates}):
        members = [candidate for candidate in candidates if candidate.rows_per_text == size]
        kept: dict[str, list[Tensor]] = {candidate.name: [] for candidate in members}
        truth, texts = [], []
        for rollout, index, worth, text in judged(size):
            truth.append(worth)
            texts.append(text)
            for candidate in members:
                kept[candidate.name].append(candidate.advantages(rollout)[index])
        groups, worth = torch.cat(texts), torch.cat(truth)
        correlations |= {name: correlation(torch.cat(each), worth, groups=groups) for name, each in kept.items()}
    return correlations

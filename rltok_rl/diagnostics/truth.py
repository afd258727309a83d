"""Agreement of single-sample advantages with the true worth of decisions.

Two truths. *Resampled*: over many rows of one text, the mean return of those with this decision at t, minus the mean of
all. *Counterfactual*: both decisions at t in one row, with many continuations each (:mod:`.counterfactual`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Agreement:
    """Correlations of advantages with a measured truth."""

    correlations: dict[str, tuple[float, float]]
    """Correlation and its standard error over texts, by candidate."""
    reliability: float
    """Share of the measured truth's variance that is no noise. Correlations with the truth itself are larger by one
    over its square root, for all candidates."""


class _Rows:
    """Repeated rollouts of the same texts, several rows each."""

    def __init__(self, model: UNet, byte_ids: Tensor, rows_per_text: int, generator: torch.Generator) -> None:
        self.texts = [ids_to_bytes(row) for row in byte_ids.repeat_interleave(rows_per_text, 0)]
        self.env = ByteBoundaryEnv(
            model,
            self.texts[0],
            num_steps=byte_ids.shape[1] - 1,
            batch_size=(len(self.texts),),
            observe_entropy=True,
            seed=0,
        )
        self.actor, self.generator = LearnedBoundaryActor(model), generator

    def draw(self) -> TensorDictBase:
        return self.env.parallel_rollout(self.actor, text=self.texts, generator=self.generator)


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
    """Correlate advantages with the resampled truth, over all free decisions that went both ways.

    Truth and judged rows are different samples. Standard errors are over texts.

    Args:
        model: the U-Net.
        byte_ids: [M, T + 1] texts; a batch has a row of each, so that batch means average over M.
        candidates: estimators to judge.
        gamma: discount of the truth, and of the candidates.
        num_samples: rows per text for the truth (8,192 in the authors' notebook).
        num_judged: rows per text that are judged.
        seed: of all boundaries.
        least: how often a decision must have gone either way to count.
        progress: called with samples drawn and samples in all.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = _Rows(model, byte_ids, 1, generator)
    shape = (len(byte_ids), byte_ids.shape[1] - 1)
    drawn = torch.zeros(shape, dtype=torch.float64)
    sums, squares = (torch.zeros(2, *shape, dtype=torch.float64) for _ in range(2))  # of returns, without and with
    for number in range(num_samples):
        rollout = rows.draw()
        found = discounted_return(rollout["next", "final_log_prob"].squeeze(-1), gamma).double()
        action = rollout["action"].double()
        sides = torch.stack((1 - action, action))
        drawn += action
        sums += found * sides
        squares += found.square() * sides
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
    correlations: dict[str, tuple[float, float]] = {}
    for size in sorted({one.rows_per_text for one in candidates}):
        members = [one for one in candidates if one.rows_per_text == size]
        rows = _Rows(model, byte_ids, size, generator)
        kept: dict[str, list[Tensor]] = {one.name: [] for one in members}
        truth, texts = [], []
        where = counted.repeat_interleave(size, 0)
        text = torch.arange(len(counted)).repeat_interleave(size).unsqueeze(1).expand(where.shape)[where]
        for _ in range(max(1, num_judged // size)):
            rollout = rows.draw()
            taken = rollout["action"].bool().unflatten(0, (-1, size))  # [M, size, T]
            worth = torch.where(taken, values[1].unsqueeze(1), values[0].unsqueeze(1))
            truth.append(worth.flatten(0, 1)[where])
            texts.append(text)
            for one in members:
                kept[one.name].append(one.advantages(rollout)[where])
        correlations |= _correlations(kept, truth, texts)
    return Agreement(correlations, 1 - float(share))


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

    Args:
        model: the U-Net.
        draw: draws rollouts [B, T].
        candidates: estimators to judge.
        gamma: discount of the truth, and of the candidates.
        num_batches: rollouts for each number of rows per text.
        num_positions: decisions flipped per row, spread over the window.
        pairs: continuations per decision, with and without the boundary; at least 2, to measure the truth's noise.
        seed: of positions and continuations.
        progress: called with rollouts done and rollouts in all.
    """
    if pairs < 2:
        raise ValueError(f"pairs must be at least 2, got {pairs}")
    generator = torch.Generator().manual_seed(seed)
    sizes = sorted({one.rows_per_text for one in candidates})
    correlations: dict[str, tuple[float, float]] = {}
    squared = noise = 0.0
    done = 0
    for size in sizes:
        members = [one for one in candidates if one.rows_per_text == size]
        kept: dict[str, list[Tensor]] = {one.name: [] for one in members}
        truth, texts = [], []
        for number in range(num_batches):
            rollout = draw(size)
            length = rollout.shape[1]
            byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
            positions = (torch.randperm(length - 1, generator=generator)[:num_positions] + 1).sort().values
            uniforms = torch.rand(len(byte_ids), pairs, length, generator=generator)
            boundaries = rollout["action"].bool() | rollout["forced"]
            found = counterfactual_returns(model, byte_ids, boundaries, positions, gamma=gamma, uniforms=uniforms)
            truth.append(found.advantage)
            text = torch.arange(len(byte_ids)) // size + number * len(byte_ids)
            texts.append(text.unsqueeze(1).expand(found.advantage.shape))
            weight = (found.boundaries.double() - found.probs).square()
            squared += float(found.advantage.square().sum())
            noise += float((weight * found.differences.var(-1) / pairs).sum())
            for one in members:
                kept[one.name].append(one.advantages(rollout)[:, positions])
            done += 1
            if progress is not None:
                progress(done, num_batches * len(sizes))
        correlations |= _correlations(kept, truth, texts)
    return Agreement(correlations, 1 - noise / squared if squared else math.nan)


def _correlations(
    kept: dict[str, list[Tensor]], truth: list[Tensor], texts: list[Tensor]
) -> dict[str, tuple[float, float]]:
    groups, worth = torch.cat(texts), torch.cat(truth)
    return {name: correlation(torch.cat(values), worth, groups=groups) for name, values in kept.items()}

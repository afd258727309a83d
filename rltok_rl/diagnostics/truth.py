"""How well single-sample advantages agree with what decisions are truly worth.

Two truths. *Resampled*: over many rows of one text, the mean return of those that decided so at t, minus the mean of
all. *Counterfactual*: in one row, both decisions at t, many continuations each (:mod:`.counterfactual`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.diagnostics.counterfactual import counterfactual_returns
from rltok_rl.diagnostics.report import Candidate, correlation
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.functional.returns import discounted_return
from rltok_rl.functional.text import ids_to_bytes
from rltok_rl.models.unet import UNet

Progress = Callable[[int, int], None]


class _Rows:
    """Rollouts of the same texts again and again, several rows each."""

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
) -> dict[str, tuple[float, float]]:
    """Correlation of advantages with the resampled truth, over all free decisions that were taken both ways.

    Truth and judged rows are different samples. Each correlation comes with a standard error, for independent
    decisions.

    Args:
        model: the U-Net.
        byte_ids: [M, T + 1] texts; a batch has a row of each, so that M is what batch means average over.
        candidates: what to judge.
        gamma: discount of the truth, and of the candidates.
        num_samples: rows per text that the truth is made of (8,192 in the authors' notebook).
        num_judged: rows per text that are judged.
        seed: of all boundaries.
        least: how often a decision must have gone either way to be counted.
        progress: called with samples drawn and samples in all.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = _Rows(model, byte_ids, 1, generator)
    shape = (len(byte_ids), byte_ids.shape[1] - 1)
    total, drawn, returns = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for number in range(num_samples):
        rollout = rows.draw()
        found = discounted_return(rollout["next", "final_log_prob"].squeeze(-1), gamma).double()
        action = rollout["action"].double()
        total += found
        drawn += action
        returns += found * action
        if progress is not None:
            progress(number + 1, num_samples)
    mean = total / num_samples
    with_, without = returns / drawn.clamp(min=1), (total - returns) / (num_samples - drawn).clamp(min=1)
    counted = (drawn >= least) & (num_samples - drawn >= least)
    counted[:, 0] = False
    result: dict[str, tuple[float, float]] = {}
    for size in sorted({one.rows_per_text for one in candidates}):
        members = [one for one in candidates if one.rows_per_text == size]
        rows = _Rows(model, byte_ids, size, generator)
        kept: dict[str, list[Tensor]] = {one.name: [] for one in members}
        truth = []
        where = counted.repeat_interleave(size, 0)
        for _ in range(max(1, num_judged // size)):
            rollout = rows.draw()
            taken = rollout["action"].bool().unflatten(0, (-1, size))  # [M, size, T]
            worth = torch.where(taken, with_.unsqueeze(1), without.unsqueeze(1)) - mean.unsqueeze(1)
            truth.append(worth.flatten(0, 1)[where])
            for one in members:
                kept[one.name].append(one.advantages(rollout)[where])
        result |= {name: correlation(torch.cat(values), torch.cat(truth)) for name, values in kept.items()}
    return result


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
) -> dict[str, tuple[float, float]]:
    """Correlation of advantages with what flipping the decision changes, the same randomness after it.

    Args:
        model: the U-Net.
        draw: makes rollouts [B, T].
        candidates: what to judge.
        gamma: discount of the truth, and of the candidates.
        num_batches: rollouts for each number of rows per text.
        num_positions: decisions tried per row, spread over the window.
        pairs: continuations per decision, each with and without the boundary.
        seed: of positions and continuations.
        progress: called with rollouts done and rollouts in all.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = sorted({one.rows_per_text for one in candidates})
    result: dict[str, tuple[float, float]] = {}
    done = 0
    for size in sizes:
        members = [one for one in candidates if one.rows_per_text == size]
        kept: dict[str, list[Tensor]] = {one.name: [] for one in members}
        truth = []
        for _ in range(num_batches):
            rollout = draw(size)
            length = rollout.shape[1]
            byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
            positions = (torch.randperm(length - 1, generator=generator)[:num_positions] + 1).sort().values
            uniforms = torch.rand(len(byte_ids), pairs, length, generator=generator)
            boundaries = rollout["action"].bool() | rollout["forced"]
            found = counterfactual_returns(model, byte_ids, boundaries, positions, gamma=gamma, uniforms=uniforms)
            truth.append(found.advantage)
            for one in members:
                kept[one.name].append(one.advantages(rollout)[:, positions])
            done += 1
            if progress is not None:
                progress(done, num_batches * len(sizes))
        result |= {name: correlation(torch.cat(values), torch.cat(truth)) for name, values in kept.items()}
    return result

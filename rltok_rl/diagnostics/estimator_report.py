"""Reports on estimators: bias, noise, and signal at equal cost.

Shapes: B rows, T decisions, K batches, P weights of the boundary head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rltok_rl.diagnostics.exact import remembers
from rltok_rl.diagnostics.gradient_quality import Comparison, Signal, compare, policy_gradient, signal_to_noise
from rltok_rl.functional.rewards import REWARDS, charge_boundaries
from rltok_rl.models.flops import trial_flops, update_flops
from rltok_rl.models.unet import UNet
from rltok_rl.objectives.base import read

Draw = Callable[[int], TensorDictBase]
"""Draws a rollout [B, T] without gradient, with so many rows per text."""


@dataclass(frozen=True)
class Candidate:
    """An estimator to measure, with its reward, rows per text and cost."""

    name: str
    estimator: Callable[[TensorDictBase], TensorDictBase]  # writes ``advantage`` into a rollout: any value estimator
    reward: str = "early_exit"  # a key of :data:`~rltok_rl.functional.rewards.REWARDS`
    rows_per_text: int = 1  # in a batch with the same number of rows
    extra_rows: float = 0.0  # forward passes without encoder and gradient that the estimator needs per row
    flops_per_byte: float = 0.0  # further FLOPs per byte: a critic's forward passes and updates
    learn: Callable[[TensorDictBase], None] | None = None  # trains a critic on batches: judged ones and warm-up

    @property
    def learns(self) -> bool:
        """Whether a batch changes what it does with the next one."""
        return self.learn is not None or remembers(self.estimator)

    def advantages(self, rollout: TensorDictBase, *, price: float = 0.0) -> Tensor:
        """Compute the advantages [B, T] of a rollout, which is unchanged; a boundary costs ``price`` nats."""
        judged = rollout.copy()
        following = judged["next"].copy()
        final, early = (following[name].squeeze(-1) for name in ("final_log_prob", "early_log_prob"))
        entropy = early  # not used
        if self.reward == "entropy_relative":
            entropy = read(rollout, "early_entropy", remedy=" (an environment adds it with observe_entropy=True)")
        rewards = REWARDS[self.reward](final, early, entropy)
        if price:
            rewards = charge_boundaries(rewards, rollout["action"], price)
        judged["next"] = following.set("reward", rewards.unsqueeze(-1))
        judged = self.estimator(judged)  # before the critic learns from this batch
        if self.learn is not None:
            with torch.enable_grad():
                self.learn(judged)
        return judged["advantage"].squeeze(-1)

    def flops(self, model: UNet, num_rows: int, num_steps: int, rate: float) -> float:
        """Compute the FLOPs of an update with this estimator."""
        num_bytes = num_rows * num_steps
        extra = self.extra_rows * trial_flops(model, num_bytes, rate * num_bytes)
        return update_flops(model, num_bytes, rate * num_bytes) + extra + self.flops_per_byte * num_bytes


@dataclass(frozen=True)
class Row:
    """Measurements of one candidate."""

    name: str
    ratio: float  # signal to noise of one batch, ``|E g|^2 / tr Cov(g)``
    error: float  # standard error of the ratio
    variance: float  # trace of the covariance of one batch's gradient, over the squared length of the reference
    cost: float  # FLOPs of an update relative to one without an estimator
    per_cost: float  # signal to noise of the batch that the cost of a plain update buys: ``ratio / cost``
    per_petaflop: float  # signal to noise that a petaflop buys
    comparison: Comparison  # cosine, length and bias against the reference

    def to_dict(self) -> dict[str, float | str | None]:
        """Return plain values for JSON, which has no nan."""
        flat = asdict(self)
        flat |= flat.pop("comparison")
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in flat.items()}


@torch.no_grad()
def collect_gradients(
    model: UNet,
    draw: Draw,
    candidates: Sequence[Candidate],
    num_batches: int,
    *,
    warm_up: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Compute the policy gradients [K, P] of every candidate on fresh batches, K = ``num_batches``.

    Candidates with the same ``rows_per_text`` get the same batches. Those that learn or have memory get ``warm_up``
    batches beforehand. ``progress`` is called with batches done and batches in all.
    """
    names = [candidate.name for candidate in candidates]
    if len(set(names)) != len(names):
        raise ValueError(f"candidates must have different names, got {sorted(n for n in names if names.count(n) > 1)}")
    gradients: dict[str, list[Tensor]] = {name: [] for name in names}
    learners = [candidate for candidate in candidates if candidate.learns]
    for number in range(warm_up + num_batches):
        for rollout, members in _batches(draw, candidates if number >= warm_up else learners):
            for candidate in members:
                advantages = candidate.advantages(rollout)
                if number >= warm_up:
                    gradients[candidate.name].append(policy_gradient(model, rollout, advantages))
        if progress is not None:
            progress(number + 1, warm_up + num_batches)
    return {name: torch.stack(each).double() for name, each in gradients.items()}


@torch.no_grad()
def train_candidates(draw: Draw, candidates: Sequence[Candidate], num_batches: int) -> list[Candidate]:
    """Let candidates learn from ``num_batches`` of a draw, and return them without their ``learn``.

    Estimators change in place, and those that are modules are in evaluation mode afterwards; functions that have a
    memory keep it.
    """
    learners = [candidate for candidate in candidates if candidate.learns]
    for _ in range(num_batches):
        for rollout, members in _batches(draw, learners):
            for candidate in members:
                candidate.advantages(rollout)
    for candidate in learners:
        if isinstance(candidate.estimator, nn.Module):
            candidate.estimator.eval()
    return [replace(candidate, learn=None) for candidate in candidates]


def _batches(draw: Draw, candidates: Sequence[Candidate]) -> Iterator[tuple[TensorDictBase, list[Candidate]]]:
    """Draw one rollout for each number of rows per text, with the candidates that it is for."""
    for rows in sorted({candidate.rows_per_text for candidate in candidates}):
        yield draw(rows), [candidate for candidate in candidates if candidate.rows_per_text == rows]


def estimator_report(
    model: UNet,
    draw: Draw,
    candidates: Sequence[Candidate],
    *,
    num_batches: int,
    num_rows: int,
    num_steps: int,
    rate: float,
    reference: Tensor | Signal,
    warm_up: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure candidates against a reference gradient: the exact one [P], or one measured on other batches.

    Batches are rollouts [B, T] = [``num_rows``, ``num_steps``] of ``draw``; see :func:`collect_gradients`, with K at
    least 3. ``rate``, boundaries per byte, determines the cost of token layers.
    """
    gradients = collect_gradients(model, draw, candidates, num_batches, warm_up=warm_up, progress=progress)
    plain = update_flops(model, num_rows * num_steps, rate * num_rows * num_steps)
    rows = []
    for candidate in candidates:
        signal = signal_to_noise(gradients[candidate.name])
        flops = candidate.flops(model, num_rows, num_steps, rate)
        squared = reference.signal if isinstance(reference, Signal) else float(reference.double().square().sum())
        rows.append(
            Row(
                name=candidate.name,
                ratio=signal.ratio,
                error=signal.error,
                variance=signal.noise / squared if squared > 0 else math.nan,
                cost=flops / plain,
                per_cost=signal.ratio * plain / flops,
                per_petaflop=signal.ratio / flops * 1e15,
                comparison=compare(signal, reference),
            )
        )
    return rows

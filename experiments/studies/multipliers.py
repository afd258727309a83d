"""Do gradients of token multipliers say what a boundary is worth?

    python -m rltok_rl.experiments.studies.multipliers experiment=recall recipe=ours optim.total_flops=0.88e12 num_batches=20

Bytes receive ``m_j U_j + (1 - m_j) U_{j-1}`` with m = 1. The gradient of a text's log-likelihood with respect to m is
correlated with the effect of removing that boundary alone, all other decisions redrawn with shared random numbers, and
with the return minus the batch mean (gamma 0.9). Options are those of :mod:`rltok_rl.experiments.studies.moments`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn.functional as F
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.studies import moments
from rltok_rl.experiments.studies.common import unchanged
from rltok_rl.experiments.studies.gradients import GradientMeter
from torch import Tensor

from rltok_rl.functional.baselines import batch_mean
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models.mixing import Mixing
from rltok_rl.objectives.base import read, under_next
from rltok_rl.objectives.flips import LocalFlips

NUM_REMOVED, SPAN = 8, 16


def correlation(a: Tensor, b: Tensor) -> float:
    """Return Pearson's correlation."""
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm()))


def measure(trainer: Any, source: Any, config: Any, candidates: Any, options: Any) -> dict[str, Any]:
    """Print correlations of the trainer's present model."""
    model, length = trainer.model, config.data.num_steps
    meter = GradientMeter(model, source, config.data.num_rows, length, seed=100_000 + config.seed)
    rollouts, parts = meter.rollouts(0), []
    with unchanged(trainer):
        torch.manual_seed(0)
        flips = LocalFlips(model, gamma=1.0, num_flips=NUM_REMOVED, span=length)
        for _ in range(options.num_batches):
            parts.append(_measure_batch(flips, rollouts(1)))
    gradient, prob, returns, near, all_later = (torch.cat(part).double() for part in zip(*parts, strict=True))
    features = torch.stack([gradient**0, gradient, gradient * prob, gradient.sign(), gradient.abs()], 1)
    out: dict[str, float] = {"boundaries": len(gradient), "returns": correlation(gradient, returns)}
    for name, effect in ((f"next {SPAN} bytes", near), ("all later bytes", all_later)):
        fit = features @ torch.linalg.lstsq(features, effect[:, None]).solution
        explained = 1 - ((effect - fit[:, 0]) ** 2).mean() / effect.var(unbiased=False)
        out |= {name: correlation(gradient, effect), f"{name}, explained": float(explained)}
        out |= {f"{name}, by returns": correlation(returns, effect)}
    print(json.dumps(out), flush=True)
    return {"reference": {"ratio": 0.0, "error": 0.0}, "rate": meter.rate(), "rows": []}


def _measure_batch(flips: LocalFlips, rollout: Any) -> tuple[Tensor, ...]:
    forced, probs = read(rollout, "forced"), read(rollout, "logits").sigmoid()
    drawn = read(rollout, "action").bool() | forced
    free = drawn & ~forced
    with torch.enable_grad():
        multipliers = torch.ones(drawn.shape, requires_grad=True)
        states, mixing = rollout["encoder_state"].detach(), Mixing(smoothing=multipliers)
        decoded = flips.model.decode(states, drawn, layout="padded", mixing=mixing)
        log_probs = flips.model.final_log_prob(decoded, rollout["next", "byte"])
        (gradient,) = torch.autograd.grad(log_probs.sum(), multipliers)
    where = torch.multinomial(free.float() + 1e-9 * ~free, NUM_REMOVED, replacement=True)  # [B, n]
    fixed = torch.where(forced, 1, -1).unsqueeze(1).repeat(1, NUM_REMOVED, 1)
    fixed = torch.where(forced.unsqueeze(1), 1, fixed.scatter(2, where.unsqueeze(-1), 0))
    _, without = flips._redraw(rollout, fixed)
    effect = (read(rollout, under_next("final_log_prob")).unsqueeze(1) - without).flip(-1).cumsum(-1).flip(-1)
    near = effect - F.pad(effect[..., SPAN:], (0, SPAN))
    returns = batch_mean(discounted_return(read(rollout, under_next("reward")), 0.9))
    at = free.gather(1, where)
    values = [x.gather(1, where) for x in (gradient, probs, returns)]
    values += [x.gather(2, where.unsqueeze(-1)).squeeze(-1) for x in (near, effect)]
    return tuple(x[at] for x in values)


if __name__ == "__main__":
    moments.measure = measure
    options, overrides = moments.split_arguments(sys.argv[1:])
    moments.run(compose_config(overrides), options, "multipliers")

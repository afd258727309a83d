"""Two processes with half the rows each compute what one process computes with all of them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tensordict import TensorDict

from rltok_rl.functional import policy_metrics
from rltok_rl.functional.baselines import (
    RunningMean,
    batch_mean,
    leave_one_out,
    running_mean,
    z_score,
)
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.functional.reduction import loss_mean, masked_mean
from rltok_rl.objectives import RateLoss
from rltok_rl.objectives.baseline import RunningMeanBaseline
from rltok_rl.objectives.rate_loss import CONTROLLERS

from ..forked import CONTEXT

ROWS, STEPS = 6, 9


def statistics(returns, mask, group):
    """Baselines and metrics on the rows of this process."""
    options = {"mask": mask, "process_group": group}
    _, state = running_mean(returns, RunningMean.empty(STEPS), **options)
    memory = RunningMeanBaseline(STEPS)
    memory(returns, **options)
    # Regressors that belong to the row, whichever process holds it.
    regressors = torch.stack((returns.sin().roll(1, -1), torch.arange(STEPS).expand_as(returns)), -1)
    log_ratios = returns.clamp(-1, 1)
    mean, spread = policy_metrics.mean_and_spread(returns, **options)
    return {
        "control_variate": control_variate(returns, regressors, folds=3, **options),
        "running_mean": running_mean(returns, state, **options)[0],
        "its module": memory(returns, **options),
        **{f.__name__: f(returns, **options) for f in (batch_mean, leave_one_out, z_score, masked_mean)},
        "mean of all steps": masked_mean(returns, process_group=group),
        "effective_sample_size": policy_metrics.effective_sample_size(log_ratios, **options),
        "approximate_kl": policy_metrics.approximate_kl(log_ratios, **options),
        "clip_fraction": policy_metrics.clip_fraction(log_ratios, 0.2, **options),
        "mean": mean,
        "spread": spread,
    }


def losses(returns, mask, group):
    """Every loss on the rows of this process, and its gradient by them."""
    results = {}
    for name in ("loss_mean", *RATE_CONTROLS, *CONTROLLERS):
        logits, boundaries = returns.clone().requires_grad_(), returns > 0.5
        if name == "loss_mean":
            loss = loss_mean(logits.square(), mask, process_group=group)
        elif name in RATE_CONTROLS:
            loss = RATE_CONTROLS[name](logits, boundaries, 0.3, mask=mask, process_group=group)
        else:
            rollout = TensorDict({"logits": logits, "action": boundaries, "forced": ~mask}, logits.shape)
            loss = RateLoss(0.3, control=name, process_group=group)(rollout)["loss_rate"]
        results[name] = loss.detach(), torch.autograd.grad(loss, logits)[0]
    return results


def data():
    generator = torch.Generator().manual_seed(3)
    returns = torch.randn(ROWS, STEPS, generator=generator)
    mask = torch.rand(ROWS, STEPS, generator=generator) < 0.7
    mask[:4, 8] = False  # a position whose real rows all belong to one process
    return returns, mask


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    returns, mask = data()
    mine, group = slice(0, 4) if rank == 0 else slice(4, None), dist.group.WORLD  # shards of different size
    alone = leave_one_out(returns[rank : rank + 1], process_group=group)
    results = statistics(returns[mine], mask[mine], group), losses(returns[mine], mask[mine], group), alone
    graded = returns[mine].clone().requires_grad_()  # what all processes sum carries no gradient
    for judge in (batch_mean, lambda x, **o: control_variate(x, x.detach().sin().unsqueeze(-1), **o)):
        (slope,) = torch.autograd.grad(judge(graded, process_group=group).sum(), graded)
        assert (slope == 1).all()
    assert not masked_mean(graded, process_group=group).requires_grad
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_are_one(tmp_path: Path):
    mp.start_processes(work, (str(tmp_path),), 2, start_method=CONTEXT.get_start_method())
    halves, shares, alone = zip(*(torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)), strict=True)
    returns, mask = data()
    for name, value in statistics(returns, mask, None).items():
        parts = [half[name] for half in halves]
        joined = torch.cat(parts) if value.dim() else parts[0]
        torch.testing.assert_close(joined, value, rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
        assert value.dim() or torch.equal(*parts)
    for name, (value, slope) in losses(returns, mask, None).items():  # data-parallel training averages
        both = [share[name] for share in shares]
        torch.testing.assert_close((both[0][0] + both[1][0]) / 2, value, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(torch.cat([g for _, g in both]) / 2, slope, msg=lambda m, n=name: f"{n}: {m}")
        assert slope.abs().max() > 0
    torch.testing.assert_close(torch.cat(alone), leave_one_out(returns[:2]))  # a row per process is two rows in all

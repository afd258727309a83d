"""Two processes with half the rows each see what one process sees with all of them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tensordict import TensorDict

from rltok_rl.functional.baselines import (
    RunningMean,
    batch_mean,
    control_variate,
    leave_one_out,
    running_mean,
    z_score,
)
from rltok_rl.functional.policy_metrics import approximate_kl, clip_fraction, effective_sample_size, mean_and_spread
from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.functional.reduction import loss_mean, masked_mean
from rltok_rl.objectives import RateLoss
from rltok_rl.objectives.rate_loss import CONTROLLERS

from ..forked import CONTEXT

ROWS, STEPS = 6, 9


def everything(returns, mask, group):
    """All that takes a process group, on the rows of this process."""
    advantages, state = running_mean(returns, RunningMean.empty(STEPS), mask=mask, process_group=group)
    # Regressors that belong to the row, whichever process holds it.
    regressors = torch.stack((returns.sin().roll(1, -1), torch.arange(STEPS).expand_as(returns)), -1)
    log_ratios = returns.clamp(-1, 1)
    mean, spread = mean_and_spread(returns, mask, process_group=group)
    return {
        "control_variate": control_variate(returns, regressors, folds=3, mask=mask, process_group=group),
        "effective_sample_size": effective_sample_size(log_ratios, mask, process_group=group),
        "approximate_kl": approximate_kl(log_ratios, mask, process_group=group),
        "clip_fraction": clip_fraction(log_ratios, 0.2, mask, process_group=group),
        "mean": mean,
        "spread": spread,
        "batch_mean": batch_mean(returns, mask=mask, process_group=group),
        "leave_one_out": leave_one_out(returns, mask=mask, process_group=group),
        "z_score": z_score(returns, mask=mask, process_group=group),
        "running_mean": running_mean(returns, state, mask=mask, process_group=group)[0],
        "masked_mean": masked_mean(returns, mask, process_group=group),
    }


def controls(logits, boundaries, mask, group):
    """Every rate control, on the rows of this process: its loss, and the gradient of its logits."""
    found = {}
    for name in (*RATE_CONTROLS, *CONTROLLERS):
        given = logits.clone().requires_grad_()
        if name in RATE_CONTROLS:
            loss = RATE_CONTROLS[name](given, boundaries, 0.3, mask=mask, process_group=group)
        else:
            rollout = TensorDict({"logits": given, "action": boundaries, "forced": ~mask}, given.shape)
            loss = RateLoss(0.3, control=name, process_group=group)(rollout)["loss_rate"]
        found[name] = loss.detach(), torch.autograd.grad(loss, given)[0]
    return found


def data():
    generator = torch.Generator().manual_seed(3)
    returns = torch.randn(ROWS, STEPS, generator=generator)
    mask = torch.rand(ROWS, STEPS, generator=generator) < 0.7
    mask[:4, 8] = False  # a position whose real rows all belong to one process
    return returns, mask


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    returns, mask = data()
    mine = slice(0, 4) if rank == 0 else slice(4, None)  # shards of different size
    weight = torch.ones((), requires_grad=True)
    loss = loss_mean(weight * returns[mine].square(), mask[mine], process_group=dist.group.WORLD)
    loss.backward()
    found = everything(returns[mine], mask[mine], dist.group.WORLD)
    torch.save({**found, "loss": loss.detach(), "gradient": weight.grad}, f"{folder}/{rank}.pt")
    rates = controls(returns[mine], returns[mine] > 0.5, mask[mine], dist.group.WORLD)
    torch.save(rates, f"{folder}/rates{rank}.pt")
    alone = leave_one_out(returns[:1] if rank == 0 else returns[1:2], process_group=dist.group.WORLD)
    torch.save(alone, f"{folder}/alone{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_are_one(tmp_path: Path):
    mp.start_processes(work, (str(tmp_path),), 2, start_method=CONTEXT.get_start_method())
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    returns, mask = data()
    expected = everything(returns, mask, None)
    for name, value in expected.items():
        parts = [half[name] for half in halves]
        found = torch.cat(parts) if parts[0].dim() else parts[0]
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(halves[0]["masked_mean"], halves[1]["masked_mean"])

    weight = torch.ones((), requires_grad=True)
    loss = loss_mean(weight * returns.square(), mask)
    loss.backward()
    for name, value in (("loss", loss.detach()), ("gradient", weight.grad)):  # data-parallel training averages
        torch.testing.assert_close(sum(half[name] for half in halves) / 2, value)
    # A control is told the rate of all, and its push on each logit is what one process would give it.
    shares = [torch.load(tmp_path / f"rates{rank}.pt") for rank in (0, 1)]
    for name, (value, slope) in controls(returns, returns > 0.5, mask, None).items():
        torch.testing.assert_close(
            (shares[0][name][0] + shares[1][name][0]) / 2, value, msg=lambda m, n=name: f"{n}: {m}"
        )
        found = torch.cat([share[name][1] for share in shares]) / 2
        torch.testing.assert_close(found, slope, msg=lambda m, n=name: f"{n}: {m}")
        assert slope.abs().max() > 0
    # One row per process is two rows in all.
    alone = torch.cat([torch.load(tmp_path / f"alone{rank}.pt") for rank in (0, 1)])
    torch.testing.assert_close(alone, leave_one_out(returns[:2]))

"""Trainers in one process and in several, shared by the tests of both."""

from __future__ import annotations

import contextlib
import faulthandler
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rltok_rl.agents import BoundaryCritic, RolloutPolicy
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import RepeatedSource, TextSource
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import BoundaryClipPPOLoss, EntropyBonus, JointLoss, LocalFlips, make_estimator
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.distributed import Processes
from rltok_rl.training.options import recompute_layers
from rltok_rl.training.randomness import seed_everything

from ..forked import CONTEXT

PROSE = (
    "all happy families are alike; every unhappy family is unhappy in its own way. everything was in confusion. " * 20
)
ROWS, STEPS = 8, 20


def make(
    processes: Processes | None = None,
    strategy: str = "none",
    *,
    estimator: str = "discounted_return",
    baseline: str = "leave_one_out",
    control: str = "logit_pressure",
    micro_batches: int = 1,
    updates: int = 4,
    short: bool = False,
    seed: int = 0,
    clip_norm: float = 0.05,
    rates: tuple[float, float] | None = None,
    recompute: str = "none",
    chunk: int | None = None,
    figures_every: int = 1,
    **modes: Any,
) -> Trainer:
    """A small trainer; of the whole batch, or of the rows of one process. ``modes`` are those of PPO."""
    processes = Processes() if processes is None else processes
    seed_everything(seed)
    fields: dict[str, Any] = {"window": 6, "num_lags": 2, "target_rate": 0.3}  # 3 rows: uneven pieces
    model = UNet(preset("tiny", width=16, **fields, rate_embedding=rates is not None))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    # Documents that end within a window: rows start anew at times of their own.
    source = TextSource([PROSE[i : i + 9 + i % 7] for i in range(60)], short_documents="whole") if short else None
    source = RepeatedSource(source or TextSource(PROSE), 2 if baseline == "group_mean" else 1)
    rows = processes.share(ROWS)
    env = ByteBoundaryEnv(
        model, source, num_steps=STEPS, batch_size=(rows,), target_rates=rates, likelihood_chunk=chunk, seed=seed
    )
    extra: dict[str, Any] = {"running_mean": {"num_steps": STEPS}, "group_mean": {"group_size": 2}}.get(baseline, {})
    group = processes.group
    if estimator == "critic_advantage":
        judge: Any = None  # of the term that the clipped one takes the place of
    elif estimator == "local_flips":
        judge = LocalFlips(model, gamma=0.9, num_flips=2, span=7, process_group=group)
    elif estimator == "control_variate":
        judge = make_estimator(estimator, gamma=0.9, process_group=group)
    else:
        judge = make_estimator(estimator, gamma=0.9, baseline=baseline, process_group=group, **extra)
    rate = {"control": control}
    loss = JointLoss.paper(target_rate=0.2, estimator=judge, rate=rate, process_group=group)
    terms = {**loss.terms, "bonus": EntropyBonus(process_group=group)}
    if estimator == "critic_advantage" or modes:
        critic = BoundaryCritic(model.config) if estimator == "critic_advantage" else None
        clipped = BoundaryClipPPOLoss(RolloutPolicy(), critic, entropy_bonus=False, process_group=group)
        how: Any = {"gamma": 0.9, "lmbda": 0.9} if critic is not None else {}
        terms["policy"] = clipped.make_value_estimator("critic_advantage" if critic is not None else judge, **how)
    loss = JointLoss(terms, {"policy": 0.5, "bonus": 0.1})
    total = updates * micro_batches * ROWS * STEPS
    given: dict[str, Any] = {"micro_batches": micro_batches, "figures_every": figures_every, **modes}
    options = LoopOptions(total_bytes=total, clip_norm=clip_norm, **given)
    trainer = Trainer(model, env, loss, options, seed=seed, processes=processes, strategy=strategy)
    recompute_layers(model, recompute)
    return trainer


def metrics_of(trainer: Trainer, updates: int | None = None) -> list[dict[str, float]]:
    """Train, and return the metrics of every update."""
    metrics: list[dict[str, float]] = []
    trainer.run(lambda update: metrics.append(update) or len(metrics) == updates)
    return metrics


def spawn(
    work: Callable[..., None], folder: Path, count: int = 2, *, silence: float = 60.0, limit: float = 240.0
) -> None:
    """Run ``work(processes, folder)`` in several processes that know each other; what they say goes to files there.

    Args:
        work: what all of them do.
        folder: where they meet.
        count: of processes.
        silence: seconds that one waits for another; it fails then, instead of waiting for ever.
        limit: seconds for all of it, in case that one waits for something else.
    """
    given = (work, str(folder), count, silence, limit)
    meeting = mp.start_processes(_meet, given, count, join=False, start_method=CONTEXT.get_start_method())
    end = time.monotonic() + limit + 10
    while not meeting.join(timeout=1.0):
        if time.monotonic() > end:
            for process in meeting.processes:
                process.kill()
            said = "\n".join((folder / f"said {rank}").read_text() for rank in range(count))
            raise TimeoutError(f"{count} processes did not end within {limit:.0f} seconds:\n{said}")


def _meet(rank: int, work: Callable[..., None], folder: str, count: int, silence: float, limit: float) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", count)
    patience = timedelta(seconds=silence)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=patience)
    with open(f"{folder}/said {rank}", "w") as said, contextlib.redirect_stderr(said):
        faulthandler.dump_traceback_later(limit, file=said)
        with Processes(rank, count, torch.device("cpu"), dist.group.WORLD) as processes:
            work(processes, Path(folder))
        faulthandler.cancel_dump_traceback_later()

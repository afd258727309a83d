"""Trainers in one process and in several, shared by the tests of both."""

from __future__ import annotations

import contextlib
import faulthandler
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rltok_rl.agents import BoundaryCritic, RolloutPolicy
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.studies.doubly_robust import DoublyRobustFlips
from rltok_rl.experiments.studies.sibling_trials import SiblingTrials

from rltok_rl.data import RepeatedSource, TextSource
from rltok_rl.models import UNet, preset
from rltok_rl.models.tokens import Packing
from rltok_rl.objectives import (
    BoundaryClipPPOLoss,
    BudgetedFlips,
    DisARM,
    EntropyBonus,
    JointLoss,
    LocalFlips,
    SecondLevelLoss,
    TokenGain,
    make_estimator,
)
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.checkpoint import seed_everything
from rltok_rl.training.distributed import Processes
from rltok_rl.training.options import recompute_layers

from ..forked import CONTEXT

PROSE = (
    "all happy families are alike; every unhappy family is unhappy in its own way. everything was in confusion. " * 20
)
ROWS, STEPS = 8, 20
FLIPS = {
    "local_flips": LocalFlips,
    "token_gain": TokenGain,
    "disarm": lambda model, num_flips, span, **options: DisARM(model, **options),
    "budgeted_flips": partial(BudgetedFlips, baseline="leave_one_out", every=2, settled=10.0),
    "doubly_robust": partial(DoublyRobustFlips, every=2),
    "antithetic": lambda model, num_flips, **options: SiblingTrials(model, coupling="antithetic", **options),
}
UPDATE = ROWS * STEPS  # bytes


def make(
    processes: Processes | None = None,
    strategy: str = "none",
    *,
    estimator: str = "discounted_return",
    baseline: str = "leave_one_out",
    control: str = "logit_pressure",
    ppo: bool = False,
    second_level: bool = False,
    updates: int = 4,
    short: bool = False,
    source: Any = None,
    seed: int = 0,
    rates: tuple[float, float] | None = None,
    recompute: str = "none",
    chunk: int | None = None,
    rows_per_mean: int | None = None,
    token_width: int | None = None,
    room: float | None = None,
    warm_start_rule: str | None = None,
    **options: Any,
) -> Trainer:
    """A small trainer of the whole batch, or of the rows of one process; ``options`` are those of the loop."""
    processes = Processes() if processes is None else processes
    seed_everything(seed)
    fields: dict[str, Any] = {"window": 6, "num_lags": 2, "target_rate": 0.3, "rate_embedding": rates is not None}
    fields |= dict.fromkeys(("boundary_bias", "head_bias"), chunk is not None)
    fields |= {"token_width": token_width}
    levels: dict[str, Any] = {"num_token_layers": 2, "second_level": "routing"} if second_level else {}
    model = UNet(preset("tiny", width=16, **fields, **levels))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    if source is None:  # short documents end within a window, so that rows start anew at different times
        text = [PROSE[i : i + 9 + i % 7] for i in range(60)] if short else PROSE
        source = TextSource(text, short_documents="whole" if short else "error")
    source = RepeatedSource(source, 2) if baseline == "group_mean" else source
    env = ByteBoundaryEnv(
        model,
        source,
        num_steps=STEPS,
        batch_size=(processes.share(ROWS),),
        target_rates=rates,
        likelihood_chunk=chunk,
        layout="padded" if room is None else Packing(tokens=room),
        seed=seed,
    )
    group = processes.group
    extra: dict[str, Any] = {"running_mean": {"num_steps": STEPS}, "group_mean": {"group_size": 2}}.get(baseline, {})
    judge: Any = "critic_advantage"
    if estimator in FLIPS:
        judge = FLIPS[estimator](model, gamma=0.9, num_flips=2, span=7, process_group=group, layout=env.layout)
    elif estimator != judge:
        extra = (
            {} if estimator == "control_variate" else {"baseline": baseline, "rows_per_mean": rows_per_mean, **extra}
        )
        judge = make_estimator(estimator, gamma=0.9, process_group=group, **extra)
    critic = BoundaryCritic(model.config) if estimator == "critic_advantage" else None
    replaced = None if critic else judge
    rate = {"control": control, "rows_per_mean": rows_per_mean}
    terms = JointLoss.paper(target_rate=0.2, estimator=replaced, rate=rate, process_group=group).terms
    terms = {**terms, "bonus": EntropyBonus(process_group=group)}
    if ppo or critic:
        clipped = BoundaryClipPPOLoss(RolloutPolicy(), critic, entropy_bonus=False, process_group=group)
        terms["policy"] = clipped.make_value_estimator(judge, **({"gamma": 0.9, "lmbda": 0.9} if critic else {}))
    if second_level:
        terms["second_level"] = SecondLevelLoss(1 / 3, process_group=group)
    total = updates * options.get("micro_batches", 1) * UPDATE
    loop = LoopOptions(**{"total_bytes": total, "clip_norm": 0.05, **options})
    loss = JointLoss(terms, {"policy": 0.5, "bonus": 0.1})
    rule = None if warm_start_rule is None else make_segmenter(warm_start_rule, model)
    trainer = Trainer(model, env, loss, loop, seed=seed, processes=processes, strategy=strategy, warm_start_rule=rule)
    recompute_layers(model, recompute)
    return trainer


def metrics_of(trainer: Trainer, updates: int | None = None) -> list[dict[str, float]]:
    """Train, and return the metrics of every update."""
    metrics: list[dict[str, float]] = []
    trainer.run(lambda update: metrics.append(update) or len(metrics) == updates)
    return metrics


def spawn(
    work: Callable[..., None],
    folder: Path,
    *,
    silence: float = 60.0,
    limit: float = 240.0,
    hang_seconds: float | None = None,
) -> None:
    """Run ``work(processes, folder)`` in two processes that write their errors to files there.

    A process that waits ``silence`` seconds for the other fails, and so does everything after ``limit`` seconds.
    """
    arguments = (work, str(folder), silence, limit, hang_seconds)
    context = mp.start_processes(_meet, arguments, 2, join=False, start_method=CONTEXT.get_start_method())
    end = time.monotonic() + limit + 10
    while not context.join(timeout=1.0):
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            errors = "\n".join((folder / f"errors {rank}").read_text() for rank in range(2))
            raise TimeoutError(f"the processes did not end within {limit:.0f} seconds:\n{errors}")


def _meet(
    rank: int, work: Callable[..., None], folder: str, silence: float, limit: float, hang_seconds: float | None
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=silence))
    with open(f"{folder}/errors {rank}", "w") as errors, contextlib.redirect_stderr(errors):
        faulthandler.dump_traceback_later(limit, file=errors)
        meetings = None if hang_seconds is None else dist.PrefixStore("meetings", store)
        with Processes(rank, 2, torch.device("cpu"), dist.group.WORLD, meetings, hang_seconds) as processes:
            work(processes, Path(folder))
        faulthandler.cancel_dump_traceback_later()

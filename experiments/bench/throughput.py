"""Steps of the gymnasium environments: rows per second, the work outside the model, and other ways to step.

Times are those of the processor, not of the clock, on a CPU: other programs change them less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from rltok_rl.envs import ByteBoundaryGym, ByteBoundaryVectorEnv, byte_boundary
from rltok_rl.envs.registration import BYTE_BOUNDARY
from rltok_rl.experiments.bench.timing import BenchRow, compare_seconds, fresh_model, seconds

from rltok_rl.models import UNet

STEPS, RATE, PAIRS = 64, 0.2, 5
Stepping = Callable[[], object]
"""One episode of ``STEPS`` steps in all rows, with its reset."""


def throughput(device: str) -> list[BenchRow]:
    """Steps of 1, 32 and 256 texts with and without the model, against single environments, and in SB3's."""
    clock = seconds if device == "cuda" else _processor_seconds
    models = {"tiny": fresh_model("tiny", device).eval(), "pocket": UNet.from_pretrained("pocket", device=device)}
    rows = [_without_model(name, model, n, clock) for name, model in models.items() for n in (1, 32, 256)]
    for name, model in models.items():
        for num_envs, goal in ((32, None), (256, 120.0 if name == "tiny" else None)):
            rows.append(_against_singles(name, model, num_envs, clock, goal))
    return [*rows, *_stable_baselines(models["tiny"], clock)]


def _processor_seconds(function: Stepping) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def _actions(num_envs: int) -> np.ndarray:
    return (np.random.default_rng(0).random((STEPS, num_envs)) < RATE).astype(np.int64)


def _batch(model: UNet, num_envs: int) -> Stepping:
    env, actions = ByteBoundaryVectorEnv(num_envs, model=model, num_steps=STEPS), _actions(num_envs)

    def run() -> None:
        env.reset(seed=0)
        for action in actions:
            env.step(action)

    return run


def _without_model(name: str, model: UNet, num_envs: int, clock: Callable[[Stepping], float]) -> BenchRow:
    """Steps with a model that returns constants against steps with the model."""
    run, device = _batch(model, num_envs), model.embedding.weight.device
    state, log_prob = (torch.randn(num_envs, *size, device=device) for size in ((model.config.width,), ()))

    def decode_bytes(model, cache, boundaries):
        cache.position = cache.position + 1
        return state, None

    def without_model() -> None:
        log_probs = lambda states, following: log_prob  # noqa: E731
        with (
            mock.patch.object(byte_boundary, "read_bytes", lambda *_, rows: state),
            mock.patch.object(byte_boundary, "decode_bytes", decode_bytes),
            mock.patch.multiple(model, early_log_prob=log_probs, final_log_prob=log_probs),
        ):
            run()

    title = f"make_vec({num_envs}) without its model / with {name}"
    goal = None if num_envs == 1 else 5.0
    row = compare_seconds(
        "throughput", title, partial(clock, without_model), partial(clock, run), pairs=PAIRS, goal=goal
    )
    per_second = num_envs * STEPS / row.reference_ms * 1e3
    return replace(row, note=f"{per_second:,.0f} rows per second, {1 / row.ratio:.0%} of them outside the model")


def _against_singles(
    name: str, model: UNet, num_envs: int, clock: Callable[[Stepping], float], goal: float | None
) -> BenchRow:
    """A batch against as many single environments, of which one is timed."""
    batch, single, actions = _batch(model, num_envs), ByteBoundaryGym(model=model, num_steps=STEPS), _actions(1)[:, 0]

    def step_single() -> None:
        single.reset(seed=0)
        for action in actions:
            single.step(int(action))

    title, note = (
        f"make_vec({num_envs}) / {num_envs} single environments, {name}",
        f"one is timed, and counts {num_envs} times",
    )
    theirs = lambda: num_envs * clock(step_single)  # noqa: E731
    return compare_seconds("throughput", title, partial(clock, batch), theirs, pairs=PAIRS, goal=goal, note=note)


def _stable_baselines(model: UNet, clock: Callable[[Stepping], float]) -> list[BenchRow]:
    """Rows per second of ``SB3VecEnv(32)`` against ``make_vec_env(4)``, as agents step them."""
    try:
        from rltok_rl.envs import SB3VecEnv
        from stable_baselines3.common.env_util import make_vec_env
    except ImportError as error:
        print(f"  throughput: skipped Stable-Baselines3: {error}", file=sys.stderr, flush=True)
        return []
    options: dict[str, Any] = {"model": model, "num_steps": STEPS}
    envs = SB3VecEnv(32, **options), make_vec_env(lambda: gymnasium.make(BYTE_BOUNDARY, **options), 4)

    def stepping(env) -> Stepping:  # type: ignore[no-untyped-def]
        actions = _actions(env.num_envs)

        def run() -> None:
            env.reset()
            for action in actions:
                env.step(action)

        return run

    ours, theirs = (partial(clock, stepping(env)) for env in envs)
    note = "time for as many rows; the reference is timed with 4 and counts 8 times"
    title = "SB3VecEnv(32) / make_vec_env(4) of Stable-Baselines3, tiny"
    return [compare_seconds("throughput", title, ours, lambda: 8 * theirs(), pairs=PAIRS, goal=12.0, note=note)]

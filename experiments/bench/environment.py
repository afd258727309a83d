"""The environment: whole rollouts against stepping, its own work in a step, batched against single gymnasium ones."""

from __future__ import annotations

import time
from unittest import mock

import numpy as np
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv, ByteBoundaryGym, ByteBoundaryVectorEnv, byte_boundary
from rltok_rl.experiments.bench.harness import Row, compare, compare_seconds
from torchrl.envs import EnvBase

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.models.incremental import Observation, Prediction

LENGTH, STEPPED = 4096, 512


def rollout_row(device: str) -> Row:
    """``small``, T = 4096, B = 8: one forward pass against 4,096 steps.

    Stepping is timed over the first 512 steps and scaled up: a byte costs nearly the same at every position (the
    decoding section shows how nearly), and the rest would take minutes.
    """
    model = UNet(preset("small")).to(device).eval()
    env = ByteBoundaryEnv(model, local_prose(), num_steps=LENGTH, batch_size=(8,), seed=0)
    actor = LearnedBoundaryActor(model)

    @torch.no_grad()
    def parallel() -> float:
        start = time.perf_counter()
        env.parallel_rollout(actor)["next", "reward"].sum().item()
        return time.perf_counter() - start

    @torch.no_grad()
    def stepped() -> float:
        start = time.perf_counter()
        EnvBase.rollout(env, STEPPED, actor)["next", "reward"].sum().item()
        return (time.perf_counter() - start) * LENGTH / STEPPED

    goal = 10.0 if device == "cpu" else 200.0
    name = "parallel rollout / stepping, small, T=4096, B=8"
    return compare_seconds("environment", name, parallel, stepped, pairs=3, goal=goal, note="both without gradients")


def machinery_row(device: str) -> Row:
    """What a step costs beside the model, B = 64: the same steps with a model that answers from memory."""
    model = UNet(preset("tiny")).to(device).eval()
    env = ByteBoundaryEnv(model, local_prose(), num_steps=LENGTH, batch_size=(64,), seed=0)
    state, logits = torch.randn(64, model.config.width, device=device), torch.randn(64, 256, device=device)

    def observe(model, cache, byte_ids, rows=None):
        return Observation(state, logits[:, 0], logits)

    def decide(model, cache, boundaries):
        cache.position = cache.position + 1
        return Prediction(state, logits)

    def steps(num_steps: int = 200) -> float:
        td = env.reset()
        td.set("action", torch.ones(64, dtype=torch.int64, device=device))
        start = time.perf_counter()
        for _ in range(num_steps):
            env._step(td)
        return (time.perf_counter() - start) / num_steps

    def without_model() -> float:
        with mock.patch.object(byte_boundary, "observe", observe), mock.patch.object(byte_boundary, "decide", decide):
            return steps()

    row = compare_seconds("environment", "a step without its model / with tiny, B=64", without_model, steps, pairs=5)
    verdict = "met" if row.ours_ms <= 0.3 else "MISSED"
    return Row(**{**row.__dict__, "note": f"goal 0.3 ms without the model: {verdict}"})


def vector_row(device: str) -> Row:
    """32 texts in one batched step against 32 environments, tiny."""
    model = UNet(preset("tiny")).to(device).eval()
    num_envs, num_steps = 32, 20
    vector = ByteBoundaryVectorEnv(num_envs, model=model, num_steps=num_steps)
    singles = [ByteBoundaryGym(model=model, num_steps=num_steps) for _ in range(num_envs)]
    actions = np.random.default_rng(0).integers(0, 2, (num_steps, num_envs))

    def batched() -> None:
        vector.reset(seed=0)
        for step in range(num_steps):
            vector.step(actions[step])

    def one_by_one() -> None:
        for env in singles:
            env.reset(seed=0)
        for step in range(num_steps):
            for number, env in enumerate(singles):
                env.step(int(actions[step, number]))

    return compare("environment", "vector env / 32 single envs, tiny", batched, one_by_one, pairs=3, goal=10.0)


def rows(device: str) -> list[Row]:
    """All three."""
    torch.manual_seed(0)
    return [make(device) for make in (rollout_row, machinery_row, vector_row)]

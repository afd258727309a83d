"""Collectors in two processes build the environment from a function that can be sent to them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
from rltok_rl.agents import LearnedBoundaryActor, RandomActor
from rltok_rl.envs import ByteBoundaryEnv
from torchrl.collectors import MultiSyncCollector

from rltok_rl.models import SharedModel, UNet, preset
from rltok_rl.text import ids_to_bytes

from ..forked import CONTEXT


@pytest.fixture(autouse=True)
def _begin_quickly() -> Iterator[None]:
    """Workers take their environments as they do by default, pickled, but need not import everything first."""
    before = mp.get_start_method(allow_none=True)
    mp.set_start_method(CONTEXT.get_start_method(), force=True)
    yield
    mp.set_start_method(before, force=True)


def make_env(seed: int) -> ByteBoundaryEnv:
    """Two rows over a text of one's own."""
    return ByteBoundaryEnv(UNet(preset("tiny")).eval(), "some text " * 10, num_steps=8, batch_size=(2,), seed=seed)


def test_two_processes():
    collector = MultiSyncCollector(
        [partial(make_env, 0), partial(make_env, 1)],
        RandomActor(0.3),
        frames_per_batch=32,
        total_frames=64,
        cat_results="stack",
        auto_register_policy_transforms=False,
    )
    try:
        batches = [batch.clone() for batch in collector]
    finally:
        collector.shutdown()
    assert len(batches) == 2
    assert batches[0].shape == (2, 2, 8)
    assert (batches[0]["byte"] > 0).all()


def shared_env(shared: SharedModel, seed: int) -> ByteBoundaryEnv:
    """Two rows over a shared model."""
    return ByteBoundaryEnv(shared(), "some text " * 10, num_steps=8, batch_size=(2,), seed=seed)


def shared_actor(shared: SharedModel) -> LearnedBoundaryActor:
    """The policy of a shared model."""
    return LearnedBoundaryActor(shared())


@torch.no_grad()
def test_two_processes_read_the_weights_that_are_trained_here():
    """Every batch is what the model, as it stands here and now, makes of the same texts and decisions."""
    torch.manual_seed(0)
    model = UNet(preset("tiny")).eval()
    shared = SharedModel(model)
    collector = MultiSyncCollector(
        [partial(shared_env, shared, seed) for seed in (0, 1)],
        policy_factory=[partial(shared_actor, shared)] * 2,
        frames_per_batch=32,
        total_frames=96,
        cat_results="stack",
        reset_at_each_iter=True,  # a text that goes on has been read in part with the weights of before
        auto_register_policy_transforms=False,
    )
    here = ByteBoundaryEnv(model, "some text " * 10, num_steps=8, batch_size=(), seed=0)
    try:
        for batch in collector:
            for row in batch.clone().flatten(0, 1).unbind(0):
                text = ids_to_bytes(torch.cat((row["byte"], row["next", "byte"][-1:])))
                expected = here.parallel_rollout(LearnedBoundaryActor(model), actions=row["action"], text=text)
                for key in ("encoder_state", "logits", ("next", "reward")):
                    torch.testing.assert_close(row[key], expected[key], rtol=1e-4, atol=1e-4)
            for weight in model.parameters():
                weight.mul_(1.2)  # in place, as an optimizer does
    finally:
        collector.shutdown()


def test_a_shared_model_is_on_the_cpu():
    with pytest.raises(ValueError, match="model must be on the CPU to be shared between processes, got meta"):
        SharedModel(UNet(preset("tiny")).to("meta"))

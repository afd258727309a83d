"""Collectors in two processes build the environment from a function that can be sent to them."""

from __future__ import annotations

from functools import partial

from rltok_rl.agents import RandomActor
from rltok_rl.envs import ByteBoundaryEnv
from torchrl.collectors import MultiSyncCollector

from rltok_rl.models import UNet, preset


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

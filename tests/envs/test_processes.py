"""Collectors in two processes build the environment from a function that can be sent to them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
from rltok_rl.agents import LearnedBoundaryActor, RandomActor
from rltok_rl.envs import ByteBoundaryEnv
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector

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


def make_env(seed: int, shared: SharedModel | None = None, batch_size: tuple[int, ...] = (2,)) -> ByteBoundaryEnv:
    model = UNet(preset("tiny")).eval() if shared is None else shared()
    return ByteBoundaryEnv(model, "some text " * 10, num_steps=8, batch_size=batch_size, seed=seed)


def make_actor(shared: SharedModel) -> LearnedBoundaryActor:
    return LearnedBoundaryActor(shared())


def collect(
    total_frames: int, shared: SharedModel | None = None, kind: type = MultiSyncCollector, **options
) -> Iterator:
    options |= {"frames_per_batch": 32, "total_frames": total_frames}
    options |= {"cat_results": "stack"} if kind is MultiSyncCollector else {}
    makers = [partial(make_env, seed, shared) for seed in (0, 1)]
    collector = kind(makers, **options, auto_register_policy_transforms=False)
    try:
        yield from (batch.clone() for batch in collector)
    finally:
        collector.shutdown()


def test_two_processes():
    batches = list(collect(64, policy=RandomActor(0.3)))
    assert [batch.shape for batch in batches] == [(2, 2, 8)] * 2 and (batches[0]["byte"] > 0).all()


def test_two_processes_that_do_not_wait_for_each_other():
    batches = list(collect(96, policy=RandomActor(0.3), kind=MultiAsyncCollector))
    assert [batch.shape for batch in batches] == [(2, 16)] * 3 and (batches[0]["byte"] > 0).all()


@torch.no_grad()
def test_two_processes_read_the_weights_that_are_trained_here():
    """Every batch is what the model, as it is here and now, makes of the same texts and decisions."""
    torch.manual_seed(0)
    model = UNet(preset("tiny")).eval()
    shared = SharedModel(model)
    here, actor = make_env(0, lambda: model, batch_size=()), LearnedBoundaryActor(model)
    # Texts that go on were read in part with earlier weights.
    options = {"policy_factory": [partial(make_actor, shared)] * 2, "reset_at_each_iter": True}
    for batch in collect(96, shared, **options):
        for row in batch.flatten(0, 1).unbind(0):
            text = ids_to_bytes(torch.cat((row["byte"], row["next", "byte"][-1:])))
            expected = here.parallel_rollout(actor, actions=row["action"], text=text)
            for key in ("encoder_state", "logits", ("next", "reward")):
                torch.testing.assert_close(row[key], expected[key], rtol=1e-4, atol=1e-4)
        for weight in model.parameters():
            weight.mul_(1.2)  # in place, as an optimizer does


def test_a_shared_model_is_on_the_cpu():
    with pytest.raises(ValueError, match="model must be on the CPU to be shared between processes, got meta"):
        SharedModel(UNet(preset("tiny")).to("meta"))

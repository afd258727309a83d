"""Seeds repeat texts and actions, and a saved environment continues with the texts that come next."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, RandomActor, UniformActor
from rltok_rl.envs import ByteBoundaryEnv, ParallelCollector
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, RewardScaling, SerialEnv, TransformedEnv

from rltok_rl.data import OrderedSource, TextSource

from ..states import same
from .conftest import LONG

ROLLS = {
    "rollout": lambda env, actor: env.rollout(24, actor),
    "stepped": lambda env, actor: EnvBase.rollout(env, 24, actor),
    "restarting": lambda env, actor: EnvBase.rollout(env, 24, actor, break_when_any_done=False),
    "parallel": lambda env, actor: env.parallel_rollout(actor),
    "random": lambda env, actor: env.rollout(24),
}


WRAPS = {
    "bare": lambda env: env,
    "transformed": lambda env: TransformedEnv(env, RewardScaling(0.0, 2.0)),
    "twice": lambda env: TransformedEnv(WRAPS["transformed"](env), RewardScaling(0.0, 2.0), auto_unwrap=False),
}


@torch.no_grad()
@pytest.mark.parametrize("wrap", WRAPS)
def test_a_seed_repeats_texts_and_actions(wrap, make_env, model):
    """With torch's generator in any state, which is left as it was; a second rollout differs."""
    env, actor, drawn = WRAPS[wrap](make_env()), LearnedBoundaryActor(model), {}
    bare = make_env()
    for name, roll in ROLLS.items():
        for seed in (0, 0, 1):
            env.set_seed(seed)
            before = torch.get_rng_state()
            rollouts = [roll(env, actor) for _ in range(2)]
            assert torch.equal(before, torch.get_rng_state())
            torch.rand(3)
            assert not torch.equal(rollouts[0]["action"], rollouts[1]["action"])
            drawn.setdefault((name, seed), []).append([(r["byte"], r["action"]) for r in rollouts])
        bare.set_seed(seed)
        assert torch.equal(roll(bare, actor)["action"], drawn[name, seed][0][0][1])
        (first, again), (other,) = drawn[name, 0], drawn[name, 1]
        torch.testing.assert_close(first, again, rtol=0, atol=0)
        assert not torch.equal(first[0][1], other[0][1])
    for name in ("stepped", "parallel", "restarting"):
        torch.testing.assert_close(drawn[name, 0][0], drawn["rollout", 0][0], rtol=0, atol=0)
    actions = []
    for _ in range(2):
        env.set_seed(3)
        actions.append(torch.stack([env.rand_action()["action"] for _ in range(20)]))
    assert torch.equal(*actions) and len(actions[0].unique(dim=0)) > 1


@torch.no_grad()
def test_without_set_seed_actions_follow_torch(make_env, model):
    """As TorchRL's policies do, and with them everything that was drawn before there was a generator of actions."""
    actor = LearnedBoundaryActor(model)
    for roll in ROLLS.values():
        actions = []
        for seed in (0, 0, 1):
            env = make_env()
            torch.manual_seed(seed)
            actions.append(roll(env, actor)["action"])
        assert torch.equal(*actions[:2]) and not torch.equal(*actions[1:])


def test_seeds_are_those_of_torchrl(make_env):
    """None seeds nothing; the answer is the seed for another environment, the same one if it is static."""
    env = make_env()
    before = env.random_state()
    assert env.set_seed(None) is None and torch.equal(env.random_state(), before)
    assert env.set_seed(3, static_seed=True) == 3 != env.set_seed(3) == SerialEnv(1, make_env).set_seed(3)
    assert not torch.equal(env.random_state(), before)


def ordered_env(model) -> ByteBoundaryEnv:
    return ByteBoundaryEnv(model, OrderedSource(TextSource(LONG), length=9, seed=0), num_steps=8, batch_size=(3,))


@torch.no_grad()
def test_a_loaded_environment_continues_the_data_and_the_actions(make_env, model):
    """A source with a random position and one with an order; saved through a file, and inside a ``SerialEnv``."""
    for make in (lambda: make_env(num_steps=8), lambda: ordered_env(model)):
        saved, actor = make(), LearnedBoundaryActor(model)
        saved.set_seed(7)
        for _ in range(3):
            saved.rollout(8, actor)
        state = saved.state_dict()
        expected = [saved.rollout(8, actor) for _ in range(2)]
        loaded = make()
        loaded.reset()
        loaded.load_state_dict(state)
        for rollout in expected:
            torch.testing.assert_close(loaded.rollout(8, actor), rollout, rtol=0, atol=0)
        before = loaded.get_extra_state()
        loaded.load_state_dict({})  # TorchRL's collectors save no state of a plain environment
        assert same(loaded.get_extra_state(), before)
        loaded.reset()
        loaded.set_random_state(before["texts"])
        with pytest.raises(RuntimeError, match="step was called before reset"):
            loaded.step(rollout[:, 0])
        loaded.load_state_dict(make().state_dict())  # of an environment without a generator of actions
        actions = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            actions.append(torch.stack([loaded.rand_action()["action"] for _ in range(20)]))
        assert torch.equal(*actions[:2]) and not torch.equal(*actions[1:])
    both = SerialEnv(2, lambda: make_env(num_steps=8, batch_size=()), serial_for_single=True)
    state, first = both.state_dict(), both.reset()["byte"]
    both.load_state_dict(state)
    assert torch.equal(both.reset()["byte"], first)


@torch.no_grad()
def test_rows_finish_their_text_after_loading(make_env):
    env = make_env()
    state, td = env.state_dict(), env.reset()
    expected = env._byte_ids.clone()
    env.load_state_dict(state)
    for step in range(1, 24):
        td = env.step(td.set("action", torch.zeros(3, dtype=torch.int64)))["next"]
        assert torch.equal(td["byte"], expected[:, step])
    assert torch.equal(env.reset()["byte"], expected[:, 0])  # what the saved environment would have read next


@torch.no_grad()
@pytest.mark.parametrize(
    "kind, transformed", [(ParallelCollector, False), (ParallelCollector, True), (Collector, False)]
)
def test_collectors_resume(kind, transformed, make_env):
    def collector():
        env = make_env(num_steps=8, batch_size=(2,))
        env = TransformedEnv(env, RewardScaling(0.0, 2.0)) if transformed else env
        options = {"reset_at_each_iter": True, "auto_register_policy_transforms": False}
        return kind(env, UniformActor(0.4), frames_per_batch=16, total_frames=96, **options)

    whole = collector()
    batches = iter(whole)
    next(batches)
    state = whole.state_dict()
    if kind is Collector:
        state["env_state_dict"] = whole.env.state_dict()
    expected = next(batches)["byte"].clone()
    resumed = collector()
    resumed.load_state_dict(state)
    assert torch.equal(next(iter(resumed))["byte"], expected)
    whole.shutdown(), resumed.shutdown()


@torch.no_grad()
def test_a_seeded_parallel_collector_repeats_actions(make_env):
    batches = []
    for _ in range(2):
        collector = ParallelCollector(make_env(), RandomActor(0.5), total_frames=72)
        collector.set_seed(5)
        batches.append(next(iter(collector))["action"])
    assert torch.equal(*batches)

"""Actors draw at their rate, score their decisions, and work in TorchRL's losses and collectors."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from rltok_rl.agents import (
    BernoulliBoundary,
    BoundaryCritic,
    FixedStrideActor,
    LearnedBoundaryActor,
    RandomActor,
    UniformActor,
    WhitespaceActor,
)
from rltok_rl.envs import ByteBoundaryEnv, ParallelCollector
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import EnvBase, ExplorationType, RewardSum, TransformedEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import set_recurrent_mode

from rltok_rl.data import TextSource
from rltok_rl.models import UNet, preset

TEXT = "Call me Ishmael. Some years ago - never mind how long precisely - I thought I would sail about a little. " * 3


@pytest.fixture
def model() -> UNet:
    return UNet(preset("tiny")).eval()


@pytest.fixture
def env(model) -> ByteBoundaryEnv:
    return ByteBoundaryEnv(model, TEXT, num_steps=20, batch_size=(4,), seed=0)


def observed(text: bytes) -> TensorDict:
    position = torch.arange(len(text))[None, :, None]
    entries = {"byte": torch.tensor([list(text)]), "position": position, "forced": position[..., 0] == 0}
    return TensorDict(entries, (1, len(text)))


def test_distribution_equals_torch():
    logits = torch.linspace(-6, 6, 25)
    ours, theirs = BernoulliBoundary(logits), torch.distributions.Bernoulli(logits=logits)
    for value in (0, 1):
        integers = torch.full((25,), value)
        for values in (integers, integers.bool()):
            torch.testing.assert_close(ours.log_prob(values), theirs.log_prob(integers.float()))
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.variance, theirs.variance)
    assert ours.sample().dtype == ours.mode.dtype == torch.int64
    assert ours.sample((3,)).shape == (3, 25) and ours.expand((2, 25)).logits.shape == (2, 25)
    torch.testing.assert_close(ours.log_prob(ours.enumerate_support()).exp().sum(0), torch.ones(25))
    assert ours.enumerate_support(expand=False).tolist() == [[0], [1]]
    assert BernoulliBoundary(torch.zeros(1)).mode.item() == 0  # a tie is no boundary
    few = BernoulliBoundary(torch.tensor([-2.0, 0.0, 1.0]))
    mean = few.sample((40_000,)).float().mean(0)  # a standard error is at most 0.0025
    torch.testing.assert_close(mean, few.probs, rtol=0, atol=0.0125)


def test_forced_boundaries():
    policy = BernoulliBoundary(torch.tensor([-50.0, -50.0]), forced=torch.tensor([True, False]))
    several = policy.sample((3,))
    assert torch.equal(policy.log_prob(several), policy.log_prob(policy.sample()).expand(3, 2))
    assert policy.sample().tolist() == policy.mode.tolist() == [1, 0]
    assert policy.log_prob(torch.tensor([1, 0]))[0] == 0 == policy.entropy()[0]
    for each in (policy, policy.expand((3, 2))):
        assert each.probs[..., 0].eq(1).all() and each.probs[..., 1].lt(1e-9).all()
        assert each.variance.lt(1e-9).all() and each.mode[..., 0].eq(1).all()


def test_fixed_rules():
    shares = ((1, 3), (1, 4), (1, 5), (3, 10), (7, 100), (207, 1000), (1, 1))  # 100 * 0.07 is a little more than 7
    for rate in (Fraction(*share) for share in shares):
        drawn = UniformActor(float(rate))(observed(bytes(500)))["action"][0]
        assert drawn.cumsum(0).tolist() == [math.ceil(rate * t) for t in range(1, 501)], rate
    marks = WhitespaceActor()(observed(bytes(range(256))))["action"][0, 1:].nonzero().flatten() + 1
    assert bytes(marks.tolist()) == b"\t\n\v\f\r "
    for actor, drawn in ((WhitespaceActor(), "10001000001"), (FixedStrideActor(4), "10001000100")):
        assert "".join(map(str, actor(observed(b" two words\n"))["action"][0].tolist())) == drawn


@torch.no_grad()
def test_scores_of_stored_decisions_are_the_sampled_ones(env, model):
    """As losses score: recurrent mode on, deterministic, decisions and earlier boundaries from the buffer."""
    actor = LearnedBoundaryActor(model)
    assert {id(p) for p in actor.parameters()} <= {id(p) for p in model.parameters()}
    rollout = env.parallel_rollout(actor)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    buffer.extend(rollout)
    for stored in (rollout, buffer.sample()):
        assert stored.shape == (4, 20)
        with set_recurrent_mode(True), set_exploration_type(ExplorationType.DETERMINISTIC):
            policy = actor.get_dist(stored)
            log_prob = policy.log_prob(stored["action"])
        torch.testing.assert_close(log_prob, stored["action_log_prob"], rtol=0, atol=1e-6)
        torch.testing.assert_close(policy.entropy(), stored["entropy"], rtol=0, atol=1e-6)
    rollout = EnvBase.rollout(env, 20, RandomActor(0.5))
    torch.testing.assert_close(rollout["action_log_prob"][:, 1:].exp(), torch.full((4, 19), 0.5))
    assert (rollout["action"][:, 0] == 1).all() and (rollout["action_log_prob"][:, 0] == 0).all()


def test_collectors(env, model):
    """The stock collector steps, ours makes whole windows; keys, shapes and names are equal."""
    options = {"frames_per_batch": 80, "total_frames": 160}
    for actor in (LearnedBoundaryActor(model), RandomActor(0.3), WhitespaceActor()):
        stock = Collector(env, actor, auto_register_policy_transforms=False, **options)
        ours = ParallelCollector(env, actor, **options)
        keys = []
        for collector in (stock, ours):
            batches = list(collector)
            assert len(batches) == 2
            assert batches[0].shape == (4, 20) and batches[0].names == [None, "time"]
            keys.append(set(batches[0].keys(True, True)))
        assert keys[0] == keys[1]
        ids = [batch["collector", "traj_ids"] for batch in batches]
        assert len(torch.unique(torch.stack(ids))) == 8  # a new number for every text
        assert all((i == i[:, :1]).all() for i in ids)
        stock.shutdown(), ours.shutdown()


def test_parallel_collector_honours_the_stock_options(env, model):
    actor, calls = LearnedBoundaryActor(model), []

    def batch(**options):
        env.set_seed(0)
        return next(iter(ParallelCollector(env, actor, total_frames=80, **options)))

    greedy = batch(exploration_type=ExplorationType.DETERMINISTIC)
    free = ~greedy["forced"]
    assert torch.equal(greedy["action"][free], (greedy["logits"] > 0).long()[free])
    assert not greedy["logits"].requires_grad
    batch(pre_collect_hook=lambda: calls.append(1))
    assert calls == [1]
    short = batch(frames_per_batch=40, set_truncated=True)  # half an episode
    assert short.shape == (4, 10) and bool(short["next", "truncated"][:, -1].all())
    assert not bool(batch(frames_per_batch=40)["next", "truncated"].any())


def test_every_text_in_a_batch_has_a_new_trajectory_number(model):
    source = TextSource(["abcd", "a text that is longer", "x" * 9], short_documents="whole")
    env, numbers = ByteBoundaryEnv(model, source, num_steps=20, batch_size=(2,), seed=0), []
    for batch in ParallelCollector(env, RandomActor(0.3), total_frames=120, frames_per_batch=60):
        first, ids = batch["position"].squeeze(-1) == 0, batch["collector", "traj_ids"]
        assert first.sum() > 4
        assert torch.equal(ids[:, 1:] != ids[:, :-1], first[:, 1:])
        numbers += ids[first].tolist()
    assert len(set(numbers)) == len(numbers)


def test_critic_starts_at_zero_and_is_detached(env, model):
    for options in ({}, {"detach": True}, {"detach": False}):
        critic = BoundaryCritic(model.config, **options)
        rollout = critic(env.parallel_rollout())
        assert rollout["state_value"].shape == (4, 20, 1) and (rollout["state_value"] == 0).all()
        with torch.no_grad():
            critic.module[-1].weight.normal_()
        model.zero_grad()
        critic(rollout)["state_value"].sum().backward()
        assert (model.embedding.weight.grad is None) == options.get("detach", True)
    states = rollout["encoder_state"].detach()
    torch.testing.assert_close(critic.module(7 * states), critic.module(states), rtol=1e-3, atol=1e-3)  # normed


def test_refusals(env, model):
    two_lags = ByteBoundaryEnv(UNet(preset("tiny", num_lags=2)).eval(), TEXT, num_steps=5, batch_size=(2,), seed=0)
    too_many_lags = "recent must hold the last 8 boundaries, got 2"

    def collector(policy=None, env=env, **options):
        return ParallelCollector(env, policy or RandomActor(0.3), total_frames=80, **options)

    for call, error, message in [
        (lambda: RandomActor(0.0), ValueError, "rate must lie strictly between 0 and 1, got 0.0"),
        (lambda: UniformActor(1.5), ValueError, r"rate must lie in \(0, 1\], got 1.5"),
        *(
            (lambda kind=kind: kind("0.2"), TypeError, "rate must be a number, got '0.2'")
            for kind in (RandomActor, UniformActor)
        ),
        (lambda: FixedStrideActor(0), ValueError, "stride must be an integer of at least 1, got 0"),
        (lambda: collector(lambda td: td), ValueError, "policy must draw whole windows .* got function"),
        (lambda: collector(max_frames_per_traj=10), ValueError, "max_frames_per_traj needs .* stepped .* got 10"),
        (lambda: collector(init_random_frames=8), ValueError, "init_random_frames needs .* stepped .* got 8"),
        *(
            (lambda n=n: collector(frames_per_batch=n), ValueError, f"frames_per_batch must be .* 4 rows, got {n}")
            for n in (42, 0, -4)
        ),
        (lambda: collector(env=TransformedEnv(env, RewardSum())), ValueError, "env must have .* got RewardSum"),
        (lambda: EnvBase.rollout(two_lags, 5, LearnedBoundaryActor(model)), ValueError, too_many_lags),
        (lambda: two_lags.parallel_rollout(LearnedBoundaryActor(model)), ValueError, too_many_lags),
    ]:
        with pytest.raises(error, match=message):
            call()

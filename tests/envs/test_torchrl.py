"""TorchRL's own policies, collectors and losses on the environment, unmodified."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, RandomActor
from rltok_rl.envs import ParallelCollector
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, InitTracker, TransformedEnv
from torchrl.modules import EGreedyModule, LSTMModule, ProbabilisticActor, QValueActor, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, DiscreteSACLoss, DQNLoss, SoftUpdate
from torchrl.objectives.value import GAE

NO_HOOKS = {"auto_register_policy_transforms": False}


def network(width: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, outputs))


def categorical_actor(env, logits: nn.Module | None = None) -> ProbabilisticActor:
    if logits is None:
        logits = TensorDictModule(network(env.model.config.width, 2), in_keys=["encoder_state"], out_keys=["logits"])
    options = {"distribution_class": Categorical, "return_log_prob": True}
    return ProbabilisticActor(logits, in_keys=["logits"], spec=env.action_spec, **options)


def on_policy(env, kind):
    actor = categorical_actor(env)
    critic = ValueOperator(network(env.model.config.width, 1), in_keys=["encoder_state"])
    loss, advantage = kind(actor, critic), GAE(gamma=0.9, lmbda=0.9, value_network=critic)
    return actor, loss, lambda batch: loss(advantage(batch))


def dqn(env):
    spec = env.action_spec_unbatched
    actor = QValueActor(network(env.model.config.width, 2), in_keys=["encoder_state"], spec=spec)
    loss = DQNLoss(actor, action_space=spec, delay_value=True)
    updater, buffer = SoftUpdate(loss, eps=0.9), TensorDictReplayBuffer(storage=LazyTensorStorage(96), batch_size=32)

    def learn(batch):
        updater.step()
        buffer.extend(batch.reshape(-1))
        return loss(buffer.sample())

    return TensorDictSequential(actor, EGreedyModule(env.action_spec, annealing_num_steps=100)), loss, learn


def discrete_sac(env):
    actor = categorical_actor(env)
    value = TensorDictModule(network(env.model.config.width, 2), in_keys=["encoder_state"], out_keys=["action_value"])
    loss = DiscreteSACLoss(actor, value, action_space=env.action_spec, num_actions=2)
    updater = SoftUpdate(loss, eps=0.9)
    return actor, loss, lambda batch: (updater.step(), loss(batch.reshape(-1)))[1]


METHODS = {
    "ClipPPO": lambda env: on_policy(env, ClipPPOLoss),
    "A2C": lambda env: on_policy(env, A2CLoss),
    "DQN": dqn,
    "discrete SAC": discrete_sac,
}


@pytest.mark.parametrize("method", METHODS)
def test_stock_losses_train_stock_policies(method, make_env):
    env = make_env(num_steps=8, batch_size=(2,), price=0.05)
    policy, loss, learn = METHODS[method](env)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    collector = Collector(env, policy, frames_per_batch=48, total_frames=96, **NO_HOOKS)
    before = [p.detach().clone() for p in policy.parameters()]
    for batch in collector:
        assert batch.shape == (2, 24) and batch["action"].dtype == torch.int64
        losses = learn(batch)
        total = sum(value for key, value in losses.items() if key.startswith("loss"))
        assert torch.isfinite(total)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    collector.shutdown()
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_parallel_collector_takes_options_that_ask_for_nothing(make_env):
    options = {"max_frames_per_traj": 0, "init_random_frames": None, "track_traj_ids": False}
    env = make_env(num_steps=8, batch_size=(2,))
    (batch,) = ParallelCollector(env, RandomActor(0.3), total_frames=16, **options)
    assert batch.shape == (2, 8) and "collector" not in batch.keys()
    with pytest.warns(FutureWarning, match="missing transforms"):  # the collector's own word, if it is asked to decide
        ParallelCollector(env, RandomActor(0.3), total_frames=16, auto_register_policy_transforms=None)


def test_batches_of_a_parallel_collector_keep_no_graph(make_env, model):
    (batch,) = ParallelCollector(make_env(), LearnedBoundaryActor(model), total_frames=72)
    kept = batch.flatten_keys(".").items()
    assert "action_log_prob" in batch.keys() and not [name for name, x in kept if x.requires_grad]


def test_an_lstm_policy_steps_and_is_refused_elsewhere(make_env):
    env = make_env(num_steps=8, batch_size=(2,))
    lstm = LSTMModule(input_size=env.model.config.width, hidden_size=8, in_key="encoder_state", out_key="memory")
    head = TensorDictModule(nn.Linear(8, 2), in_keys=["memory"], out_keys=["logits"])
    actor = categorical_actor(env, TensorDictSequential(lstm, head))
    with pytest.raises(TypeError, match="actor must draw whole windows .* got ProbabilisticActor; env.rollout steps"):
        env.parallel_rollout(actor)
    with pytest.raises(ValueError, match="policy must draw whole windows .* torchrl.collectors.Collector steps any"):
        ParallelCollector(env, actor, total_frames=32)
    stepping = TransformedEnv(env, Compose(InitTracker(), lstm.make_tensordict_primer()))
    collector = Collector(stepping, actor, frames_per_batch=32, total_frames=32, **NO_HOOKS)
    (batch,) = [batch.clone() for batch in collector]
    collector.shutdown()
    assert batch.shape == (2, 16) and batch["next", "recurrent_state_h"].abs().max() > 0
    critic = ValueOperator(network(env.model.config.width, 1), in_keys=["encoder_state"])
    batch = GAE(gamma=0.9, lmbda=0.9, value_network=critic)(batch)
    ClipPPOLoss(actor, critic)(batch)["loss_objective"].backward()

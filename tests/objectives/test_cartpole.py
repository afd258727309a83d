"""The estimators are not tied to text: they balance a pole with TorchRL's losses."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import ExplorationType, GymEnv, SerialEnv
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, ReinforceLoss

from rltok_rl.objectives import ZeroCritic

from ..each import each
from ..named_estimators import NAMES, named_estimator, needed_options


def episode_length(batch) -> float:
    """Mean steps per episode; an unfinished one counts in part."""
    return batch.numel() / max(1, int(batch["next", "done"].sum()))


def make_actor(env, net) -> ProbabilisticActor:
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


@each(name=NAMES, loss_type=[ClipPPOLoss, A2CLoss, ReinforceLoss])
def test_every_estimator_judges_a_pole(name, loss_type):
    """One batch with episodes that end inside; the gradient is that of the estimator's advantages."""
    env = SerialEnv(4, lambda: GymEnv("CartPole-v1", device="cpu"))
    env.set_seed(0)
    actor = make_actor(env, torch.nn.Linear(4, 2))
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        batch = env.rollout(40, actor, break_when_any_done=False)
    assert batch["next", "done"].any()
    options = needed_options(name, 40, actor, ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"]))
    if name == "control_variate":
        options = {"regressor_keys": ("observation",), "hindsight": False}
    judged = named_estimator(name, gamma=0.97, **options)(batch.clone())
    advantages = judged["advantage"].squeeze(-1)
    assert advantages.shape == (4, 40) and advantages.isfinite().all() and advantages.std() > 0
    loss = loss_type(actor, ZeroCritic(), functional=False)
    loss.make_value_estimator(named_estimator(name, gamma=0.97, **options))
    out = loss(batch.clone())
    objective = out["loss_objective"] if "loss_objective" in out.keys() else out["loss_actor"]
    log_probs = actor.get_dist(batch).log_prob(batch["action"])
    weight = actor.module[0].module.weight
    (found,) = torch.autograd.grad(objective, weight)
    (expected,) = torch.autograd.grad(-(log_probs * advantages).mean(), weight)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "loss_type", "epochs", "batches"),
    [
        ("z_score", ReinforceLoss, 1, 30),
        ("leave_one_out", ReinforceLoss, 1, 30),
        ("running_mean", ClipPPOLoss, 4, 12),
        ("discounted_return", ClipPPOLoss, 4, 12),
    ],
)
def test_a_pole_is_balanced(name, loss_type, epochs, batches):
    """From about 20 steps to three times as many within seconds, without a critic."""
    torch.manual_seed(0)
    env = SerialEnv(8, lambda: GymEnv("CartPole-v1", device="cpu"))
    env.set_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    actor = make_actor(env, net)
    loss = loss_type(actor, ZeroCritic(), functional=False)
    options = {"num_steps": 64} if name == "running_mean" else {}
    estimator = named_estimator(name, gamma=0.97, **options)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    collector = Collector(
        env, actor, frames_per_batch=8 * 64, total_frames=8 * 64 * batches, auto_register_policy_transforms=False
    )
    lengths = []
    for batch in collector:
        lengths.append(episode_length(batch))
        batch = estimator(batch)
        batch["advantage"] /= batch["advantage"].std() + 1e-6
        for _ in range(epochs):
            out = loss(batch)
            objective = out["loss_objective"] if "loss_objective" in out.keys() else out["loss_actor"]
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
    collector.shutdown()
    assert lengths[0] < 35 and sum(lengths[-3:]) / 3 > 60, lengths

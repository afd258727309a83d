"""The estimators are not tied to text: they balance a pole with TorchRL's losses."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ReinforceLoss

from rltok_rl.objectives import ZeroCritic, make_estimator


def episode_length(batch) -> float:
    """Mean steps per episode; an unfinished one counts in part."""
    return batch.numel() / max(1, int(batch["next", "done"].sum()))


@pytest.mark.parametrize(
    ("name", "loss_type", "epochs", "batches"),
    [
        ("z_normalised", ReinforceLoss, 1, 30),
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
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    loss = loss_type(actor, ZeroCritic(), functional=False)
    options = {"num_steps": 64} if name == "running_mean" else {}
    estimator = make_estimator(name, gamma=0.97, **options)
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

"""Custom policies: any network on stepped and parallel rollouts alike, trained by this library's losses."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import NetworkActor
from rltok_rl.agents.network import AFTER_BOUNDARIES
from rltok_rl.envs import ByteBoundaryEnv, ParallelCollector
from torch import nn
from torchrl.envs import EnvBase

from rltok_rl.models import UNet, preset
from rltok_rl.objectives import BoundaryReinforceLoss

TEXT = "Call me Ishmael. Some years ago - never mind how long precisely - I thought I would sail about a little. " * 3
KEYS = ["byte", "early_entropy"]


class Small(nn.Module):
    """Logits from the byte and the early exit's uncertainty."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 8)
        self.layers = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, outputs))

    def forward(self, byte, entropy):
        return self.layers(torch.cat((self.embedding(byte), entropy), -1))


class Attention(nn.Module):
    """Logits that depend on earlier and, unless causal, on later bytes."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.attention, self.causal = nn.MultiheadAttention(64, 2, batch_first=True), causal
        self.logit = nn.Linear(64, 1)

    def forward(self, states):
        mask = torch.ones(2 * [states.shape[-2]]).triu(1).bool() if self.causal else None
        return self.logit(self.attention(states, states, states, attn_mask=mask)[0])


@pytest.fixture
def env() -> ByteBoundaryEnv:
    torch.manual_seed(0)
    model = UNet(preset("tiny")).eval().requires_grad_(False)
    options = {"num_steps": 16, "batch_size": (4,), "seed": 0, "observe_entropy": True}
    return ByteBoundaryEnv(model, TEXT, **options)


@pytest.mark.parametrize("options", [{}, {"num_lags": 3, "cap": 2.0}])
@torch.no_grad()
def test_stepped_and_parallel_rollouts_are_equal(env, options):
    actor, rollouts = NetworkActor(Small(1 + options.get("num_lags", 0)), KEYS, **options), []
    for roll in (lambda: EnvBase.rollout(env, 16, actor), lambda: env.parallel_rollout(actor)):
        env.set_seed(1)
        rollouts.append(roll())
    stepped, parallel = rollouts
    assert set(stepped.keys(True, True)) == set(parallel.keys(True, True))
    assert torch.equal(stepped["action"], parallel["action"]) and parallel["action"].float().std() > 0
    for key in ("logits", "action_log_prob", "entropy", ("next", "reward")):
        torch.testing.assert_close(stepped[key], parallel[key], rtol=0, atol=1e-4)
    assert options == {} or parallel["logits"].abs().max() < 2
    assert next(iter(ParallelCollector(env, actor, total_frames=64))).shape == (4, 16)


@torch.no_grad()
def test_a_network_reads_every_observation_that_no_boundary_changes(env):
    """What a reference earned, too, which a parallel rollout knows before it draws."""
    model = UNet(preset("tiny", rate_embedding=True)).eval()
    options = {"num_steps": 16, "batch_size": (4,), "observe_entropy": True, "reference": "uniform"}
    env = ByteBoundaryEnv(model, TEXT, **options)
    keys = [key for key in env.observation_spec.keys() if key not in AFTER_BOUNDARIES]
    assert "reference_reward" in keys and "target_rate" in keys

    class Sum(nn.Module):
        def forward(self, *entries):
            first = entries[0]
            return sum(x.reshape(*first.shape, -1).float().sum(-1, keepdim=True).sin() for x in entries)

    actor, rollouts = NetworkActor(Sum(), sorted(keys)), []  # "byte" first
    for roll in (lambda: EnvBase.rollout(env, 16, actor), lambda: env.parallel_rollout(actor)):
        env.set_seed(1)
        rollouts.append(roll())
    torch.testing.assert_close(rollouts[0]["logits"], rollouts[1]["logits"], rtol=0, atol=1e-3)


def test_reinforce_reaches_every_weight_and_raises_what_is_rewarded(env):
    """Rewarded for boundaries alone, the policy draws more of them."""
    torch.manual_seed(0)
    actor = NetworkActor(Small(3), KEYS, num_lags=2)
    loss = BoundaryReinforceLoss("discounted_return", gamma=0.0, baseline="leave_one_out")
    optimizer, rates = torch.optim.Adam(actor.parameters(), lr=3e-2), []
    before = [p.detach().clone() for p in actor.parameters()]
    for _ in range(20):
        rollout = env.parallel_rollout(actor)
        rollout["next", "reward"] = rollout["action"].float().unsqueeze(-1)
        optimizer.zero_grad()
        loss(rollout)["loss_policy"].backward()
        optimizer.step()
        rates.append(rollout["action"].float().mean().item())
    assert not any(torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))
    assert sum(rates[-5:]) > sum(rates[:5]) + 1


def test_the_check_of_a_network_leaves_its_modes(env):
    """It runs without dropout; what trains afterwards has dropout again, and what is frozen stays frozen."""
    network = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    actor = NetworkActor(network, ["encoder_state"]).train()
    network[2].eval()
    env.parallel_rollout(actor)
    assert [module.training for module in network] == [True, True, False] and network.training


def test_refusals(env):
    plain = ByteBoundaryEnv(env.model, TEXT, num_steps=16)
    for make, error, message in [
        *(
            (lambda k=k: NetworkActor(nn.Linear(1, 1), ["byte", k]), ValueError, f"in_keys must .*'{k}'.; num_lags=w")
            for k in ("recent", "final_log_prob", "second_boundary", "second_probability")
        ),
        (lambda: NetworkActor(lambda byte: byte, ["byte"]), TypeError, "network must be a torch.nn.Module, got <func"),
        (lambda: NetworkActor(nn.Linear(1, 1), ["byte"], num_lags=-1), ValueError, "num_lags must be .* got -1"),
        (lambda: NetworkActor(nn.Linear(1, 1), "byte"), ValueError, "in_keys must be a list .* got 'byte'"),
        *(
            (
                lambda kind=kind: NetworkActor(kind(64, 1), ["encoder_state"]),
                ValueError,
                f"got {kind.__name__}, .*collectors",
            )
            for kind in (nn.LSTM, nn.GRUCell)
        ),
        (
            lambda: env.parallel_rollout(NetworkActor(nn.Linear(64, 2), ["encoder_state"])),
            ValueError,
            r"network must return \[\*B, T, 1\] with num_lags=0, got \[4, 16, 2\]",
        ),
        *(
            (lambda c=c: env.parallel_rollout(NetworkActor(Attention(c), ["encoder_state"])), ValueError, "Attention")
            for c in (False, True)
        ),
        (
            lambda: env.parallel_rollout(NetworkActor(nn.Linear(1, 1), ["none"])),
            ValueError,
            r"in_keys must be observations of the environment, \['byte', .*\], got \['none'\]",
        ),
        (
            lambda: plain.parallel_rollout(NetworkActor(nn.Linear(1, 1), ["early_entropy"])),
            ValueError,
            r"got \['early_entropy'\]; observe_entropy=True of the environment adds it",
        ),
        (
            lambda: env.parallel_rollout(NetworkActor(nn.Linear(64, 100), ["encoder_state"], num_lags=99)),
            ValueError,
            "recent must hold the last 99 boundaries",
        ),
    ]:
        with pytest.raises(error, match=message):
            make()

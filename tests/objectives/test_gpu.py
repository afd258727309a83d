"""Estimators, losses and instruments on a GPU: the numbers of the CPU."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.diagnostics.exact import exact_gradient
from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import JointLoss, LocalFlips

from ..cuda_waits import cuda_waits
from ..each import each
from ..named_estimators import NAMES, named_estimator, needed_options
from .conftest import TEXT, make_model, make_rollout

pytestmark = pytest.mark.gpu


def test_returns_are_those_of_the_cpu():
    rewards, done = torch.randn(8, 3000), torch.rand(8, 3000) < 0.01
    there = discounted_return(rewards.cuda(), 0.99, done=done.cuda()).cpu()
    torch.testing.assert_close(there, discounted_return(rewards, 0.99, done=done), rtol=1e-4, atol=1e-4)


@each(name=NAMES)
def test_estimators_are_those_of_the_cpu(name):
    model = make_model()
    rollout = make_rollout(model).detach()
    rollout["state_value"] = rollout["next", "state_value"] = torch.zeros(4, 12, 1)

    def advantages(device):
        options = needed_options(name, 12, LearnedBoundaryActor(model.to(device)))
        estimator = named_estimator(name, gamma=0.9, **options).to(device)
        return estimator(rollout.to(device))["advantage"].cpu()

    torch.testing.assert_close(advantages("cuda"), advantages("cpu"), rtol=1e-3, atol=1e-4)


def test_a_training_step_runs_without_looking_at_values():
    """One joint step, and no synchronisation in estimator and losses."""
    model = make_model().cuda()
    env = ByteBoundaryEnv(model, TEXT * 3, num_steps=24, batch_size=(4,), seed=0)
    loss = JointLoss.paper(target_rate=0.3, baseline="leave_one_out").cuda()
    rollout = env.parallel_rollout(LearnedBoundaryActor(model))
    loss(rollout)  # whatever is set up once
    with cuda_waits("error"):
        total = loss.total(loss(rollout))
    total.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    advantages = LocalFlips(model, gamma=0.9)(rollout.detach())["advantage"]
    assert advantages.isfinite().all() and advantages.is_cuda


def test_exact_gradients_are_those_of_the_cpu():
    """Within the rounding of rotary angles, which are float32."""
    model = make_model()
    here = exact_gradient(model, TEXT[:8]).total
    there = exact_gradient(model.cuda(), TEXT[:8]).total
    for name, value in here.items():
        torch.testing.assert_close(there[name].cpu(), value, rtol=1e-4, atol=1e-7)

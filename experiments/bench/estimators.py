"""Discounted returns against every function of TorchRL's that computes the same; estimator and losses in a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.bench.harness import Row, compare
from torch import Tensor
from torchrl.objectives.value import functional as torchrl_value

from rltok_rl.data import local_prose
from rltok_rl.functional.returns import discounted_return
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss

SHAPE = (32, 4096, 1)
GAMMAS = (0.9, 0.99, 1.0)
EPISODE = 500  # steps, in the mean
Equivalent = Callable[[float, Tensor, Tensor, Tensor], Tensor]

EQUIVALENTS: dict[str, Equivalent] = {
    "reward2go": lambda gamma, r, zero, done: torchrl_value.reward2go(r, done, gamma).view_as(r),
    "td1_return_estimate": lambda gamma, r, zero, done: torchrl_value.td1_return_estimate(gamma, zero, r, done),
    "vec_td1_return_estimate": lambda gamma, r, zero, done: torchrl_value.vec_td1_return_estimate(gamma, zero, r, done),
    "generalized_advantage_estimate": lambda gamma, r, zero, done: torchrl_value.generalized_advantage_estimate(
        gamma, 1.0, zero, zero, r, done
    )[0],
    "vec_generalized_advantage_estimate": lambda gamma, r, zero, done: torchrl_value.vec_generalized_advantage_estimate(
        gamma, 1.0, zero, zero, r, done
    )[0],
}
"""Discounted returns by TorchRL [*B, T, 1]: with a critic that says 0, and lambda = 1, all of these are."""


def ours(gamma: float, rewards: Tensor, done: Tensor | None) -> Tensor:
    """The same by :func:`~rltok_rl.functional.returns.discounted_return`, between the shapes that TorchRL uses."""
    ends = None if done is None else done.squeeze(-1)
    return discounted_return(rewards.squeeze(-1), gamma, done=ends).unsqueeze(-1)


def return_row(name: str, gamma: float, with_done: bool, device: str) -> Row:
    """One equivalent, one discount, with episodes or without; both sides must agree first."""
    rewards = torch.randn(SHAPE, device=device)
    done = torch.rand(SHAPE, device=device) < (1 / EPISODE if with_done else 0.0)
    equivalent, zero = EQUIVALENTS[name], torch.zeros_like(rewards)
    expected = equivalent(gamma, rewards, zero, done)
    torch.testing.assert_close(
        ours(gamma, rewards, done if with_done else None), expected, rtol=0, atol=1e-4 * float(expected.abs().max())
    )
    return compare(
        "estimators",
        f"returns / {name}, gamma {gamma:g}{f', done 1/{EPISODE}' if with_done else ''}",
        lambda: ours(gamma, rewards, done if with_done else None),
        lambda: equivalent(gamma, rewards, zero, done),
        pairs=5,
        repeat=10,
        goal=5.0,
        note="[32, 4096, 1], no gradients",
    )


def step_row(device: str) -> Row:
    """Estimator and losses, forward and backward down to the rollout's entries, against a whole training step."""
    model = UNet(preset("small")).to(device)
    env = ByteBoundaryEnv(model, local_prose(), num_steps=1024, batch_size=(8,), seed=0)
    actor = LearnedBoundaryActor(model)
    loss = JointLoss.paper(target_rate=0.2, baseline="leave_one_out").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rollout = env.parallel_rollout(actor).detach()
    for key in ("logits", "action_log_prob", "entropy", ("next", "final_log_prob"), ("next", "early_log_prob")):
        rollout[key] = rollout[key].requires_grad_()

    def losses_alone() -> None:
        loss.total(loss(rollout)).backward()

    def whole_step() -> None:
        optimizer.zero_grad()
        loss.total(loss(env.parallel_rollout(actor))).backward()
        optimizer.step()

    name = "estimator and losses / training step, small, T=1024, B=8"
    return compare(
        "estimators", name, losses_alone, whole_step, pairs=5, repeat=5, goal=100.0, note="goal: at most 1 %"
    )


def rows(device: str) -> list[Row]:
    """Every equivalent at every discount, without and with episode ends; then the share of a training step."""
    torch.manual_seed(0)
    with torch.no_grad():
        cases = [(name, gamma, ends) for ends in (False, True) for gamma in GAMMAS for name in EQUIVALENTS]
        timed = [return_row(*case, device) for case in cases]
    return [*timed, step_row(device)]

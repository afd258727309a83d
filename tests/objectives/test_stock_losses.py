"""Every estimator in TorchRL's own losses: the table of docs/objectives.md, cell by cell."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, LearnedBoundaryActor
from torchrl.objectives import A2CLoss, ClipPPOLoss, ReinforceLoss

from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import ESTIMATORS, ReturnEstimator, ZeroCritic

from ..named_estimators import NAMES, named_estimator
from .conftest import make_rollout

LOSSES = {"ClipPPOLoss": ClipPPOLoss, "A2CLoss": A2CLoss, "ReinforceLoss": ReinforceLoss}
every_loss = pytest.mark.parametrize("loss_name", list(LOSSES))
every_estimator = pytest.mark.parametrize("name", NAMES)


def options(name, actor, critic):
    return {
        "gamma": 0.9,
        **({"group_size": 2} if name == "group_mean" else {}),
        **({"num_steps": 12} if name == "running_mean" else {}),
        **({"actor_network": actor} if name == "vtrace_return" else {}),
        **({"value_network": critic} if name in ("critic_advantage", "vtrace_return") else {}),
    }


def policy_gradient(model, loss, rollout):
    out = loss(rollout.copy())
    objective = out["loss_objective"] if "loss_objective" in out.keys() else out["loss_actor"]
    return torch.autograd.grad(objective, model.boundary_head.projection.weight)[0]


def by_hand(model, actor, rollout, advantages):
    log_probs = actor.get_dist(rollout).log_prob(rollout["action"])
    return torch.autograd.grad(-(log_probs * advantages).mean(), model.boundary_head.projection.weight)[0]


@every_loss
@every_estimator
@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("how", ["instance", "class", "precomputed"])
def test_a_cell_of_the_table(loss_name, name, how, functional, model):
    """The loss trains the policy by the estimator's advantages, whichever way it got them."""
    rollout = make_rollout(model).detach()
    actor, critic = LearnedBoundaryActor(model), BoundaryCritic(model.config)
    torch.nn.init.normal_(critic.module[-1].weight)
    loss = LOSSES[loss_name](actor, critic, functional=functional)
    estimator = named_estimator(name, **options(name, actor, critic))
    expected = by_hand(model, actor, rollout, estimator(rollout.copy())["advantage"].squeeze(-1))
    if name == "running_mean":
        estimator = named_estimator(name, **options(name, actor, critic))  # it remembers the batch it has judged
    if how == "instance":
        loss.make_value_estimator(estimator)
    elif how == "class":
        given = options(name, actor, critic)
        if type(estimator) is ReturnEstimator:
            given["baseline"] = "none" if name == "discounted_return" else name
        if name == "critic_advantage":
            given["lmbda"] = 0.95
        loss.make_value_estimator(type(estimator), **given)
    else:
        rollout = estimator(rollout)
    torch.testing.assert_close(policy_gradient(model, loss, rollout), expected, rtol=1e-4, atol=1e-6)


@every_loss
def test_names_are_refused_by_stock_losses(loss_name, model):
    """TorchRL takes a name only if the loss lists it."""
    loss = LOSSES[loss_name](LearnedBoundaryActor(model), BoundaryCritic(model.config), functional=False)
    with pytest.raises(NotImplementedError, match="'discounted_return' is not implemented for loss"):
        loss.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")


@every_loss
@pytest.mark.parametrize("name", ["critic_advantage", "vtrace_return"])
def test_a_functional_loss_may_hold_a_critic_without_parameters(loss_name, name, model):
    """TorchRL hands over the critic's parameters, of which a zero critic has none."""
    rollout, actor = make_rollout(model).detach(), LearnedBoundaryActor(model)
    loss = LOSSES[loss_name](actor, ZeroCritic())
    loss.make_value_estimator(named_estimator(name, **options(name, actor, ZeroCritic())))
    assert policy_gradient(model, loss, rollout).abs().max() > 0


@pytest.mark.parametrize("loss_name", ["A2CLoss", "ReinforceLoss"])
def test_two_losses_insist_on_a_critic_and_a_zero_one_will_do(loss_name, model):
    rollout, actor = make_rollout(model).detach(), LearnedBoundaryActor(model)
    with pytest.raises(TypeError, match="Missing positional arguments"):
        LOSSES[loss_name](actor, None)
    loss = LOSSES[loss_name](actor, ZeroCritic(), functional=False)
    loss.make_value_estimator(ReturnEstimator(gamma=0.9, baseline="leave_one_out"))
    g = discounted_return(rollout["next", "reward"].squeeze(-1), 0.9)
    expected = by_hand(model, actor, rollout, (g - g.mean(0)) * 4 / 3)
    torch.testing.assert_close(policy_gradient(model, loss, rollout), expected, rtol=1e-4, atol=1e-6)


def test_clip_ppo_without_a_critic_needs_the_advantage_beforehand(model):
    rollout, actor = make_rollout(model).detach(), LearnedBoundaryActor(model)
    loss = ClipPPOLoss(actor, None, functional=False)
    loss.make_value_estimator(ReturnEstimator(gamma=0.9, baseline="leave_one_out"))
    with pytest.raises(RuntimeError, match="Critic network is not specified"):
        loss(rollout.copy())
    assert loss(ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rollout))["loss_objective"].requires_grad


@every_loss
def test_an_instance_learns_the_losss_keys_from_set_keys_alone(loss_name, model):
    """The loss passes its keys on when they are set, not when the estimator is given."""
    rollout, actor = make_rollout(model).detach(), LearnedBoundaryActor(model)
    loss = LOSSES[loss_name](actor, ZeroCritic(), functional=False)
    loss.make_value_estimator(ReturnEstimator(gamma=0.9, baseline="leave_one_out"))
    loss.set_keys(advantage=("deep", "adv"))
    rollout["next", "reward"] = rollout["next", "reward"]
    assert policy_gradient(model, loss, rollout).abs().max() > 0


def test_the_table_in_the_docs_names_every_estimator():
    page = (Path(__file__).resolve().parents[2] / "docs" / "objectives.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    listed = {line.split("`")[1] for line in rows}
    assert {*ESTIMATORS, *NAMES} <= listed
    assert all(loss in page for loss in LOSSES)

"""Every estimator in TorchRL's own losses: the table of docs/objectives.md, cell by cell."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, LearnedBoundaryActor
from torchrl.objectives import A2CLoss, ClipPPOLoss, ReinforceLoss, ValueEstimators
from torchrl.objectives.value import GAE

from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import (
    ESTIMATORS,
    BoundaryClipPPOLoss,
    BoundaryReinforceLoss,
    EarlyExitLoss,
    JointLoss,
    ReturnEstimator,
    ZeroCritic,
)

from ..each import each
from ..named_estimators import NAMES, named_estimator, needed_options
from .conftest import make_model, make_rollout

LOSSES = {"ClipPPOLoss": ClipPPOLoss, "A2CLoss": A2CLoss, "ReinforceLoss": ReinforceLoss}
LEAVE_ONE_OUT = {"gamma": 0.9, "baseline": "leave_one_out"}


def policy_gradient(model, loss, rollout):
    out = loss(rollout.copy())
    objective = out["loss_objective"] if "loss_objective" in out.keys() else out["loss_actor"]
    return torch.autograd.grad(objective, model.boundary_head.projection.weight)[0]


def by_hand(model, actor, rollout, advantages):
    log_probs = actor.get_dist(rollout).log_prob(rollout["action"])
    return torch.autograd.grad(-(log_probs * advantages).mean(), model.boundary_head.projection.weight)[0]


@each(loss_name=LOSSES, name=NAMES)
def test_a_cell_of_the_table(loss_name, name):
    """The loss trains the policy by the estimator's advantages, whichever way it got them."""
    model = make_model()
    rollout, actor, critic = make_rollout(model).detach(), LearnedBoundaryActor(model), BoundaryCritic(model.config)
    torch.nn.init.normal_(critic.module[-1].weight)
    options = {"gamma": 0.9, **needed_options(name, 12, actor, critic)}
    judged = named_estimator(name, **options)(rollout.copy())
    expected = by_hand(model, actor, rollout, judged["advantage"].squeeze(-1))
    for how, functional in product(("instance", "class", "precomputed"), (True, False)):
        loss = LOSSES[loss_name](actor, critic, functional=functional)
        estimator = named_estimator(name, **options)  # a running mean remembers the batch it has judged
        if how == "instance":
            loss.make_value_estimator(estimator)
        elif how == "class":
            more = {"lmbda": 0.95} if name == "critic_advantage" else {}
            if type(estimator) is ReturnEstimator:
                more = {"baseline": "none" if name == "discounted_return" else name}
            loss.make_value_estimator(type(estimator), **options, **more)
        ours = policy_gradient(model, loss, judged if how == "precomputed" else rollout)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6, msg=lambda m, h=how: f"{h}: {m}")


@each(loss_name=LOSSES)
def test_keys_names_and_critics_without_parameters(loss_name, model):
    """TorchRL takes the names that it lists, passes on keys when they are set, and passes its critic's parameters."""
    rollout, actor = make_rollout(model).detach(), LearnedBoundaryActor(model)
    loss = LOSSES[loss_name](actor, ZeroCritic(), functional=False)
    with pytest.raises(NotImplementedError, match="'discounted_return' is not implemented for loss"):
        loss.make_value_estimator("discounted_return", **LEAVE_ONE_OUT)
    loss.make_value_estimator(ReturnEstimator(**LEAVE_ONE_OUT))
    loss.set_keys(advantage=("deep", "adv"))
    g = discounted_return(rollout["next", "reward"].squeeze(-1), 0.9)
    expected = by_hand(model, actor, rollout, (g - g.mean(0)) * 4 / 3)
    torch.testing.assert_close(policy_gradient(model, loss, rollout), expected, rtol=1e-4, atol=1e-6)
    for name in ("critic_advantage", "vtrace_return"):
        loss = LOSSES[loss_name](actor, ZeroCritic())
        options = needed_options(name, 12, actor, ZeroCritic())
        loss.make_value_estimator(named_estimator(name, gamma=0.9, **options))
        assert policy_gradient(model, loss, rollout).abs().max() > 0


def test_stock_losses_without_a_critic(model):
    """Two of them require one; ClipPPOLoss takes advantages computed beforehand."""
    rollout, actor = make_rollout(model).detach(), LearnedBoundaryActor(model)
    for kind in (A2CLoss, ReinforceLoss):
        with pytest.raises(TypeError, match="Missing positional arguments"):
            kind(actor, None)
    loss = ClipPPOLoss(actor, None, functional=False)
    loss.make_value_estimator(ReturnEstimator(**LEAVE_ONE_OUT))
    with pytest.raises(RuntimeError, match="Critic network is not specified"):
        loss(rollout.copy())
    assert loss(ReturnEstimator(**LEAVE_ONE_OUT)(rollout))["loss_objective"].requires_grad


@each(kind=ValueEstimators)
def test_torchrl_estimators_in_our_losses(kind, model):
    """By TorchRL's enum, each gives the policy the gradient that it gives in TorchRL's loss."""
    grown, actor, critic = make_rollout(model), LearnedBoundaryActor(model), BoundaryCritic(model.config)
    torch.nn.init.normal_(critic.module[-1].weight)
    rollout = grown.detach()
    stock = ReinforceLoss(actor, critic, functional=False)
    stock.make_value_estimator(kind, gamma=0.9)
    expected = policy_gradient(model, stock, rollout)
    free, weight = 12 / 11, model.boundary_head.projection.weight  # a mean over the 11 free steps of 12

    def gradient(loss, stored, **options):
        loss = loss.make_value_estimator(kind, gamma=0.9, **options)
        losses = loss(stored.copy())
        name = "loss_objective" if "loss_objective" in losses.keys() else "loss_policy"
        return torch.autograd.grad(losses[name], weight, retain_graph=True)[0]

    valued = critic(rollout.copy())
    valued["next", "state_value"] = critic(rollout["next"].copy())["state_value"]
    found = {
        "clipped": gradient(BoundaryClipPPOLoss(actor, critic), rollout),
        "with a critic": gradient(BoundaryReinforceLoss(actor=actor), rollout, value_network=critic),
        "with stored values": gradient(BoundaryReinforceLoss(actor=actor), valued),
    }
    if kind is not ValueEstimators.VTrace:
        joint = JointLoss({"policy": BoundaryReinforceLoss(), "early_exit": EarlyExitLoss()})
        found["joint"] = gradient(joint, grown, value_network=critic)
    for name, ours in found.items():
        torch.testing.assert_close(ours, free * expected, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    for loss in (BoundaryClipPPOLoss(actor), BoundaryReinforceLoss(actor=actor)):
        with pytest.raises(KeyError, match="must hold 'state_value', or .* a value_network that makes it"):
            gradient(loss, rollout)


def test_stored_values_are_those_of_the_estimators_key(model):
    rollout, actor = make_rollout(model).detach(), LearnedBoundaryActor(model)
    found = []
    for key in ("state_value", "guess"):
        estimator = GAE(gamma=0.9, lmbda=0.8, value_network=None)
        estimator.set_keys(value=key)
        loss = BoundaryReinforceLoss(estimator, actor=actor)
        with pytest.raises(KeyError, match=f"must hold '{key}', or GAE a value_network"):
            loss(rollout)
        valued = rollout.copy()
        valued[key] = torch.linspace(0, 1, 48).view(4, 12, 1)
        valued["next", key] = torch.linspace(1, 0, 48).view(4, 12, 1)
        found.append(loss(valued)["loss_policy"])
    assert torch.equal(*found)


@each(name=["GAE", "gae", "TDLambda", "VTrace"])
def test_names_of_torchrl_estimators_in_our_losses(name, model):
    """A name is the enum's member, in every loss."""
    actor, critic = LearnedBoundaryActor(model), BoundaryCritic(model.config)
    joint = JointLoss({"policy": BoundaryReinforceLoss(actor=actor), "early_exit": EarlyExitLoss()})
    clipped = BoundaryClipPPOLoss(actor, critic).make_value_estimator(name, gamma=0.8)
    options = {"gamma": 0.8, "value_network": critic}
    made = BoundaryReinforceLoss(actor=actor).make_value_estimator(name, **options)
    inner = joint.make_value_estimator(name, **options).terms["policy"]
    for loss in (made, inner):
        assert type(loss._value_estimator) is type(clipped._value_estimator) and loss._value_estimator.gamma == 0.8
    with pytest.raises(ValueError, match="name must be one of .*, got 'GEA'"):
        made.make_value_estimator("GEA")


def test_losses_that_take_no_estimator(model):
    kind, actor = ValueEstimators.VTrace, LearnedBoundaryActor(model)
    with pytest.raises(ValueError, match="VTrace needs a loss with an actor, .* got actor=None"):
        BoundaryReinforceLoss().make_value_estimator(kind)
    with pytest.raises(ValueError, match="off_policy must be False with VTrace"):
        BoundaryReinforceLoss(actor=actor, off_policy=True).make_value_estimator(kind, value_network=ZeroCritic())
    for loss in (EarlyExitLoss(), JointLoss({"early_exit": EarlyExitLoss()})):
        with pytest.raises(NotImplementedError, match="estimator, got ValueEstimators.VTrace"):
            loss.make_value_estimator(kind)


def test_the_table_in_the_docs_names_every_estimator():
    page = (Path(__file__).resolve().parents[2] / "docs" / "objectives.md").read_text()
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert {*ESTIMATORS, *NAMES} <= listed and all(loss in page for loss in LOSSES)

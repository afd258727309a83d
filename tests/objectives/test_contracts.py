"""What a loss and its estimator promise each other and the caller: keys, masks, weights, state."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, EncodingBoundaryActor, LearnedBoundaryActor

from rltok_rl.functional.policy_gradient import vtrace
from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import (
    BoundaryClipPPOLoss,
    BoundaryReinforceLoss,
    EarlyExitLoss,
    EntropyBonus,
    JointLoss,
    LanguageModelLoss,
    RateLoss,
    ReturnEstimator,
    make_estimator,
)

from .conftest import LEAVE_ONE_OUT, make_rollout

MASK = ("mine", "valid")


@pytest.fixture
def actor(model):
    return LearnedBoundaryActor(model)


def masked(rollout, filler=float("nan")):
    """Rewards that mean nothing from step 8 on, and an entry that says so."""
    out = rollout.copy()
    valid = torch.ones(4, 12, 1, dtype=torch.bool)
    valid[:, 8:] = False
    out["next", "reward"] = torch.where(valid, rollout["next", "reward"], filler)
    out[MASK] = valid
    return out


def by_hand(rollout, gamma=0.9):
    """Leave-one-out advantages of the first eight steps, 0 after."""
    g = discounted_return(rollout["next", "reward"].squeeze(-1)[:, :8], gamma)
    return torch.nn.functional.pad((g - g.mean(0)) * 4 / 3, (0, 4))


def named(loss):
    loss.loss_mask_key = MASK
    return loss


def test_a_losss_mask_is_its_estimators_mask(actor, rollout):
    """Padding neither discounts into real steps nor enters a baseline, whichever came first: mask or estimator."""
    given, free = masked(rollout), ~rollout["forced"].clone()
    free[:, 8:] = False
    expected = -(rollout["action_log_prob"] * by_hand(rollout))[free].mean()
    late = named(BoundaryReinforceLoss())
    late.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")
    for loss in (named(BoundaryReinforceLoss(**LEAVE_ONE_OUT)), late):
        torch.testing.assert_close(loss(given)["loss_policy"], expected)
    for order in (True, False):
        loss = BoundaryClipPPOLoss(actor)
        loss = named(loss) if order else loss
        loss.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")
        loss = loss if order else named(loss)
        out = loss(given.detach())
        torch.testing.assert_close(out["loss_objective"], -by_hand(rollout)[free].mean(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(out["advantage_spread"], by_hand(rollout)[free].std(correction=0))


def test_a_mask_may_be_taken_back_and_an_estimator_keeps_its_own():
    loss = BoundaryReinforceLoss(ReturnEstimator(gamma=0.9, baseline="leave_one_out", mask_key="own"))
    assert loss._value_estimator.mask_key == "own"
    loss.loss_mask_key = None
    assert loss._value_estimator.mask_key is None
    loss.loss_mask_key = "auto"
    assert loss._value_estimator.mask_key == "auto"


def test_a_mask_that_was_named_has_to_be_there(actor, rollout):
    for loss in (
        LanguageModelLoss(),
        BoundaryReinforceLoss(**LEAVE_ONE_OUT),
        EntropyBonus(),
    ):
        with pytest.raises(KeyError, match=r"must hold 'mine.valid'"):
            named(loss)(rollout)
    with pytest.raises(TypeError, match="'mine.valid' must be bool, got torch.float32"):
        given = rollout.copy()
        given[MASK] = torch.ones(4, 12)
        named(LanguageModelLoss())(given)
    with pytest.raises(TypeError, match="'forced' must be bool, got torch.int64"):
        EntropyBonus()(rollout.copy().update({"forced": rollout["forced"].long()}))


def test_a_joint_losss_mask_is_that_of_all_terms(rollout):
    joint = named(JointLoss.paper(target_rate=0.3, baseline="leave_one_out", gamma=0.9))
    out = joint(masked(rollout))
    final = rollout["next", "final_log_prob"][:, :8]
    torch.testing.assert_close(out["loss_language_model"], -final.mean())
    assert all(value.isfinite() for value in out.values())
    free = ~rollout["forced"][:, :8]
    torch.testing.assert_close(out["rate"], rollout["action"][:, :8][free].float().mean())


def test_a_joint_loss_renames_entries_in_the_terms_that_read_them(rollout):
    joint = JointLoss.paper(target_rate=0.3)
    expected = joint(rollout)
    moved = rollout.copy()
    moved["next", "pay"], moved["deep", "logits"] = rollout["next", "reward"], rollout["logits"]
    moved["deep", "forced"] = rollout["forced"]
    joint.set_keys(reward="pay", logits=("deep", "logits"), forced=("deep", "forced"))
    found = joint(moved.exclude("logits", "forced", ("next", "reward")))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value)
    with pytest.raises(ValueError, match="log_prob must be set in the terms: it is another entry in each"):
        joint.set_keys(log_prob="x")
    with pytest.raises(ValueError, match="pay is not an accepted tensordict key of any of the terms"):
        joint.set_keys(pay="x")


def test_figures_of_two_terms_are_both_kept(actor, rollout):
    joint = JointLoss(
        {
            "policy": BoundaryReinforceLoss(**LEAVE_ONE_OUT),
            "bonus": EntropyBonus(),
        }
    )
    assert joint.out_keys[-2:] == ["loss_entropy", "bonus_entropy"]
    out = joint(rollout)
    assert set(out.keys()) == set(joint.out_keys)
    torch.testing.assert_close(out["entropy"], out["bonus_entropy"])
    with pytest.raises(ValueError, match="two terms write 'loss_language_model'; the second is 'b'"):
        JointLoss({"a": LanguageModelLoss(), "b": LanguageModelLoss()})


@pytest.mark.parametrize("with_actor", [False, True])
def test_losses_take_entries_as_arguments(with_actor, actor, model, rollout):
    """TorchRL's dispatch: no tensordict in, a tuple out."""
    losses = [
        BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=actor if with_actor else None),
        LanguageModelLoss(),
        EarlyExitLoss(),
        EntropyBonus(),
        RateLoss(0.3),
        JointLoss.paper(target_rate=0.3),
    ]
    for loss in losses:
        entries = {"_".join(k) if isinstance(k, tuple) else k: rollout[k] for k in loss.in_keys}
        found, expected = loss(**entries), loss(rollout)
        assert len(found) == len(loss.out_keys)
        for key, value in zip(loss.out_keys, found, strict=True):
            torch.testing.assert_close(value, expected[key])


# V-trace: decisions of an earlier policy.


def earlier(rollout, shift=0.4):
    """As if every free decision had been likelier to the policy that took it."""
    out = rollout.detach()
    out["action_log_prob"] = torch.where(out["forced"], 0.0, out["action_log_prob"] + shift)
    return out


def test_vtrace_by_name_asks_the_losss_actor(actor, rollout):
    stored = earlier(rollout)
    ratios = torch.where(stored["forced"], 0.0, -0.4)
    zeros = torch.zeros(4, 12)
    rewards, done = (stored["next", key].squeeze(-1) for key in ("reward", "done"))
    terminated = stored["next", "terminated"].squeeze(-1)
    advantages, _ = vtrace(rewards, zeros, zeros, ratios, 0.9, done=done, terminated=terminated)
    free = ~stored["forced"]
    log_probs = actor.get_dist(stored).log_prob(stored["action"])
    loss = BoundaryReinforceLoss("vtrace_return", gamma=0.9, actor=actor)
    torch.testing.assert_close(loss(stored)["loss_policy"], -(log_probs * advantages)[free].mean())
    ppo = BoundaryClipPPOLoss(actor)
    ppo.make_value_estimator("vtrace_return", gamma=0.9)
    torch.testing.assert_close(ppo(stored)["advantage_mean"], advantages[free].mean())


def test_vtrace_follows_the_losss_keys(actor, rollout):
    stored = earlier(rollout)
    loss = BoundaryReinforceLoss("vtrace_return", gamma=0.9, actor=actor)
    expected = loss(stored)["loss_policy"]
    stored["old", "log_prob"], stored["old", "action"] = stored["action_log_prob"], stored["action"]
    loss.set_keys(action_log_prob=("old", "log_prob"), action=("old", "action"))
    torch.testing.assert_close(loss(stored.exclude("action_log_prob", "action"))["loss_policy"], expected)


def test_decisions_are_not_weighted_twice(actor):
    with pytest.raises(ValueError, match="off_policy must be False with vtrace_return"):
        BoundaryReinforceLoss("vtrace_return", gamma=0.9, actor=actor, off_policy=True)
    with pytest.raises(TypeError, match="vtrace_return needs an actor_network that scores decisions, got None"):
        BoundaryReinforceLoss("vtrace_return", gamma=0.9)


# PPO.


def test_ppo_leaves_the_rollout_alone_with_a_critic_too(actor, model, rollout):
    stored = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rollout.detach())
    keys = set(stored.keys(True, True))
    BoundaryClipPPOLoss(actor, BoundaryCritic(model.config))(stored)
    assert set(stored.keys(True, True)) == keys


def test_the_entropy_bonus_of_ppo_is_scheduled_from_zero(actor, rollout):
    stored = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rollout.detach())
    loss = BoundaryClipPPOLoss(actor)
    assert loss(stored)["loss_entropy"] == 0
    loss.entropy_coeff = 0.5
    free = ~stored["forced"]
    torch.testing.assert_close(loss(stored)["loss_entropy"].detach(), -0.5 * stored["entropy"][free].mean())


def test_ppo_refuses_what_it_would_ignore(actor):
    for name, value in (("max_importance_ratio", 2.0), ("delay_actor", True), ("advantage_norm", object())):
        with pytest.raises(ValueError, match=rf"options must be those of ClipPPOLoss without .* got \['{name}'\]"):
            BoundaryClipPPOLoss(actor, **{name: value})
    with pytest.raises(TypeError, match="entropy_coeff must be one number"):
        BoundaryClipPPOLoss(actor, entropy_coeff={"action_log_prob": 0.1})


def test_ppo_is_told_where_forced_decisions_are_marked(actor, rollout):
    stored = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rollout.detach())
    loss = BoundaryClipPPOLoss(actor)
    expected = loss(stored)["loss_objective"]
    stored["no", "choice"] = stored["forced"]
    stored["advantage"] = stored["advantage"].masked_fill(stored["forced"].unsqueeze(-1), 1e3)
    loss.set_keys(forced=("no", "choice"))
    torch.testing.assert_close(loss(stored)["loss_objective"], expected)


# State, scoring again, and the gradient by hand.


def test_gamma_is_saved_exactly_whatever_the_loss_is_cast_to():
    loss = JointLoss.paper(target_rate=0.3, baseline="leave_one_out", gamma=0.99).to(torch.bfloat16)
    other = JointLoss.paper(target_rate=0.3, baseline="leave_one_out", gamma=0.5)
    other.load_state_dict(loss.state_dict())
    assert other.terms["policy"]._value_estimator.gamma == 0.99
    critic = make_estimator("critic_advantage", gamma=0.9, lmbda=0.8)
    critic.load_state_dict(make_estimator("critic_advantage", gamma=0.7, lmbda=0.6).state_dict())
    assert (critic.gamma, critic.lmbda) == (0.7, 0.6)
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 2.0"):
        critic.gamma = 2.0


def test_windows_with_missing_bytes_are_refused(model, rollout):
    stored = rollout.detach()
    with pytest.raises(ValueError, match="hold every byte of a text in order, got position 2 after 0 in row 0"):
        EncodingBoundaryActor(model).get_dist(stored[:, ::2])


def test_the_policy_gradient_of_a_joint_loss_by_hand(model):
    """d/d logit log pi(a) = a - p: what reaches each logit is written down, autograd only carries it to the weights."""
    rollout = make_rollout(model)
    free = ~rollout["forced"]
    parameters = list(model.parameters())
    loss = JointLoss.paper(target_rate=0.3, gamma=0.9)(rollout)["loss_policy"]
    found = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    rewards = rollout["next", "reward"].squeeze(-1)
    returns = torch.zeros(4, 12)
    ahead = torch.zeros(4)
    for t in reversed(range(12)):
        ahead = rewards[:, t] + 0.9 * ahead
        returns[:, t] = ahead
    advantages = returns - returns.mean(0)
    score = rollout["action"] - rollout["logits"].detach().sigmoid()
    reaching = torch.where(free, -0.01 * advantages * score / free.sum(), 0.0)  # d loss / d logit
    expected = torch.autograd.grad(rollout["logits"], parameters, reaching, materialize_grads=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-8)
    assert any(one.abs().max() > 0 for one in found)

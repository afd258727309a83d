"""What a loss and its estimator promise each other and the caller: keys, masks, weights, state."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from torchrl.objectives.utils import get_value_estimator_entry

from rltok_rl.functional import baselines
from rltok_rl.functional.baselines import batch_mean, no_baseline
from rltok_rl.functional.boundary_rules import entropy_spikes
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.policy_gradient import natural_advantage, vtrace
from rltok_rl.functional.rate import controller_update, hinge_loss
from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import (
    ESTIMATORS,
    BoundaryClipPPOLoss,
    BoundaryReinforceLoss,
    BudgetedFlips,
    ControlVariateReturn,
    EarlyExitLoss,
    EntropyBonus,
    JointLoss,
    LanguageModelLoss,
    LocalFlips,
    NaturalGradient,
    RateLoss,
    ReturnEstimator,
    TokenGain,
    Trials,
    VTraceReturn,
    ZeroCritic,
    make_estimator,
)
from rltok_rl.objectives.base import StepLoss
from rltok_rl.objectives.baseline import RunningMeanBaseline
from rltok_rl.objectives.estimators import OLD_ESTIMATORS
from rltok_rl.objectives.joint import WITH_BATCH_MEAN
from rltok_rl.objectives.rate_loss import CONTROLLERS

from ..each import refused
from .conftest import LEAVE_ONE_OUT, make_rollout

MASK = ("mine", "valid")
OPTIONS = {"gamma": 0.9, "baseline": "leave_one_out"}


@pytest.fixture
def actor(model):
    return LearnedBoundaryActor(model)


@pytest.fixture
def masked(rollout):
    """Rewards that mean nothing from step 8 on, and an entry that says so."""
    out = rollout.copy()
    out[MASK] = valid = torch.arange(12).expand(4, 12).unsqueeze(-1) < 8
    out["next", "reward"] = torch.where(valid, rollout["next", "reward"], float("nan"))
    return out


def named(loss):
    loss.loss_mask_key = MASK
    return loss


def test_a_losss_mask_is_its_estimators_mask(actor, rollout, masked):
    """Padding neither discounts into real steps nor enters a baseline, whichever came first: mask or estimator."""
    free = ~rollout["forced"] & masked[MASK].squeeze(-1)
    g = discounted_return(rollout["next", "reward"].squeeze(-1)[:, :8], 0.9)
    advantages = torch.nn.functional.pad((g - g.mean(0)) * 4 / 3, (0, 4))  # of the first eight steps, 0 after
    expected = -(rollout["action_log_prob"] * advantages)[free].mean()
    late = named(BoundaryReinforceLoss()).make_value_estimator("discounted_return", **OPTIONS)
    for loss in (named(BoundaryReinforceLoss(**LEAVE_ONE_OUT)), late):
        torch.testing.assert_close(loss(masked)["loss_policy"], expected)
    for loss in (
        named(BoundaryClipPPOLoss(actor).make_value_estimator("discounted_return", **OPTIONS)),
        named(BoundaryClipPPOLoss(actor)).make_value_estimator("discounted_return", **OPTIONS),
    ):
        out = loss(masked.detach())
        torch.testing.assert_close(out["loss_objective"], -advantages[free].mean(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(out["advantage_spread"], advantages[free].std(correction=0))
    loss = BoundaryReinforceLoss(ReturnEstimator(**OPTIONS, mask_key="own"))
    assert loss._value_estimator.mask_key == "own"  # an estimator keeps its mask until the loss has one
    for key in (None, "auto"):
        loss.loss_mask_key = key
        assert loss._value_estimator.mask_key == key


def test_a_mask_that_was_named_must_be_there(rollout):
    for loss in (LanguageModelLoss(), BoundaryReinforceLoss(**LEAVE_ONE_OUT), EntropyBonus()):
        with pytest.raises(KeyError, match=r"must hold 'mine.valid'.*; it holds \['action', .*'next.done', .*\]"):
            named(loss)(rollout)
    with pytest.raises(KeyError, match=r"'mine.valid' \(it is the loss's loss_mask_key\); it holds"):
        named(LanguageModelLoss())(rollout)
    with pytest.raises(TypeError, match="'mine.valid' must be bool, got torch.float32"):
        named(LanguageModelLoss())(rollout.copy().set(MASK, torch.ones(4, 12)))
    with pytest.raises(TypeError, match="'forced' must be bool, got torch.int64"):
        EntropyBonus()(rollout.copy().update({"forced": rollout["forced"].long()}))


def test_a_step_is_real_if_each_of_torchrls_masks_says_so(rollout):
    td, nats = rollout.copy(), -rollout["next", "final_log_prob"].squeeze(-1)
    td["collector", "mask"] = first = torch.arange(12).expand(4, 12) < 9
    td["shifted_valid"] = second = torch.arange(12).expand(4, 12) % 3 > 0
    torch.testing.assert_close(LanguageModelLoss()(td)["loss_language_model"], nats[first & second].mean())


def test_a_joint_loss_passes_its_mask_and_keys_to_its_terms(rollout, masked):
    joint = named(JointLoss.paper(target_rate=0.3, **OPTIONS))
    assert joint.loss_mask_key == MASK and len(set(joint.in_keys)) == len(joint.in_keys)
    out = joint(masked)
    torch.testing.assert_close(out["loss_language_model"], -rollout["next", "final_log_prob"][:, :8].mean())
    assert all(value.isfinite() for value in out.values())
    torch.testing.assert_close(out["rate"], rollout["action"][:, :8][~rollout["forced"][:, :8]].float().mean())

    joint = JointLoss.paper(target_rate=0.3)
    expected, moved = joint(rollout), rollout.copy()
    moved["next", "pay"], moved["deep", "logits"] = rollout["next", "reward"], rollout["logits"]
    moved["deep", "forced"] = rollout["forced"]
    joint.set_keys(reward="pay", logits=("deep", "logits"), forced=("deep", "forced"))
    out = joint(moved.exclude("logits", "forced", ("next", "reward")))
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    with pytest.raises(ValueError, match="log_prob must be set in the terms: it is another entry in each"):
        joint.set_keys(log_prob="x")
    with pytest.raises(ValueError, match="pay is not an accepted tensordict key of any of the terms"):
        joint.set_keys(pay="x")


def test_metrics_of_two_terms_are_both_kept(rollout):
    joint = JointLoss({"policy": BoundaryReinforceLoss(**LEAVE_ONE_OUT), "bonus": EntropyBonus()})
    assert joint.out_keys[-2:] == ["loss_entropy", "bonus_entropy"]
    out = joint(rollout)
    assert set(out.keys()) == set(joint.out_keys)
    torch.testing.assert_close(out["entropy"], out["bonus_entropy"])


class Third(StepLoss):
    """A loss by somebody else, whose metrics carry a gradient."""

    @dataclass
    class _AcceptedKeys:
        entropy: str = "entropy"

    out_keys = ["loss_third", "entropy", "no_loss_third"]

    def compute(self, tensordict):
        return dict.fromkeys(self.out_keys, tensordict["entropy"].sum())


def test_a_joint_loss_weighs_and_adds_losses_alone(rollout):
    """Metrics are what they are, without a gradient, and three terms may have one of a name."""
    policy = BoundaryReinforceLoss(**LEAVE_ONE_OUT)
    joint = JointLoss({"policy": policy, "bonus": EntropyBonus(), "third": Third()}, {"third": 0.5, "bonus": 0.0})
    out, entropy = joint(rollout), rollout["entropy"].sum()
    torch.testing.assert_close(out["loss_third"], 0.5 * entropy)
    assert out["loss_entropy"] == 0 and {"entropy", "bonus_entropy", "third_entropy"} <= set(out.keys())
    for name in ("third_entropy", "no_loss_third"):
        torch.testing.assert_close(out[name], entropy.detach())
        assert not out[name].requires_grad
    torch.testing.assert_close(joint.total(out), out["loss_policy"] + 0.5 * entropy)


def test_losses_take_entries_as_arguments(actor, rollout):
    """TorchRL's dispatch: no tensordict in, a tuple out."""
    policies = (BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=a) for a in (None, actor))
    others = LanguageModelLoss(), EarlyExitLoss(), EntropyBonus(), RateLoss(0.3), JointLoss.paper(target_rate=0.3)
    for loss in (*policies, *others):
        entries = {"_".join(k) if isinstance(k, tuple) else k: rollout[k] for k in loss.in_keys}
        values, expected = loss(**entries), loss(rollout)
        for key, value in zip(loss.out_keys, values, strict=True):
            torch.testing.assert_close(value, expected[key])


def test_vtrace_by_name_scores_with_the_losss_actor_and_keys(actor, model, rollout):
    """As if every free decision had been likelier to the policy that took it."""
    stored = rollout.detach()
    free = ~stored["forced"]
    stored["action_log_prob"] = torch.where(free, stored["action_log_prob"] + 0.4, 0.0)
    rewards, done, terminated = (stored["next", key].squeeze(-1) for key in ("reward", "done", "terminated"))
    ends = {"done": done, "terminated": terminated}
    advantages, _ = vtrace(rewards, 0 * rewards, 0 * rewards, torch.where(free, -0.4, 0.0), 0.9, **ends)
    log_probs = actor.get_dist(stored).log_prob(stored["action"])
    expected = -(log_probs * advantages)[free].mean()
    loss = BoundaryReinforceLoss("vtrace_return", gamma=0.9, actor=actor)
    torch.testing.assert_close(loss(stored)["loss_policy"], expected)
    other = LearnedBoundaryActor(model)  # one that is given goes before the loss's
    given = BoundaryReinforceLoss("vtrace_return", gamma=0.9, actor=actor, actor_network=other)
    assert given._value_estimator.actor_network is other and loss._value_estimator.actor_network is actor
    ppo = BoundaryClipPPOLoss(actor).make_value_estimator("vtrace_return", gamma=0.9)
    torch.testing.assert_close(ppo(stored)["advantage_mean"], advantages[free].mean())
    stored["old", "log_prob"], stored["old", "action"] = stored["action_log_prob"], stored["action"]
    loss.set_keys(action_log_prob=("old", "log_prob"), action=("old", "action"))
    torch.testing.assert_close(loss(stored.exclude("action_log_prob", "action"))["loss_policy"], expected)


def test_a_joint_loss_gives_all_its_policies_an_estimator(actor):
    joint = JointLoss(
        {"policy": BoundaryReinforceLoss(), "ppo": BoundaryClipPPOLoss(actor), "text": LanguageModelLoss()}
    )
    assert joint.make_value_estimator("discounted_return", gamma=0.5) is joint
    assert [joint.terms[name]._value_estimator.gamma for name in ("policy", "ppo")] == [0.5, 0.5]


def test_refusals(actor):
    refused(
        (
            lambda: BoundaryReinforceLoss("vtrace_return", gamma=0.9, actor=actor, off_policy=True),
            ValueError,
            "off_policy must be False with vtrace_return",
        ),
        (
            lambda: BoundaryReinforceLoss(
                "vtrace", gamma=0.9, actor=actor, value_network=ZeroCritic(), off_policy=True
            ),
            ValueError,
            "off_policy must be False with VTrace",
        ),
        (lambda: BoundaryReinforceLoss("vtrace", gamma=0.9), ValueError, "VTrace needs a loss with an actor"),
        (
            lambda: JointLoss({"a": LanguageModelLoss()}).make_value_estimator("discounted_return"),
            NotImplementedError,
            r"none of the terms \['a'\] has an estimator, got discounted_return",
        ),
        (lambda: EntropyBonus().make_value_estimator("GAE"), NotImplementedError, "EntropyBonus reads no advantages"),
        (
            lambda: BoundaryReinforceLoss("vtrace_return", gamma=0.9),
            TypeError,
            "vtrace_return needs an actor_network that scores decisions, got None",
        ),
        (
            lambda: BoundaryClipPPOLoss(actor, entropy_coeff={"action_log_prob": 0.1}),
            TypeError,
            "entropy_coeff must be one number",
        ),
        *(
            (
                lambda name=name: BoundaryClipPPOLoss(actor, **{name: True}),
                ValueError,
                rf"options must be those of ClipPPOLoss without .* got \['{name}'\]",
            )
            for name in ("max_importance_ratio", "delay_actor", "advantage_norm", "normalize_advantage_exclude_dims")
        ),
        *(
            (
                lambda name=name: BoundaryClipPPOLoss(actor, **{name: 0.1}),
                TypeError,
                rf"options must be .* '{name}'{hint}",
            )
            for name, hint in {
                "clip_low": r"; write clip_epsilon=\(low, high\)",
                "entropy_coef": "; did you mean 'entropy_coeff'",
                "policy_epochs": "",
            }.items()
        ),
        (lambda: BoundaryClipPPOLoss(actor, clip_epsilon="a"), TypeError, "clip_epsilon must be a number, got 'a'"),
        *(
            (
                lambda make=make: make(target_rate=20),
                ValueError,
                "target_rate must lie strictly between 0 and 1, got 20",
            )
            for make in (JointLoss.paper, JointLoss.released)
        ),
        (lambda: JointLoss.paper(target_rate=0.2, rate=3), TypeError, "rate must be a mapping .*, got 3"),
        (
            lambda: JointLoss.paper(target_rate=0.2, estimator=torch.nn.Linear(1, 1)),
            TypeError,
            "estimator must be a torchrl.objectives.value.ValueEstimatorBase, .* got a Linear",
        ),
    )
    assert BoundaryClipPPOLoss(actor, clip_epsilon=(0.1, 0.3), log_explained_variance=False).clip_epsilon_high == 0.3


def test_the_paper_has_a_batch_mean_with_each_estimator_of_returns():
    """The default by its name is the default, and another estimator changes nothing but itself."""
    for options in ({}, *({"estimator": name} for name in WITH_BATCH_MEAN)):
        estimator = JointLoss.paper(target_rate=0.2, **options).terms["policy"]._value_estimator
        assert estimator.baseline is batch_mean and estimator.gamma == 0.99
        bare = JointLoss.paper(target_rate=0.2, baseline="none", **options).terms["policy"]._value_estimator
        assert bare.baseline is no_baseline
    for options in ({"estimator": "control_variate"}, {"estimator": ReturnEstimator, "gamma": 0.9}):
        estimator = JointLoss.paper(target_rate=0.2, **options).terms["policy"]._value_estimator
        assert estimator.baseline is no_baseline


def test_ppo_schedules_its_entropy_bonus_from_zero_and_renames_forced(actor, rollout):
    stored = ReturnEstimator(**OPTIONS)(rollout.detach())
    loss, free = BoundaryClipPPOLoss(actor), ~stored["forced"]
    out = loss(stored)
    assert out["loss_entropy"] == 0
    loss.entropy_coeff = 0.5
    torch.testing.assert_close(loss(stored)["loss_entropy"].detach(), -0.5 * stored["entropy"][free].mean())
    stored["no", "choice"] = stored["forced"]
    stored["advantage"] = stored["advantage"].masked_fill(stored["forced"].unsqueeze(-1), 1e3)
    loss.set_keys(forced=("no", "choice"))
    torch.testing.assert_close(loss(stored)["loss_objective"], out["loss_objective"])


def test_options_of_a_recipe_reach_its_terms(rollout):
    """What a caller gives goes before defaults; the processes are those of every term and of its estimator."""
    group = object()
    for joint in (
        JointLoss.paper(target_rate=0.3, process_group=group),
        JointLoss.paper(target_rate=0.3, estimator="control_variate", process_group=group),
        JointLoss.released(target_rate=0.3, process_group=group),
    ):
        policy = joint.terms["policy"]
        members = [*joint.terms.values(), policy._value_estimator]
        members.append(policy.make_value_estimator("discounted_return", gamma=0.9)._value_estimator)
        assert all(member.process_group is group for member in members)
    default, given = (
        JointLoss.paper(target_rate=0.3, **options).terms
        for options in (
            {},
            {
                "estimator": "discounted_return",
                "baseline": "leave_one_out",
                "gamma": 0.5,
                "rate": {"control": "hinge", "ends": "window", "target": 0.7},
            },
        )
    )
    assert default["policy"]._value_estimator.gamma == 0.99 and given["policy"]._value_estimator.gamma == 0.5
    rates = [(terms["rate"].control, terms["rate"].ends, terms["rate"].target_rate) for terms in (default, given)]
    assert rates == [("logit_pressure", "excluded", 0.3), ("hinge", "window", 0.7)]
    means = discounted_return(rollout["next", "reward"].squeeze(-1), 0.99)
    for baseline, factor in ((None, 1), ("leave_one_out", 4 / 3)):  # of the default estimator
        estimator = JointLoss.paper(target_rate=0.3, baseline=baseline).terms["policy"]._value_estimator
        advantages = estimator(rollout.detach().copy())["advantage"].squeeze(-1)
        torch.testing.assert_close(advantages, factor * (means - means.mean(0)), rtol=1e-4, atol=1e-5)
    own = ReturnEstimator(gamma=0.3)
    assert JointLoss.paper(target_rate=0.3, estimator=own).terms["policy"]._value_estimator is own
    joint = JointLoss.released(target_rate=0.3, gamma=0.5, rows_per_mean=2)
    policy, rate = joint.terms["policy"], joint.terms["rate"]
    assert (policy.average, policy._value_estimator.gamma) == ("window", 0.5)
    assert (rate.ends, rate.rows_per_mean, rate.target_rate) == ("window", 2, 0.3)
    figures = {"language_model": 0.9, "policy": 0.01, "rate": 0.01, "early_exit": 0.1}
    assert {name: round(float(joint.coefficient(name)), 4) for name in joint.terms} == figures


def test_ppo_passes_on_what_it_is_given(actor, rollout):
    """Options of TorchRL's loss, and the processes, to estimators made by name."""
    group, options = object(), {"normalize_advantage": True, "samples_mc_entropy": 3}
    loss = BoundaryClipPPOLoss(actor, clip_epsilon=(0.1, 0.4), entropy_coeff=0.2, process_group=group, **options)
    assert loss.normalize_advantage and loss.samples_mc_entropy == 3 and float(loss.entropy_coeff) == pytest.approx(0.2)
    for value in (1, torch.tensor(0.5)):
        weighted = BoundaryClipPPOLoss(actor, entropy_coeff=value, delay_actor=False)
        assert float(weighted.entropy_coeff) == value
    silent = BoundaryClipPPOLoss(actor, entropy_bonus=False)
    stored = ReturnEstimator(**OPTIONS)(rollout.detach())
    assert set(silent(stored).keys()) == set(silent.out_keys) and "loss_entropy" not in silent.out_keys
    assert loss.make_value_estimator("discounted_return", gamma=0.5)._value_estimator.process_group is group
    assert loss.make_value_estimator("discounted_return", process_group=None)._value_estimator.process_group is None


def test_defaults_are_the_documented_ones():
    """Changing one changes the runs of everybody who relies on it."""
    usual = [False, 0.0, "mean", "none", "auto", "free", "excluded", None, inspect.Parameter.empty]
    for function, expected in {
        baselines.z_score: {"eps": 1e-8},
        baselines.running_mean: {"decay": 0.9},
        RunningMeanBaseline: {"decay": 0.9},
        control_variate: {"ridge": 1e-3, "folds": 2},
        ControlVariateReturn: {"regressor_keys": (("next", "early_log_prob"),), "hindsight": True}
        | {"ridge": 1e-3, "folds": 2},
        entropy_spikes: {"lags": 2},
        vtrace: {"lmbda": 1.0, "rho_clip": 1.0, "c_clip": 1.0},
        VTraceReturn: {"lmbda": 1.0, "rho_clip": 1.0, "c_clip": 1.0},
        hinge_loss: {"slack": 0.005},
        controller_update: {"limit": math.inf},
        BoundaryClipPPOLoss: {"clip_epsilon": 0.2},
        NaturalGradient: {"floor": 0.05},
        natural_advantage: {"floor": 0.05},
        Trials: {"every": 1, "layout": "padded"},
        LocalFlips: {"num_flips": 3, "span": 16},
        TokenGain: {"apart": 2},
        BudgetedFlips: {"settled": 0.1, "num_flips": 2, "every": 4},
        RateLoss: {"control": "logit_pressure"},
        JointLoss.of_segmenter: {"language_model": 1.0, "early_exit": 0.1},
        JointLoss.released: {"gamma": 0.99, "rows_per_mean": 8},
        BoundaryReinforceLoss: {},
        ReturnEstimator: {},
    }.items():
        parameters = inspect.signature(function).parameters.values()
        assert {p.name: p.default for p in parameters if p.default not in usual} == expected
    registered = {
        "lmbda": {"critic_advantage": 0.95, "vtrace_return": 1.0},
        "gamma": dict.fromkeys(ESTIMATORS, 0.99) | {"token_gain": 1.0},
    }
    for name in ESTIMATORS:
        options = {option: values[name] for option, values in registered.items() if name in values}
        assert get_value_estimator_entry(name).default_kwargs == options
    for name, options in OLD_ESTIMATORS.items():
        assert get_value_estimator_entry(name).default_kwargs == {"gamma": 0.99, **options}
    for name, gains in {"pi": (3.0, 0.005), "price": (15.0, 0.02)}.items():
        loss = RateLoss(0.3, control=name)
        assert (loss.proportional, loss.integral_gain) == gains == CONTROLLERS[name]


def test_gamma_is_saved_exactly_whatever_the_loss_is_cast_to():
    loss, other = (JointLoss.paper(target_rate=0.3, baseline="leave_one_out", gamma=gamma) for gamma in (0.99, 0.5))
    other.load_state_dict(loss.to(torch.bfloat16).state_dict())
    assert other.terms["policy"]._value_estimator.gamma == 0.99
    critic = make_estimator("critic_advantage", gamma=0.9, lmbda=0.8)
    critic.load_state_dict(make_estimator("critic_advantage", gamma=0.7, lmbda=0.6).state_dict())
    assert (critic.gamma, critic.lmbda) == (0.7, 0.6)
    assert type(ReturnEstimator(gamma=torch.tensor(0.5)).gamma) is float
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 2.0"):
        critic.gamma = 2.0


def test_the_policy_gradient_of_a_joint_loss_by_hand(model):
    """d/d logit log pi(a) = a - p: the gradient of each logit is written down, autograd carries it to the weights."""
    rollout, parameters = make_rollout(model), list(model.parameters())
    free, rewards = ~rollout["forced"], rollout["next", "reward"].squeeze(-1)
    loss = JointLoss.paper(target_rate=0.3, gamma=0.9)(rollout)["loss_policy"]
    ours = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    returns, ahead = torch.zeros(4, 12), torch.zeros(4)
    for t in reversed(range(12)):
        returns[:, t] = ahead = rewards[:, t] + 0.9 * ahead
    score = rollout["action"] - rollout["logits"].detach().sigmoid()
    slope = torch.where(free, -0.01 * (returns - returns.mean(0)) * score / free.sum(), 0.0)  # d loss / d logit
    expected = torch.autograd.grad(rollout["logits"], parameters, slope, materialize_grads=True)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-8)
    assert any(one.abs().max() > 0 for one in ours)

"""Value estimators: the functions they stand for, at the edge of a tensordict."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, LearnedBoundaryActor
from tensordict import TensorDict
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE, ValueEstimatorBase

from rltok_rl.functional import baselines, policy_gradient, returns
from rltok_rl.objectives import (
    CriticAdvantage,
    ReturnEstimator,
    ZeroCritic,
    make_estimator,
)

from ..layout import ONE_GRAPH
from ..named_estimators import NAMES, named_estimator
from .conftest import make_rollout

SHAPE = (4, 12)


def draw_rollout(**entries):
    reward = torch.randn(*SHAPE, 1)
    done = torch.rand(*SHAPE, 1) < 0.2
    following = {"reward": reward, "done": done, "terminated": done, "state_value": torch.randn(*SHAPE, 1)}
    following["early_log_prob"] = torch.randn(*SHAPE, 1)
    root = {
        "state_value": torch.randn(*SHAPE, 1),
        "action_log_prob": torch.randn(SHAPE),
        "done": torch.zeros_like(done),
    }
    return TensorDict({**root, "next": TensorDict(following, SHAPE), **entries}, SHAPE, names=[None, "time"])


class Scorer(torch.nn.Module):
    """An actor that gives every decision the log-probability 0.3 above the old one."""

    in_keys = ["action_log_prob"]

    def get_dist(self, tensordict):
        class Policy:
            @staticmethod
            def log_prob(action):
                return tensordict["action_log_prob"] + 0.3

        return Policy()


OPTIONS = {
    "group_mean": {"group_size": 2},
    "running_mean": {"num_steps": 12},
    "vtrace_return": {"actor_network": Scorer()},
}


def make(name, **options):
    return named_estimator(name, gamma=0.9, **OPTIONS.get(name, {}), **options)


def by_hand(name, td):
    """What the functional layer says, [B, T]: advantages and targets."""
    r, d = td["next", "reward"][..., 0], td["next", "done"][..., 0]
    g = returns.discounted_return(r, 0.9, done=d)
    v, w = td["state_value"][..., 0], td["next", "state_value"][..., 0]
    if name == "critic_advantage":
        a = returns.generalized_advantage(r, v, w, 0.9, 0.95, done=d)
        return a, a + v
    if name == "vtrace_return":
        return policy_gradient.vtrace(r, v, w, torch.full(SHAPE, 0.3), 0.9, done=d)
    if name == "control_variate":
        f = td["next", "early_log_prob"][..., 0]
        ahead = returns.discounted_return(f, 0.9, done=d)
        return baselines.control_variate(g, torch.stack((f, ahead), -1)), g
    advantages = {
        "discounted_return": lambda: g,
        "batch_mean": lambda: g - g.mean(0),
        "leave_one_out": lambda: (g - g.mean(0)) * 4 / 3,
        "z_score": lambda: (g - g.mean()) / g.std(correction=0),
        "group_mean": lambda: torch.cat([(x - x.mean(0)) * 2 for x in g.split(2)]),
        "running_mean": lambda: g,
    }
    return advantages[name](), g


@pytest.mark.parametrize("name", NAMES)
def test_is_the_function_it_stands_for(name):
    td = draw_rollout(action=torch.zeros(SHAPE))
    out = make(name)(td.clone())
    for key, expected in zip(("advantage", "value_target"), by_hand(name, td), strict=True):
        assert out[key].shape == (*SHAPE, 1)
        torch.testing.assert_close(out[key].squeeze(-1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_what_torchrl_expects_of_an_estimator(name):
    estimator = make(name)
    assert isinstance(estimator, ValueEstimatorBase)
    td = draw_rollout(action=torch.zeros(SHAPE))
    expected = make(name)(td.clone())
    torch.testing.assert_close(estimator.value_estimate(td), expected["value_target"])
    estimator = make(name)
    estimator.set_keys(advantage=("my", "adv"), value_target="target", reward="pay")
    moved = td.clone()
    moved["next", "pay"] = moved["next"].pop("reward")
    out = estimator(moved)
    torch.testing.assert_close(out["my", "adv"], expected["advantage"])
    torch.testing.assert_close(out["target"], expected["value_target"])


@pytest.mark.parametrize("name", NAMES)
def test_time_may_lie_anywhere(name):
    td = draw_rollout(action=torch.zeros(SHAPE))
    expected = make(name)(td.clone())
    turned = make(name)(td.transpose(0, 1).contiguous())  # carries its names along
    torch.testing.assert_close(turned["advantage"].transpose(0, 1), expected["advantage"])
    nameless = td.transpose(0, 1).contiguous()
    nameless.names = [None, None]
    torch.testing.assert_close(make(name, time_dim=0)(nameless)["advantage"].transpose(0, 1), expected["advantage"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["auto", ("mine", "valid")], ids=str)
def test_masked_steps_do_not_count(name, key):
    """Row 3 is padding as a whole, row 2 from step 5 on; NaN stands there."""
    td = draw_rollout(action=torch.zeros(SHAPE))
    mask = torch.ones(*SHAPE, 1, dtype=torch.bool)
    mask[3] = False
    mask[2, 5:] = False
    td["next", "done"][2, 4] = True
    td["next", "reward"][~mask] = float("nan")
    td.set(("collector", "mask") if key == "auto" else key, mask)
    out = make(name, mask_key=key)(td)
    assert out["advantage"].isfinite().all() and (out["advantage"][~mask] == 0).all()
    short = draw_rollout(action=torch.zeros(SHAPE)).update(td)[:2]
    if name in ("discounted_return", "running_mean", "critic_advantage", "vtrace_return"):
        alone = make(name, mask_key=key)(short.clone())
        torch.testing.assert_close(out["advantage"][:2], alone["advantage"])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_rewards_on_request_alone(name):
    for differentiable in (False, True):
        td = draw_rollout(action=torch.zeros(SHAPE))
        reward = td["next", "reward"].requires_grad_()
        td["next", "reward"] = reward
        assert make(name, differentiable=differentiable)(td)["advantage"].requires_grad is differentiable


@ONE_GRAPH
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("control_variate", "vtrace_return")])
def test_compiles_in_one_graph(name):
    td = draw_rollout().select(("next", "reward"), ("next", "done"), "state_value", ("next", "state_value"))
    estimator, plain = make(name), make(name)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="eager")
    def call(td):
        return estimator(td)["advantage"]

    torch.testing.assert_close(call(td.clone()), plain(td.clone())["advantage"])


def test_a_critic_is_an_option(model):
    rollout = make_rollout(model).detach()
    critic = BoundaryCritic(model.config)
    torch.nn.init.normal_(critic.module[-1].weight)
    values = critic(rollout.clone())["state_value"]
    plain = ReturnEstimator(gamma=0.9)(rollout.clone())
    taken = ReturnEstimator(gamma=0.9, value_network=critic, subtract_value=True)(rollout.clone())
    torch.testing.assert_close(taken["advantage"], plain["advantage"] - values)
    torch.testing.assert_close(taken["value_target"], plain["value_target"])
    ours = make_estimator("critic_advantage", gamma=0.9, lmbda=0.8, value_network=critic)(rollout.clone())
    theirs = GAE(gamma=0.9, lmbda=0.8, value_network=critic, deactivate_vmap=True)(rollout.clone())
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-5)


def test_the_value_after_a_step_may_have_parameters_of_its_own():
    """A target network: twice the weights, for what follows alone."""
    td = draw_rollout(known=torch.randn(*SHAPE, 3)).exclude("state_value", ("next", "state_value"))
    td["next", "known"] = torch.randn(*SHAPE, 3)
    critic = ValueOperator(torch.nn.Linear(3, 1, bias=False), in_keys=["known"])
    params = TensorDict.from_module(critic)
    estimator = make_estimator("critic_advantage", gamma=0.9, lmbda=0.8, value_network=critic)
    value, ahead = (critic.module(td[key]).squeeze(-1).detach() for key in ("known", ("next", "known")))
    reward, done = (td["next", key].squeeze(-1) for key in ("reward", "done"))
    for target_params, following in ((None, ahead), (params.apply(lambda p: 2 * p), 2 * ahead)):
        found = estimator(td.copy(), params=params, target_params=target_params)["advantage"].squeeze(-1)
        expected = returns.generalized_advantage(reward, value, following, 0.9, 0.8, done=done)
        torch.testing.assert_close(found, expected)


def test_a_zero_critic_makes_gae_a_return():
    td = draw_rollout()
    td.del_("state_value")
    td["next"].del_("state_value")
    ours = make_estimator("critic_advantage", gamma=0.9, lmbda=1.0, value_network=ZeroCritic())(td.clone())
    plain = ReturnEstimator(gamma=0.9)(td.clone())
    torch.testing.assert_close(ours["advantage"], plain["advantage"])


def test_a_running_mean_learns_in_training_alone_and_is_saved():
    estimator, td = make("running_mean"), draw_rollout()
    estimator.eval()
    first = estimator(td.clone())["advantage"]
    torch.testing.assert_close(estimator(td.clone())["advantage"], first)
    estimator.train()
    torch.testing.assert_close(estimator(td.clone())["advantage"], first)
    second = estimator(td.clone())["advantage"]
    torch.testing.assert_close(second, first - first.mean(0))
    other = make("running_mean")
    estimator.eval()
    other.load_state_dict(estimator.state_dict())
    torch.testing.assert_close(other(td.clone())["advantage"], estimator(td.clone())["advantage"])


def test_vtrace_is_on_policy_on_the_rollouts_own_policy(model):
    """With the actor that decided, and no critic, the targets are discounted returns."""
    rollout = make_rollout(model).detach()
    out = make_estimator("vtrace_return", gamma=0.9, actor_network=LearnedBoundaryActor(model))(rollout.clone())
    plain = ReturnEstimator(gamma=0.9)(rollout.clone())
    torch.testing.assert_close(out["value_target"], plain["value_target"], rtol=1e-4, atol=1e-4)


class Seen(torch.nn.Module):
    """A baseline with memory: the mean of all returns before this batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2, dtype=torch.float64))

    def forward(self, returns, *, mask, process_group):
        advantages = returns - (self.total[0] / self.total[1].clamp(min=1)).to(returns)
        if self.training:
            self.total += torch.stack((returns.sum().double(), torch.tensor(float(returns.numel())))).double()
        return advantages


def test_a_module_is_a_baseline_whose_memory_is_part_of_the_state():
    given, td = Seen(), draw_rollout()
    made = ReturnEstimator(gamma=0.9, baseline=given)
    assert made.baseline is given and "baseline.total" in made.state_dict()
    first = made(td.clone())["value_target"]
    other = ReturnEstimator(gamma=0.9, baseline=Seen)  # a class is made anew
    assert not other.baseline.total.any()
    other.load_state_dict(made.state_dict())
    one, same = (estimator.eval()(td.clone())["advantage"] for estimator in (made, other))
    assert torch.equal(one, same)
    torch.testing.assert_close(one, first - first.mean())
    assert torch.equal(made(td.clone())["advantage"], one), "it learns in training mode alone"


def test_advantages_must_have_the_shape_of_returns():
    """A baseline that was returned in their place used to end in an IndexError, far from here."""

    def mean(returns, *, mask, process_group):
        return returns.mean(0)

    class Own(ReturnEstimator):
        def _advantages(self, returns, view):
            return returns, view

    class Critic(CriticAdvantage):
        def _advantages(self, returns, view):
            return returns[0]

    td = draw_rollout()
    shape = r"with the shape of the returns, \[4, 12\], got"
    with pytest.raises(ValueError, match=rf"baseline mean must return advantages {shape} \[12\]"):
        ReturnEstimator(gamma=0.9, baseline=mean)(td)
    with pytest.raises(ValueError, match=rf"baseline mean must return advantages {shape} \[12\]"):
        make_estimator("critic_advantage", gamma=0.9, lmbda=1.0, baseline=mean)(td)
    with pytest.raises(ValueError, match=rf"Own._advantages must return advantages {shape} tuple"):
        Own(gamma=0.9)(td)
    with pytest.raises(ValueError, match=rf"Critic._advantages must return advantages {shape} \[12\]"):
        Critic(gamma=0.9, lmbda=1.0)(td)


def test_a_baseline_that_would_be_ignored_is_refused():
    """It used to stand in the configuration of a run that never asked it."""

    class Alone(ReturnEstimator):
        def _advantages(self, returns, view):
            return returns

    class Both(Alone):
        uses_baseline = True

        def _advantages(self, returns, view):
            return 2 * ReturnEstimator._advantages(self, returns, view)

    with pytest.raises(ValueError, match="baseline must be 'none' with Alone, .* got 'leave_one_out'"):
        Alone(gamma=0.9, baseline="leave_one_out")
    td = draw_rollout()
    assert torch.equal(
        Alone(gamma=0.9, baseline="none")(td.clone())["advantage"], by_hand("discounted_return", td)[1][..., None]
    )
    plain = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(td.clone())["advantage"]
    assert torch.equal(Both(gamma=0.9, baseline="leave_one_out")(td.clone())["advantage"], 2 * plain)
    with pytest.raises(ValueError, match="baseline must be 'none' with .*, got 'Seen'"):
        make_estimator("control_variate", gamma=0.9, baseline=Seen())
    with pytest.raises(TypeError, match=r"only baselines given by name .* \['group_size'\] with 'Seen'"):
        make_estimator("discounted_return", gamma=0.9, baseline=Seen(), group_size=2)
    with pytest.raises(TypeError, match=r"options of baseline 'group_mean' must fit, got \[\]: missing .*'group_size'"):
        make_estimator("discounted_return", gamma=0.9, baseline="group_mean")
    assert make_estimator("discounted_return", gamma=0.9, baseline=Seen()) is not None


def test_bad_requests_are_refused():
    for wrong, message in {
        "leave_one": "got 'leave_one'; did you mean 'leave_one_out'",
        3: "baseline must be a name, a function or a module, got 3",
        dict: "baseline must be a torch.nn.Module if it is a class, .* got dict",
        partial(Seen, decay=1): "baseline Seen must be made without arguments, or given as an instance: .*'decay'",
        partial(Seen(), decay=1): "baseline must be a module itself, not a partial of one",
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            ReturnEstimator(gamma=0.9, baseline=wrong)
    with pytest.raises(ValueError, match="got 'discounted_retrun'; did you mean 'discounted_return'"):
        make_estimator("discounted_retrun")
    with pytest.raises(ValueError, match="got 'z_score'; write 'discounted_return' with baseline='z_score'"):
        make_estimator("z_score")
    with pytest.raises(ValueError, match="num_steps must be the 12 steps of the rollout, got 8"):
        make_estimator("discounted_return", gamma=0.9, baseline="running_mean", num_steps=8)(draw_rollout())
    with pytest.raises(ValueError, match=r"baseline must be one of .* got 'mean'"):
        ReturnEstimator(gamma=0.9, baseline="mean")
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\], got 1.1"):
        ReturnEstimator(gamma=1.1)
    with pytest.raises(ValueError, match=r"lmbda must lie in \[0, 1\], got -1"):
        make_estimator("critic_advantage", lmbda=-1)
    with pytest.raises(ValueError, match=r"name must be one of .* got 'loo'"):
        make_estimator("loo")
    with pytest.raises(KeyError, match=r"must hold 'next.reward'; it holds \['a'\]"):
        ReturnEstimator(gamma=0.9)(TensorDict({"a": torch.zeros(2, 3)}, [2, 3]))
    with pytest.raises(ValueError, match="at least 2 of them"):
        make("leave_one_out")(draw_rollout()[:1])
    with pytest.raises(KeyError, match="must hold 'state_value', or the estimator a value_network"):
        ReturnEstimator(gamma=0.9, subtract_value=True)(draw_rollout().exclude("state_value"))
    with pytest.raises(ValueError, match=r"must have shape \[4, 12\] or \[4, 12, 1\], got \[4, 12, 2\]"):
        td = draw_rollout()
        td["next", "reward"] = torch.zeros(*SHAPE, 2)
        make("discounted_return")(td)

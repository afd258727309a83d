"""Value estimators: the functions they stand for, at the edge of a tensordict."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, LearnedBoundaryActor
from tensordict import TensorDict
from torch.utils.flop_counter import FlopCounterMode
from torchrl.modules import ValueOperator
from torchrl.objectives.value import GAE, ValueEstimatorBase

from rltok_rl.functional import baselines, policy_gradient, returns
from rltok_rl.functional import control_variate as control_variate_module
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.objectives import CriticAdvantage, ReturnEstimator, ZeroCritic, make_estimator
from rltok_rl.objectives.baseline import RunningMeanBaseline, as_baseline

from ..each import each, refused
from ..layout import ONE_GRAPH
from ..named_estimators import NAMES, named_estimator, needed_options
from .conftest import make_rollout

SHAPE = (4, 12)


def draw_rollout(**entries):
    def column():
        return torch.randn(*SHAPE, 1)

    done = torch.rand(*SHAPE, 1) < 0.2
    after = {"reward": column(), "done": done, "terminated": done, "state_value": column(), "early_log_prob": column()}
    root = {"state_value": column(), "action_log_prob": torch.randn(SHAPE), "action": torch.zeros(SHAPE)}
    root["logits"] = 3 * torch.randn(SHAPE)
    return TensorDict({**root, "next": TensorDict(after, SHAPE), **entries}, SHAPE, names=[None, "time"])


class Scorer(torch.nn.Module):
    """An actor that gives every decision the log-probability 0.3 above the old one."""

    in_keys = ["action_log_prob"]

    def get_dist(self, tensordict):
        class Policy:
            @staticmethod
            def log_prob(action):
                return tensordict["action_log_prob"] + 0.3

        return Policy()


def make(name, **options):
    return named_estimator(name, gamma=0.9, **needed_options(name, 12, Scorer()), **options)


def by_hand(name, td):
    """Advantages and targets [B, T] of the functional layer."""
    r, d, w, f = (td["next", key][..., 0] for key in ("reward", "done", "state_value", "early_log_prob"))
    g, v = returns.discounted_return(r, 0.9, done=d), td["state_value"][..., 0]
    if name == "critic_advantage":
        a = returns.generalized_advantage(r, v, w, 0.9, 0.95, done=d)
        return a, a + v
    if name == "vtrace_return":
        return policy_gradient.vtrace(r, v, w, torch.full(SHAPE, 0.3), 0.9, done=d)
    ahead = returns.discounted_return(f, 0.9, done=d)
    information = td["logits"].sigmoid() * (-td["logits"]).sigmoid()
    advantages = {
        "discounted_return": g,
        "natural_gradient": g / (4 * information.clamp(min=0.05)),
        "control_variate": control_variate(g, torch.stack((f, ahead), -1)),
        "batch_mean": g - g.mean(0),
        "leave_one_out": (g - g.mean(0)) * 4 / 3,
        "z_score": (g - g.mean()) / g.std(correction=0),
        "group_mean": torch.cat([(x - x.mean(0)) * 2 for x in g.split(2)]),
        "running_mean": g,
    }
    return advantages[name], g


@each(name=NAMES)
def test_is_the_function_it_stands_for(name):
    """Under any keys, and wherever time lies."""
    td, estimator = draw_rollout(), make(name)
    expected = dict(zip(("advantage", "value_target"), by_hand(name, td), strict=True))
    assert isinstance(estimator, ValueEstimatorBase)
    torch.testing.assert_close(estimator.value_estimate(td).squeeze(-1), expected["value_target"], rtol=1e-5, atol=1e-5)
    out = make(name)(td.clone())
    for key, value in expected.items():
        assert out[key].shape == (*SHAPE, 1)
        torch.testing.assert_close(out[key].squeeze(-1), value, rtol=1e-5, atol=1e-5)
    estimator, moved = make(name), td.clone()
    estimator.set_keys(advantage=("my", "adv"), value_target="target", reward="pay")
    moved["next", "pay"] = moved["next"].pop("reward")
    again = estimator(moved)
    torch.testing.assert_close(again["my", "adv"], out["advantage"])
    torch.testing.assert_close(again["target"], out["value_target"])
    turned = td.transpose(0, 1).contiguous()  # carries its names along
    nameless = turned.clone()
    nameless.names = [None, None]
    for estimator, rollout in ((make(name), turned), (make(name, time_dim=0), nameless)):
        torch.testing.assert_close(estimator(rollout)["advantage"].transpose(0, 1), out["advantage"])
    torch.testing.assert_close(make(name)(nameless, time_dim=0)["advantage"].transpose(0, 1), out["advantage"])
    target = make(name).value_estimate(nameless, time_dim=0)
    torch.testing.assert_close(target.transpose(0, 1), out["value_target"])


@each(name=[n for n in NAMES if n != "group_mean"])
def test_rows_may_have_any_leading_dimensions(name):
    """[2, 2, T] are four rows, and [T] is one, of an estimator that compares none."""
    td = draw_rollout(known=torch.randn(SHAPE))
    options = {"regressor_keys": (("next", "early_log_prob"), "known")} if name == "control_variate" else {}
    expected = make(name, **options)(td.clone())["advantage"]
    torch.testing.assert_close(make(name, **options)(td.view(2, 2, 12))["advantage"].view(4, 12, 1), expected)
    if name in ("discounted_return", "natural_gradient", "running_mean", "critic_advantage", "vtrace_return"):
        torch.testing.assert_close(make(name)(td[1])["advantage"], expected[1])


@each(name=NAMES, key=["auto", ("mine", "valid")])
def test_masked_steps_do_not_count(name, key):
    """Row 3 is padding as a whole, row 2 from step 5 on; NaN stands there."""
    td = draw_rollout()
    mask = torch.arange(12) < torch.tensor([12, 12, 5, 0])[:, None]
    mask = mask.unsqueeze(-1)
    td["next", "done"][2, 4] = True
    for entry in (("next", "reward"), ("next", "early_log_prob"), ("next", "state_value"), "state_value"):
        td[entry][~mask] = float("nan")
    for entry in ("action_log_prob", "logits"):
        td[entry][~mask.squeeze(-1)] = float("nan")
    td.set(("collector", "mask") if key == "auto" else key, mask)
    short = td[:2].clone()
    advantages = make(name, mask_key=key)(td)["advantage"]
    assert advantages.isfinite().all() and (advantages[~mask] == 0).all()
    if name in ("discounted_return", "natural_gradient", "running_mean", "critic_advantage", "vtrace_return"):
        torch.testing.assert_close(advantages[:2], make(name, mask_key=key)(short)["advantage"])


@each(name=NAMES)
def test_advantages_are_on_the_device_of_the_rollout(name):
    td = draw_rollout(mask=torch.rand(SHAPE) < 0.7).to("meta")
    out = make(name, mask_key="mask").to("meta")(td)
    assert {out[key].device.type for key in ("advantage", "value_target")} == {"meta"}
    assert ZeroCritic()(TensorDict({"done": td["mask"]}, SHAPE))["state_value"].is_meta


@each(name=NAMES, differentiable=[False, True])
def test_gradients_reach_rewards_on_request_alone(name, differentiable):
    td = draw_rollout()
    td["next", "reward"] = td["next", "reward"].requires_grad_()
    assert make(name, differentiable=differentiable)(td.copy())["advantage"].requires_grad is differentiable
    with torch.no_grad():
        estimator = make(name, differentiable=differentiable)
        assert not estimator.value_estimate(td).requires_grad and not estimator(td)["advantage"].requires_grad


@ONE_GRAPH
@each(name=[n for n in NAMES if n not in ("control_variate", "vtrace_return")])
def test_compiles_in_one_graph(name):
    td = draw_rollout().select(("next", "reward"), ("next", "done"), "state_value", ("next", "state_value"), "logits")
    estimator, plain = make(name), make(name)
    torch._dynamo.reset()
    compiled = torch.compile(lambda td: estimator(td)["advantage"], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(td.clone()), plain(td.clone())["advantage"])


def test_critics(model):
    """Generalised advantages as in TorchRL, values of 0, and V-trace of the rollout's own policy."""
    rollout, critic = make_rollout(model).detach(), BoundaryCritic(model.config)
    torch.nn.init.normal_(critic.module[-1].weight)
    plain = ReturnEstimator(gamma=0.9)(rollout.clone())
    options = {"gamma": 0.9, "lmbda": 0.8, "value_network": critic}
    ours = make_estimator("critic_advantage", **options)(rollout.clone())
    theirs = GAE(**options, deactivate_vmap=True)(rollout.clone())
    for key in ("advantage", "value_target"):
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-5)
    zero = make_estimator("critic_advantage", gamma=0.9, lmbda=1.0, value_network=ZeroCritic())(rollout.clone())
    torch.testing.assert_close(zero["advantage"], plain["advantage"])
    vtrace = make_estimator("vtrace_return", gamma=0.9, actor_network=LearnedBoundaryActor(model))(rollout.clone())
    torch.testing.assert_close(vtrace["value_target"], plain["value_target"], rtol=1e-4, atol=1e-4)


def test_clips_of_vtrace_are_those_of_the_function():
    td = draw_rollout()
    clips = {"rho_clip": 1.2, "c_clip": 0.7}
    ours = make("vtrace_return", **clips)(td.clone())["value_target"].squeeze(-1)
    reward, done, after = (td["next", key].squeeze(-1) for key in ("reward", "done", "state_value"))
    values, ratios = td["state_value"].squeeze(-1), torch.full(SHAPE, 0.3)
    _, expected = policy_gradient.vtrace(reward, values, after, ratios, 0.9, done=done, **clips)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_the_value_after_a_step_may_have_parameters_of_its_own():
    """A target network: twice the weights, for the next values alone."""
    td = draw_rollout(known=torch.randn(*SHAPE, 3)).exclude("state_value", ("next", "state_value"))
    td["next", "known"] = torch.randn(*SHAPE, 3)
    critic = ValueOperator(torch.nn.Linear(3, 1, bias=False), in_keys=["known"])
    params = TensorDict.from_module(critic)
    estimator = make_estimator("critic_advantage", gamma=0.9, lmbda=0.8, value_network=critic)
    value, ahead = (critic.module(td[key]).squeeze(-1).detach() for key in ("known", ("next", "known")))
    reward, done = (td["next", key].squeeze(-1) for key in ("reward", "done"))
    for target_params, after in ((None, ahead), (params.apply(lambda p: 2 * p), 2 * ahead)):
        ours = estimator(td.copy(), params=params, target_params=target_params)["advantage"].squeeze(-1)
        expected = returns.generalized_advantage(reward, value, after, 0.9, 0.8, done=done)
        torch.testing.assert_close(ours, expected)
        target = estimator.value_estimate(td, target_params=target_params).squeeze(-1)
        torch.testing.assert_close(target, value + expected)
    ours = estimator(td.copy(), params=params.apply(lambda p: 3 * p))["advantage"].squeeze(-1)  # before and after
    expected = returns.generalized_advantage(reward, 3 * value, 3 * ahead, 0.9, 0.8, done=done)
    torch.testing.assert_close(ours, expected)


def test_in_keys_are_the_entries_that_an_estimator_reads():
    """No more, and enough: the rollout with these alone has the same advantages."""

    class Knowing(Scorer):
        in_keys = ["known"]

        def get_dist(self, tensordict):
            return super().get_dist({"action_log_prob": tensordict["known"].sum(-1)})

    td = draw_rollout(known=torch.randn(*SHAPE, 3)).exclude("state_value", ("next", "state_value"))
    td["next", "known"] = torch.randn(*SHAPE, 3)
    critic = {"value_network": ValueOperator(torch.nn.Linear(3, 1), in_keys=["known"])}
    rewards, before = [("next", "reward"), ("next", "done")], ["known", ("next", "known")]
    critical = [*rewards, ("next", "terminated"), *before]
    for name, options, keys in (
        ("discounted_return", critic, rewards),
        ("natural_gradient", {"floor": 0.1}, [*rewards, "logits"]),
        ("control_variate", {}, [*rewards, ("next", "early_log_prob")]),
        ("control_variate", {"regressor_keys": ["known"]}, [*rewards, "known"]),
        ("critic_advantage", critic, critical),
        ("vtrace_return", {**critic, "actor_network": Knowing()}, [*critical, "action", "action_log_prob"]),
    ):
        estimator = make_estimator(name, gamma=0.9, **options)
        assert estimator.in_keys == keys, name
        whole, selected = (estimator(x)["advantage"] for x in (td.copy(), td.select(*keys)))
        assert torch.equal(whole, selected), name
    stored = make_estimator("critic_advantage", gamma=0.9)  # no critic: its values
    assert stored.in_keys == [*critical[:3], "state_value", ("next", "state_value")]


def test_an_estimator_owns_its_critic_and_baseline_alone(model):
    """The actor and the model belong to the loss and to the caller, who would train and save them twice."""
    actor = LearnedBoundaryActor(model)
    for estimator in (
        make_estimator("vtrace_return", gamma=0.9, actor_network=actor),
        make_estimator("local_flips", gamma=0.9, model=model),
        make_estimator("budgeted_flips", gamma=0.9, model=model),
        make_estimator("token_gain", gamma=0.9, model=model),
        make_estimator("disarm", gamma=0.9, model=model),
    ):
        assert not [*estimator.parameters()] and not any("weight" in key for key in estimator.state_dict())
    assert estimator.train(False).model.training  # nor does a mode of the estimator reach it


def test_a_baseline_that_is_a_class_has_the_options_of_its_partial():
    made = as_baseline(partial(RunningMeanBaseline, num_steps=3, decay=0.5))
    assert isinstance(made, RunningMeanBaseline) and made.decay == 0.5 and made.total.shape == made.count.shape == (3,)
    assert as_baseline(partial(RunningMeanBaseline, num_steps=3)) is not made
    options = {"group_size": 2}
    for grouped in (partial(baselines.group_mean, **options), lambda x, **o: baselines.group_mean(x, **options, **o)):
        advantages = as_baseline(grouped)(torch.tensor([[1.0], [3.0]]), mask=None, process_group=None)
        assert advantages.tolist() == [[-2.0], [2.0]]
    with pytest.raises(ValueError, match="rows_per_mean must be None with group_mean, which has its own groups, got 2"):
        as_baseline(partial(baselines.group_mean, **options), rows_per_mean=2)
    with pytest.raises(ValueError, match="rows_per_mean must be None with Seen, which has a memory of all rows, got 2"):
        as_baseline(Seen(), rows_per_mean=2)
    with pytest.raises(ValueError, match="rows_per_mean must be an integer of at least 1, got 0"):
        as_baseline("batch_mean", rows_per_mean=0)


@each(baseline=["batch_mean", "leave_one_out", "z_score", "group_mean"], rows_per_mean=[None, 2])
def test_options_reach_the_baseline(baseline, rows_per_mean):
    """None of them is a default."""
    if baseline == "group_mean" and rows_per_mean:
        return
    options = {"z_score": {"eps": 0.5}, "group_mean": {"group_size": 4, "exclude_self": False}}.get(baseline, {})
    td, function = draw_rollout(), baselines.BASELINES.get(baseline, baselines.group_mean)
    g = returns.discounted_return(td["next", "reward"][..., 0], 0.7, done=td["next", "done"][..., 0])
    expected = torch.cat([function(part, **options) for part in g.split(rows_per_mean or 4)])
    estimator = make_estimator(
        "discounted_return", gamma=0.7, baseline=baseline, rows_per_mean=rows_per_mean, **options
    )
    torch.testing.assert_close(estimator(td)["advantage"][..., 0], expected)


@each(folds=[2, 4], ridge=[0.1, 2.0], hindsight=[True, False], masked=[True, False])
def test_options_reach_the_control_variate(folds, ridge, hindsight, masked):
    """Also those of the discounted sums that it adds to the regressors, which may be several columns of an entry."""
    td = draw_rollout(known=torch.randn(*SHAPE, 2))
    mask = torch.arange(12) < torch.tensor([12, 9, 7, 12])[:, None] if masked else None
    td = td if mask is None else td.set("mask", mask)
    reward, done, early = (td["next", key][..., 0] for key in ("reward", "done", "early_log_prob"))
    columns = [early, *td["known"].unbind(-1)]
    if hindsight:
        columns += [returns.discounted_return(x, 0.7, done=done, mask=mask) for x in columns]
    g = returns.discounted_return(reward, 0.7, done=done, mask=mask)
    options = {"folds": folds, "ridge": ridge}
    expected = control_variate(g, torch.stack(columns, -1), mask=mask, **options)
    keys = {"regressor_keys": (("next", "early_log_prob"), "known"), "mask_key": "mask" if masked else None}
    estimator = make_estimator("control_variate", gamma=0.7, hindsight=hindsight, **keys, **options)
    torch.testing.assert_close(estimator(td.clone())["advantage"][..., 0], expected, rtol=1e-4, atol=1e-5)
    turned = td.transpose(0, 1).contiguous()
    advantages = estimator(turned)["advantage"].transpose(0, 1)[..., 0]
    torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-5)


@each(name=["critic_advantage", "vtrace_return"])
def test_options_reach_the_critics_estimators(name):
    """With ends of both kinds, a mask, and states before and after that are not each other's."""
    td, options = draw_rollout(), {"gamma": 0.7, "lmbda": 0.6}
    td["next", "terminated"] = td["next", "done"] & (torch.rand(*SHAPE, 1) < 0.5)
    td["mask"] = mask = torch.arange(12) < torch.tensor([12, 9, 0, 12])[:, None]
    reward, value, done, terminated = (td["next", k][..., 0] for k in ("reward", "state_value", "done", "terminated"))
    inputs, ends = (reward, td["state_value"][..., 0], value), {"done": done, "terminated": terminated, "mask": mask}
    clips = {"rho_clip": 1.2, "c_clip": 0.7}
    if name == "vtrace_return":
        advantages, target = policy_gradient.vtrace(*inputs, torch.full(SHAPE, 0.3), **options, **clips, **ends)
        options |= {**clips, "actor_network": Scorer()}
    else:
        advantages = returns.generalized_advantage(*inputs, **options, **ends)
        target = torch.where(mask, inputs[1] + advantages, 0.0)
    for baseline in ("none", "leave_one_out"):
        out = make_estimator(name, mask_key="mask", baseline=baseline, **options)(td.clone())
        expected = baselines.BASELINES[baseline](advantages, mask=mask)
        torch.testing.assert_close(out["advantage"][..., 0], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out["value_target"][..., 0], target, rtol=1e-5, atol=1e-5)


def test_targets_carry_a_gradient_only_if_asked_to():
    td = draw_rollout()
    td["next", "reward"] = td["next", "reward"].requires_grad_()
    for differentiable in (False, True):
        estimator = ReturnEstimator(gamma=0.9, differentiable=differentiable)
        assert estimator.value_estimate(td).requires_grad is differentiable
        assert estimator(td.copy())["value_target"].requires_grad is differentiable


def test_a_critic_of_zeros_writes_where_it_is_told():
    out = ZeroCritic(in_keys=("action",), out_keys=(("deep", "value"),))(draw_rollout().exclude("state_value"))
    assert torch.equal(out["deep", "value"], torch.zeros(*SHAPE, 1)) and "state_value" not in out.keys()


def test_all_options_of_an_estimator_are_in_its_state():
    """A restored running mean has both halves of its memory, and a restored critic's estimator its weights."""
    estimator, td = ReturnEstimator(gamma=0.9, baseline="running_mean", num_steps=12), draw_rollout()
    estimator(td.clone())
    estimator(td.clone())
    assert (estimator.baseline.count == 4 * 0.9 + 4).all()
    other = ReturnEstimator(gamma=0.5, baseline="running_mean", num_steps=12)
    other.load_state_dict(estimator.state_dict())
    restored = estimator.state_dict()
    old = {key.removeprefix("baseline."): value for key, value in restored.items()}  # the memory was the estimator's
    third = ReturnEstimator(gamma=0.5, baseline="running_mean", num_steps=12)
    third.load_state_dict(old)
    assert len(old) == 3 and torch.equal(third.baseline.total, estimator.baseline.total) and third.gamma == 0.9
    assert torch.equal(third.baseline.count, estimator.baseline.count)
    nested, inside = torch.nn.ModuleDict({"e": other}), {f"e.{key}": value for key, value in old.items()}
    nested.load_state_dict(inside)
    assert torch.equal(other.baseline.total, estimator.baseline.total)
    assert torch.equal(other(td.clone())["advantage"], estimator(td.clone())["advantage"])


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


@each(name=["running_mean", "a module"])
def test_a_memory_learns_in_training_alone_and_is_part_of_the_state(name):
    module = Seen()
    options = {"num_steps": 12, "baseline": name} if name == "running_mean" else {"baseline": module}
    estimator, td = ReturnEstimator(gamma=0.9, **options), draw_rollout()
    if name == "a module":
        assert estimator.baseline is module and "baseline.total" in estimator.state_dict()
        options = {"baseline": Seen}  # a class is instantiated
    other = ReturnEstimator(gamma=0.9, **options)
    assert not other.baseline.total.any()
    modes = (estimator.eval, estimator.eval, estimator.train, estimator.eval, estimator.eval)
    first, same, taught, *later = [mode()(td.clone())["advantage"] for mode in modes]
    assert torch.equal(first, same) and torch.equal(first, taught) and torch.equal(*later)
    torch.testing.assert_close(later[0], first - first.mean(0 if name == "running_mean" else None))
    other.load_state_dict(estimator.state_dict())
    assert torch.equal(other.eval()(td.clone())["advantage"], later[0])


def test_a_running_mean_forgets_at_its_own_decay():
    """After returns of 4 and 8, with decay 0.5: (0.5 * 4 + 8) / (0.5 + 1) is expected, here of a return of 0."""
    estimator = ReturnEstimator(gamma=0.0, baseline="running_mean", num_steps=1, decay=0.5)
    for reward in (4.0, 8.0, 0.0):
        out = estimator(TensorDict({"next": {"reward": torch.full((1, 1, 1), reward)}}, [1, 1]))
    assert out["advantage"].item() == pytest.approx(-20 / 3)


def test_custom_estimators():
    """They replace the baseline or use it, and must return advantages: that used to end in an IndexError elsewhere."""

    class Alone(ReturnEstimator):
        def _advantages(self, returns, view):
            return returns

    class Both(Alone):
        uses_baseline = True

        def _advantages(self, returns, view):
            return 2 * ReturnEstimator._advantages(self, returns, view)

    class Pair(ReturnEstimator):
        def _advantages(self, returns, view):
            return returns, view

    class Critic(CriticAdvantage):
        def _advantages(self, returns, view):
            return returns[0]

    def mean(returns, *, mask, process_group):
        return returns.mean(0)

    td, options = draw_rollout(), {"gamma": 0.9, "baseline": "leave_one_out"}
    assert torch.equal(Alone(gamma=0.9)(td.clone())["advantage"][..., 0], by_hand("discounted_return", td)[1])
    plain, both = (kind(**options)(td.clone())["advantage"] for kind in (ReturnEstimator, Both))
    assert torch.equal(both, 2 * plain)
    with pytest.raises(ValueError, match="baseline must be 'none' with Alone, .* got 'leave_one_out'"):
        Alone(**options)
    for estimator, maker, shown in (
        (ReturnEstimator(gamma=0.9, baseline=mean), "baseline mean", r"\[12\]"),
        (make_estimator("critic_advantage", gamma=0.9, lmbda=1.0, baseline=mean), "baseline mean", r"\[12\]"),
        (Pair(gamma=0.9), "Pair._advantages", "tuple"),
        (Critic(gamma=0.9, lmbda=1.0), "Critic._advantages", r"\[12\]"),
    ):
        words = rf"{maker} must return advantages with the shape of the returns, \[4, 12\], got {shown}"
        with pytest.raises(ValueError, match=words):
            estimator(td)

    class Shorter(ReturnEstimator):
        def _returns(self, view):
            return super()._returns(view)[:, 1:]

    with pytest.raises(
        ValueError, match=r"Shorter\._returns must return the shape of the rewards, \[4, 12\], got \[4, 11\]"
    ):
        Shorter(gamma=0.9)(td)


@each(masked=[False, True], rows=[1, 2, 3])
def test_a_control_variate_in_parts_is_that_of_all_rows(monkeypatch, masked, rows):
    g, features = torch.randn(7, 30, dtype=torch.float64), torch.randn(7, 30, 4)
    mask = torch.rand(7, 30) < 0.7 if masked else None
    g.requires_grad_()
    found = []
    for numbers in (2**22, rows * 30 * 4):
        monkeypatch.setattr(control_variate_module, "_MOST_NUMBERS", numbers)
        advantages = control_variate(g, features, mask=mask, folds=3)
        found.append((advantages, torch.autograd.grad(advantages.square().sum(), g)[0]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@each(hindsight=[False, True])
def test_flops_of_a_fit_on_states_are_those_of_its_matrix_products(hindsight):
    shape, width, keys = (6, 2000), 12, ("encoder_state", ("next", "early_log_prob"))
    rollout = TensorDict({"encoder_state": torch.randn(*shape, width)}, shape)
    rollout["next"] = {key: torch.randn(*shape, 1) for key in ("reward", "early_log_prob")}
    rollout["next", "done"] = torch.zeros(*shape, 1, dtype=torch.bool)
    estimator = make_estimator("control_variate", gamma=0.9, regressor_keys=keys, hindsight=hindsight)
    with FlopCounterMode(display=False) as counter:
        estimator(rollout)
    assert counter.get_total_flops() == pytest.approx(estimator.fit_flops(width) * 12_000, rel=0.01)
    assert make_estimator("control_variate", gamma=0.9).fit_flops(width) == 0


def test_refusals():
    def returned(**options):
        return lambda: make_estimator("discounted_return", gamma=0.9, **options)

    td, wide = draw_rollout(), draw_rollout()
    wide["next", "reward"] = torch.zeros(*SHAPE, 2)
    refused(
        (returned(baseline="leave_one"), ValueError, "got 'leave_one'; did you mean 'leave_one_out'"),
        (returned(baseline="mean"), ValueError, r"baseline must be one of .* got 'mean'"),
        (returned(baseline=3), TypeError, "baseline must be a name, a function or a module, got 3"),
        (returned(baseline=dict), TypeError, "baseline must be a torch.nn.Module if it is a class, .* got dict"),
        (returned(baseline=partial(Seen, decay=1)), TypeError, "Seen must be made without arguments, .*: .*'decay'"),
        (returned(baseline=partial(Seen(), decay=1)), TypeError, "must be a module itself, not a partial of one"),
        (returned(baseline=Seen(), group_size=2), TypeError, r"only .* by name .* \['group_size'\] with 'Seen'"),
        (returned(baseline="group_mean"), TypeError, r"'group_mean' must fit, got \[\]: missing .*'group_size'"),
        (returned(baseline="batch_mean", mask_kye=None), TypeError, r"\['mask_kye'\]: .*; did you mean 'mask_key'\?"),
        (returned(baseline="batch_mean", threshold=1), TypeError, r"'batch_mean' .*unexpected .* 'threshold'$"),
        (lambda: make_estimator("control_variate", gamma=0.9, baseline=Seen()), ValueError, "must be 'none' .* 'Seen'"),
        (
            lambda: make_estimator("discounted_retrun"),
            ValueError,
            "did you mean 'discounted_return'",
        ),
        (lambda: make_estimator("z_score"), ValueError, "'z_score'; write 'discounted_return' with baseline='z_score'"),
        (lambda: make_estimator("loo"), ValueError, r"name must be one of .* got 'loo'"),
        (lambda: make_estimator("critic_advantage", lmbda=-1), ValueError, r"lmbda must lie in \[0, 1\], got -1"),
        (
            lambda: make_estimator("critic_advantage", lmbda=torch.ones(2)),
            ValueError,
            r"lmbda must be one number, got a tensor of shape \[2\]",
        ),
        (lambda: ReturnEstimator(gamma=1.1), ValueError, r"gamma must lie in \[0, 1\], got 1.1"),
        (
            lambda: returned(baseline="running_mean", num_steps=8)()(td),
            ValueError,
            "num_steps must be the 12 steps of the rollout, got 8",
        ),
        (
            lambda: ReturnEstimator(gamma=0.9)(TensorDict({"a": torch.zeros(2, 3)}, [2, 3])),
            KeyError,
            r"must hold 'next.reward'; it holds \['a'\]",
        ),
        (lambda: make("leave_one_out")(td[:1]), ValueError, "at least 2 of them"),
        (
            lambda: make("critic_advantage")(td.exclude("state_value")),
            KeyError,
            "must hold 'state_value', or the estimator a value_network",
        ),
        (lambda: make("discounted_return")(wide), ValueError, r"shape \[4, 12\] or \[4, 12, 1\], got \[4, 12, 2\]"),
    )

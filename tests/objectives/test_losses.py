"""Losses on real rollouts of a tiny U-Net: values, gradients, masks, keys."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, EncodingBoundaryActor, LearnedBoundaryActor
from tensordict import TensorDict

from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import (
    BoundaryClipPPOLoss,
    BoundaryReinforceLoss,
    EarlyExitLoss,
    EntropyBonus,
    JointLoss,
    LanguageModelLoss,
    RateLoss,
    ZeroCritic,
)
from rltok_rl.objectives.rate_loss import CONTROLLERS, ENDS
from rltok_rl.objectives.reinforce import AVERAGES

from ..each import each, refused
from ..layout import ONE_GRAPH
from .conftest import LEAVE_ONE_OUT, TEXT, make_model, make_rollout


def with_estimator(loss):
    return loss.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")


def reinforce(model=None, **options):
    return BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=model and LearnedBoundaryActor(model), **options)


LOSSES = {
    "language_model": lambda model: LanguageModelLoss(),
    "early_exit": lambda model: EarlyExitLoss(),
    "reinforce": lambda model: reinforce(),
    "reinforce, scored again": reinforce,
    "off-policy": lambda model: reinforce(model, off_policy=True, max_weight=3.0),
    "ppo": lambda model: with_estimator(BoundaryClipPPOLoss(LearnedBoundaryActor(model), entropy_coeff=0.1)),
    "entropy": lambda model: EntropyBonus(),
    "rate": lambda model: RateLoss(0.3),
    "rate, pi": lambda model: RateLoss(0.3, control="pi"),
    "joint": lambda model: JointLoss.paper(target_rate=0.3),
}
NEXT_BYTE = ("language_model", "early_exit")
POLICY = ["reinforce", "reinforce, scored again", "off-policy", "ppo"]
WEIGHTS = "boundary_head.projection.weight"


def given(name, rollout):
    """The rollout that a loss takes: PPO weighs decisions against a policy that stands still."""
    return rollout.detach() if name == "ppo" else rollout.copy()


def total(out):
    return sum(value for key, value in out.items() if key.startswith("loss_"))


def gradient(model, value):
    slopes = torch.autograd.grad(value, list(model.parameters()), retain_graph=True, materialize_grads=True)
    return dict(zip((n for n, _ in model.named_parameters()), slopes, strict=True))


def assert_same(ours, theirs, **tolerance):
    assert set(ours.keys()) == set(theirs.keys())
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, **tolerance, msg=lambda m, k=key: f"{k}: {m}")


@each(name=LOSSES)
def test_the_rollout_is_unchanged_and_the_keys_are_right(name, model, rollout):
    loss, td = LOSSES[name](model), given(name, rollout)
    keys, values = set(td.keys(True, True)), td.clone()
    out = loss(td)
    assert set(td.keys(True, True)) == keys and (td == values).all()
    assert set(out.keys()) == set(loss.out_keys) and out.batch_size == ()
    assert len(set(loss.in_keys)) == len(loss.in_keys) and loss.functional is False
    assert all(key in td.keys(True) for key in loss.in_keys if key != ("next", "terminated"))
    for key, value in out.items():
        assert value.isfinite().all() and value.requires_grad is key.startswith("loss_"), key
    if name != "joint":
        with pytest.raises(ValueError, match="not_a_key is not an accepted tensordict key"):
            loss.set_keys(not_a_key="x")


@each(name=LOSSES)
def test_padding_does_not_count(name):
    """A rollout with padding, NaN in it, has the losses and gradients of the shorter rollout."""
    model = make_model()
    short = make_rollout(model, num_steps=8, text=TEXT[:9])
    expected = gradient(model, total(LOSSES[name](model).eval()(given(name, short))))

    def padded(values):
        filler = float("nan") if values.is_floating_point() else 0
        return torch.nn.functional.pad(values, [0, 0] * (values.dim() - 2) + [0, 3], value=filler)

    td = TensorDict({k: padded(v) for k, v in short.items(True, True)}, [4, 11], names=[None, "time"])
    td["collector", "mask"] = torch.arange(11).expand(4, 11).unsqueeze(-1) < 8
    if name in POLICY[1:]:  # the policy scores padding too: states must be numbers
        td["encoder_state"] = td["encoder_state"].nan_to_num(0.0)
    out = LOSSES[name](model).eval()(given(name, td))
    assert all(value.isfinite().all() for value in out.values())
    assert_same(gradient(model, total(out)), expected, rtol=1e-4, atol=1e-6)


@each(name=POLICY, average=["free", "all"])
def test_nan_advantages_in_padding_leave_gradients_alone(name, average, model, rollout):
    """Made beforehand, by an estimator that knew no mask: 0 times NaN used to reach the weights."""
    valid = torch.arange(12).expand(4, 12) < 8
    advantages, slopes = torch.randn(4, 12, 1), []
    for filler in (0.0, float("nan")):
        td, loss = given(name, rollout), LOSSES[name](model)
        td["collector", "mask"], td["advantage"] = valid, advantages.masked_fill(~valid.unsqueeze(-1), filler)
        if name != "ppo":
            loss.average = average
        slopes.append(gradient(model, total(loss(td))))
    assert_same(slopes[1], slopes[0], rtol=0, atol=0)
    assert slopes[1][WEIGHTS].abs().max() > 0


@each(name=[n for n in LOSSES if n not in NEXT_BYTE])
def test_forced_decisions_do_not_count(name, model, rollout):
    """Whatever logits, log-probabilities and entropies stand at forced decisions."""
    changed = rollout.copy()
    for key in ("logits", "entropy", "action_log_prob"):
        changed[key] = torch.where(rollout["forced"], 7.0, rollout[key])
    assert_same(LOSSES[name](model)(given(name, changed)), LOSSES[name](model)(given(name, rollout)))


@each(name=[n for n in LOSSES if "rate" not in n and n not in ("joint", "ppo")])
def test_reductions_agree(name, model, rollout):
    def reduced(reduction):
        loss = LOSSES[name](model)
        loss.reduction = reduction
        return total(loss(rollout))

    assert reduced("none").shape == rollout.shape
    torch.testing.assert_close(reduced("none").sum(), reduced("sum"))
    torch.testing.assert_close(reduced("sum") / (48 if name in NEXT_BYTE else 44), reduced("mean"))  # 4 are forced


def test_a_sum_is_of_real_steps_alone(rollout):
    mask, nats = torch.arange(12).expand(4, 12) < 7, -rollout["next", "final_log_prob"].squeeze(-1)
    for reduction, expected in (("none", torch.where(mask, nats, 0.0)), ("sum", nats[mask].sum())):
        loss = LanguageModelLoss(reduction=reduction)
        loss.loss_mask_key = "mask"
        out = loss(rollout.copy().set("mask", mask))["loss_language_model"]
        torch.testing.assert_close(out, expected)


@each(name=[n for n in LOSSES if n != "joint"])
def test_keys_can_be_renamed(name, model, rollout):
    td = given(name, rollout)
    expected, loss, moved = total(LOSSES[name](model)(td)), LOSSES[name](model), td.copy()
    for key in ("action_log_prob", "sample_log_prob", "entropy", "logits", "log_prob", "reward"):
        if key in type(loss.tensor_keys).__dataclass_fields__:
            old = getattr(loss.tensor_keys, key)
            prefix = ("next",) if key in ("log_prob", "reward") else ()
            moved[(*prefix, "deep", f"my_{old}")] = td[(*prefix, old)]
            loss.set_keys(**{key: ("deep", f"my_{old}")})
    torch.testing.assert_close(total(loss(moved.exclude("action_log_prob", "entropy", "logits"))), expected)


@ONE_GRAPH
@each(name=LOSSES)
def test_compiles_in_one_graph(name, model, rollout):
    td = rollout.detach()
    if name != "ppo":
        td["action_log_prob"] = td["action_log_prob"].requires_grad_()
    expected = LOSSES[name](model)(td)
    torch._dynamo.reset()
    assert_same(torch.compile(LOSSES[name](model), fullgraph=True, backend="eager")(td), expected)


def test_values_by_hand(rollout):
    """Each loss as it is written in its docstring."""
    free = ~rollout["forced"]
    final, early = (rollout["next", k].squeeze(-1) for k in ("final_log_prob", "early_log_prob"))
    g = discounted_return(rollout["next", "reward"].squeeze(-1), 0.9)
    advantages, logits = (g - g.mean(0)) * 4 / 3, rollout["logits"][free]
    expected = {
        "loss_language_model": -final.mean(),
        "bits_per_byte": -final.detach().mean() / math.log(2),
        "loss_early_exit": -early.mean(),
        "loss_policy": -(rollout["action_log_prob"] * advantages)[free].mean(),
        "advantage_spread": advantages[free].std(correction=0),
        "entropy": rollout["entropy"].detach()[free].mean(),
        "loss_rate": logits.mean() * (logits.sigmoid().mean() - 0.3).detach(),
        "rate": rollout["action"][free].float().mean(),
        "loss_entropy": -rollout["entropy"][free].mean(),
    }
    out = {}
    for loss in (LanguageModelLoss(), EarlyExitLoss(), EntropyBonus(), reinforce(), RateLoss(0.3)):
        out |= dict(loss(rollout).items())
    assert_same({key: out[key] for key in expected}, expected)


def test_a_joint_loss_is_the_sum_of_its_terms(model, rollout):
    """Each loss reaches the right parts of the model, and one backward pass is the sum of separate ones."""
    encoder = {"embedding", "encoder"}
    policy = encoder | {"encoder_norm", "boundary_head"}
    expected = {
        "loss_language_model": (1.0, encoder | {"token_layers", "decoder", "decoder_norm", "final_head"}),
        "loss_policy": (0.01, policy),
        "loss_rate": (0.01, policy),
        "loss_early_exit": (0.1, encoder | {"encoder_norm", "early_head"}),
    }
    joint = JointLoss.paper(target_rate=0.25)
    out = joint(rollout)
    separate = []
    for (key, (weight, parts)), term in zip(expected.items(), joint.terms.values(), strict=True):
        separate.append(gradient(model, weight * total(term(rollout))))
        reached = {name.split(".")[0] for name, g in gradient(model, out[key]).items() if g.abs().max() > 0}
        assert reached == parts, key
    summed = {name: sum(g[name] for g in separate) for name in separate[0]}
    assert_same(gradient(model, joint.total(out)), summed, rtol=1e-4, atol=1e-7)


def test_ppo_at_ratio_1_is_reinforce(model, rollout):
    """Before the first step of an epoch the two have one gradient, also when the encoder is run again."""
    stored = rollout.detach()
    for actor in (LearnedBoundaryActor(model), EncodingBoundaryActor(model)):
        ppo = with_estimator(BoundaryClipPPOLoss(actor))
        slopes = [
            gradient(model, total(loss(stored))) for loss in (ppo, BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=actor))
        ]
        assert_same(*slopes, rtol=1e-4, atol=1e-7)
    out = ppo(stored)
    assert out["ESS"] == pytest.approx(1.0) and abs(out["kl_approx"]) < 1e-6 and out["clip_fraction"] == 0


@each(clip=[None, 0.05], functional=[False, True], time=["last", "first"])
def test_a_critic_of_some_rows_at_a_time_learns_as_of_all(model, rollout, clip, functional, time):
    """Also where old values are stored, to which a new one is clipped; and nothing is split along time."""
    torch.manual_seed(0)
    critic = BoundaryCritic(model.config)
    torch.nn.init.normal_(critic.module[-1].weight)
    stored = rollout.detach()
    stored["state_value"], stored["next", "state_value"] = torch.randn(2, *stored.shape, 1)
    if time == "first":
        stored = stored.transpose(0, 1).contiguous()
        stored.names = ["time", None]
    found = []
    for rows in (None, 3):
        loss = BoundaryClipPPOLoss(LearnedBoundaryActor(model), critic, clip_value=clip, functional=functional)
        loss.make_value_estimator("critic_advantage", gamma=0.9, lmbda=0.9)
        loss.rows_per_pass = loss._value_estimator.rows_per_pass = rows
        error = loss(stored)["loss_critic"]
        learned = loss.critic_network_params.values(True, True) if functional else critic.parameters()
        found.append((error, *torch.autograd.grad(error, [p for p in learned if p.requires_grad])))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)
    assert any(slope.abs().max() > 0 for slope in found[0][1:])


@each(lengths=["aligned", "restarts"])
def test_scoring_windows_again_trains_the_encoder_as_the_rollout_did(lengths):
    """The same scores as the stored states give, and through the encoder the gradient of the rollout itself."""
    model = make_model()
    options = {} if lengths == "aligned" else {"text": [TEXT[:6], TEXT[:9], TEXT[:13], TEXT[3:40]], "max_steps": 12}
    rollout = make_rollout(model, **options)
    assert (rollout["position"] == 0).sum() == (4 if lengths == "aligned" else 6)
    stored = rollout.detach()
    again, states = EncodingBoundaryActor(model), LearnedBoundaryActor(model)
    scored = again.get_dist(stored).log_prob(stored["action"])
    torch.testing.assert_close(scored, states.get_dist(stored).log_prob(stored["action"]), rtol=1e-5, atol=1e-5)
    free, weights = ~stored["forced"], torch.randn(4, 12)
    slopes = [gradient(model, (x * weights)[free].sum()) for x in (scored, rollout["action_log_prob"])]
    assert_same(*slopes, rtol=1e-3, atol=1e-5)


def test_ppo_with_a_critic(model, rollout):
    stored, critic = rollout.detach(), BoundaryCritic(model.config)
    loss = BoundaryClipPPOLoss(LearnedBoundaryActor(model), critic, critic_coeff=0.5)
    keys = set(stored.keys(True, True))
    loss(stored)  # TorchRL's own default estimator
    assert set(stored.keys(True, True)) == keys
    out = loss.make_value_estimator("critic_advantage", gamma=0.9, lmbda=0.9)(stored)
    assert set(out.keys()) == set(loss.out_keys) and "loss_critic" in out.keys()
    out["loss_critic"].backward()
    assert critic.module[-1].weight.grad.abs().max() > 0
    judged = loss.value_estimator(stored.copy())
    values = critic(judged.copy())["state_value"]
    errors = torch.nn.functional.smooth_l1_loss(values, judged["value_target"], reduction="none")
    torch.testing.assert_close(loss(judged)["loss_critic"].detach(), 0.5 * errors.squeeze(-1)[~stored["forced"]].mean())
    changed = judged.copy()
    changed["value_target"] = torch.where(judged["forced"].unsqueeze(-1), 99.0, judged["value_target"])
    assert torch.equal(loss(changed)["loss_critic"], loss(judged)["loss_critic"]), "forced decisions do not count"
    alone = judged.exclude("state_value")
    assert torch.equal(loss(alone)["loss_critic"], loss(judged)["loss_critic"])
    assert "state_value" not in alone.keys(), "values of this update are not those of the next"


@each(loss=[LanguageModelLoss, EarlyExitLoss], reduction=["mean", "sum", "none"])
def test_bits_per_byte_are_a_mean_whatever_the_reduction(loss, reduction):
    rollout = make_rollout(make_model())
    rollout["collector", "mask"] = torch.rand(4, 12, 1) < 0.7
    loss = loss(reduction=reduction)
    nats = -rollout[loss.in_keys[0]][rollout["collector", "mask"]].detach()
    torch.testing.assert_close(loss(rollout)[loss.out_keys[1]], nats.mean() / math.log(2))


def test_off_policy_weights_have_no_gradient(model, rollout):
    attached, stored = (gradient(model, total(LOSSES["off-policy"](model)(td))) for td in (rollout, rollout.detach()))
    torch.testing.assert_close(attached[WEIGHTS], stored[WEIGHTS])


def test_normalised_advantages_have_no_mean_no_scale_and_no_forced_decisions(model, rollout):
    """Shifted and scaled advantages give the same loss, here off-policy: on-policy it would be 0."""
    stored = rollout.detach()
    stored["action_log_prob"] = stored["action_log_prob"] + 0.3 * torch.randn(4, 12)
    loss = BoundaryClipPPOLoss(LearnedBoundaryActor(model), normalize_advantage=True)
    stored["advantage"] = advantages = torch.randn(4, 12, 1)
    expected = loss(stored)["loss_objective"]
    for changed in (advantages.masked_fill(stored["forced"].unsqueeze(-1), 1e3), 3 * advantages + 5):
        stored["advantage"] = changed
        torch.testing.assert_close(loss(stored)["loss_objective"], expected)
    stored["advantage"] = torch.full((4, 12, 1), 2.0)
    assert loss(stored)["loss_objective"] == 0  # equal ones have no scale


def test_coefficients_are_scheduled_in_place(rollout):
    joint = JointLoss.paper(target_rate=0.25)
    before, buffer = joint(rollout)["loss_policy"], joint.coeff_policy
    joint.coeff_policy = 0.05
    assert joint.coeff_policy is buffer
    torch.testing.assert_close(joint(rollout)["loss_policy"], before * 5)
    assert joint.state_dict()["coeff_policy"] == pytest.approx(0.05)
    joint.coeff_policy = 0  # a whole number too
    assert joint(rollout)["loss_policy"] == 0 and joint.coeff_policy.is_floating_point()
    with pytest.raises(AttributeError, match="coeff_polcy must be one of"):
        joint.coeff_polcy = 0.05
    with pytest.raises(ValueError, match="coeff_policy must be finite, got nan"):
        joint.coeff_policy = math.nan
    assert joint.coeff_policy == 0


class Scored:
    """An actor that finds decisions as likely, and as open, as entries say."""

    in_keys = ["new_log_prob", "new_entropy"]

    def get_dist(self, tensordict):
        self.stored = tensordict
        return self

    def log_prob(self, action):
        return self.stored["new_log_prob"]

    def entropy(self):
        return self.stored["new_entropy"]


class Columns(Scored):
    """The same with a last dimension of one."""

    def log_prob(self, action):
        return super().log_prob(action).unsqueeze(-1)

    def entropy(self):
        return super().entropy().unsqueeze(-1)


@each(masked=[False, True])
def test_an_actor_may_score_decisions_as_columns(masked):
    after = {"reward": torch.randn(4, 6, 1), "done": torch.zeros(4, 6, 1, dtype=torch.bool)}
    td = decisions(masked, done=after["done"], next=TensorDict(after, [4, 6]))
    for name in ("off-policy", "V-trace", "PPO"):
        td = td.exclude("advantage") if name == "V-trace" else td.set("advantage", torch.arange(24.0).view(4, 6))
        found = []
        for actor in (Scored(), Columns()):
            if name == "PPO":
                loss = BoundaryClipPPOLoss(actor, entropy_coeff=1)  # a whole number
            elif name == "V-trace":
                loss = BoundaryReinforceLoss("vtrace_return", gamma=0.9, actor=actor)
            else:
                loss = BoundaryReinforceLoss(actor=actor, off_policy=True)
            found.append(loss(td))
        assert_same(*found, rtol=0, atol=0)


def decisions(masked: bool, **entries):
    """Four rows of six decisions; forced ones lie anywhere. Masked, the last row is padding as a whole."""
    names = ("action_log_prob", "new_log_prob", "entropy", "new_entropy", "advantage", "logits")
    td = TensorDict({**{name: torch.randn(4, 6) for name in names}, **entries}, [4, 6])
    td["action_log_prob"].requires_grad_()
    td["action"], td["forced"] = torch.rand(4, 6) < 0.5, torch.rand(4, 6) < 0.3
    if masked:
        td["collector", "mask"] = torch.arange(6) < torch.tensor([6, 4, 2, 0])[:, None]
    return td


@each(
    average=["free", "all", "window"],
    reduction=["mean", "sum", "none"],
    scored=[None, {}, {"off_policy": True}, {"off_policy": True, "max_weight": 0.8}],
    masked=[False, True],
    forced=[False, True],
)
def test_reinforce_is_its_definition(average, reduction, scored, masked, forced):
    td = decisions(masked)
    real = td["collector", "mask"] if masked else torch.ones(4, 6, dtype=torch.bool)
    free = real & ~td["forced"] if forced else real
    td = td if forced else td.exclude("forced")
    new, old, advantages = td["new_log_prob"], td["action_log_prob"], td["advantage"]
    weights = (new - old).detach().exp().clamp(max=(scored or {}).get("max_weight", math.inf))
    if not scored:
        weights = torch.ones(4, 6)
    terms = -(weights * (old if scored is None else new) * advantages).where(free, 0.0)
    rows = int(real.any(-1).sum())
    count = {"free": free.sum(), "all": real.sum(), "window": real.sum() + rows}[average]
    expected = {"mean": terms.sum() / count, "sum": terms.sum(), "none": terms}[reduction]
    options = {} if scored is None else {"actor": Scored(), **scored}
    out = BoundaryReinforceLoss(average=average, reduction=reduction, **options)(td)
    torch.testing.assert_close(out["loss_policy"], expected)
    kept, ratios = advantages[free], (new - old).detach()[free].exp()
    metrics = {"entropy": td["entropy" if scored is None else "new_entropy"][free].mean()}
    metrics |= {"advantage_mean": kept.mean(), "advantage_spread": kept.std(correction=0)}
    if scored is not None:
        metrics["ESS"] = ratios.sum() ** 2 / (len(ratios) * ratios.square().sum())
        metrics["kl_approx"] = (ratios - 1 - ratios.log()).mean()
    assert_same({key: out[key] for key in metrics}, metrics)
    assert not any(out[key].requires_grad for key in metrics)


@each(
    control=[*RATE_CONTROLS, *CONTROLLERS],
    ends=["excluded", "window"],
    rows_per_mean=[None, 2],
    masked=[False, True],
    forced=[False, True],
    rates=[False, True],
)
def test_a_rate_loss_is_its_control_of_the_counted_decisions(control, ends, rows_per_mean, masked, forced, rates):
    """Every row is written out with the ends that it has; then all rows of a group are one string."""
    if (rates and control != "logit_pressure") or (rows_per_mean and control in CONTROLLERS):
        return
    td = decisions(masked)
    td["logits"].requires_grad_()
    if rates:
        td["target_rate"] = torch.tensor([0.2, 0.6, 0.2, 0.4])[:, None, None].expand(4, 6, 1)
    td = td if forced else td.exclude("forced")
    real = td["collector", "mask"] if masked else torch.ones(4, 6, dtype=torch.bool)
    given = td["forced"] if forced else torch.zeros(4, 6, dtype=torch.bool)
    counted = [[], [], [], []]  # (logit, boundary, target) of every row
    for row in range(4):
        steps = [t for t in range(6) if real[row, t] and not (ends == "excluded" and given[row, t])]
        target = float(td["target_rate"][row, 0]) if rates else 0.3
        for t in steps:
            whole = ends != "excluded" and bool(given[row, t])
            logit = torch.tensor(100.0) if whole else td["logits"][row, t]
            counted[row].append((logit, torch.tensor(whole) | td["action"][row, t], target))
        if ends == "window" and real[row].any():
            counted[row].append((torch.tensor(100.0), torch.tensor(True), target))
    losses, nothing = [], (torch.tensor(0.0), torch.tensor(False), 0.3)
    for group in ([0, 1], [2, 3]) if rows_per_mean else ([0, 1, 2, 3],):
        width = max(len(counted[row]) for row in group)
        table = [counted[row] + [nothing] * (width - len(counted[row])) for row in group]
        logits, drawn = (torch.stack([torch.stack([step[k] for step in row]) for row in table]) for k in (0, 1))
        targets = torch.tensor([[step[2] for step in row] for row in table]) if rates else 0.3
        mask = torch.arange(width) < torch.tensor([len(counted[row]) for row in group])[:, None]
        if control in RATE_CONTROLS:
            losses.append(RATE_CONTROLS[control](logits, drawn, targets, mask=mask))
        else:
            error = logits.detach()[mask].sigmoid().mean() - 0.3
            push = 2.0 * error + 0.5 * error.clamp(-0.02, 0.02)
            losses.append(push * (logits if control == "pi" else logits.sigmoid())[mask].mean())
    gains = {"proportional": 2.0, "integral": 0.5} if control in CONTROLLERS else {}
    loss = RateLoss(0.3, control=control, ends=ends, rows_per_mean=rows_per_mean, **gains)
    out, free = loss(td), real & ~given
    torch.testing.assert_close(out["loss_rate"], torch.stack(losses).mean())
    torch.testing.assert_close(out["rate"], td["action"][free].float().mean())
    torch.testing.assert_close(out["mean_prob"], td["logits"].detach()[free].sigmoid().mean())
    torch.testing.assert_close(out["push"], push if control in CONTROLLERS else torch.tensor(0.0))
    slopes = (torch.autograd.grad(x, td["logits"])[0] for x in (out["loss_rate"], torch.stack(losses).mean()))
    torch.testing.assert_close(*slopes)


@each(
    clip=[0.2, (0.1, 0.4)],
    normalize_advantage=[False, True],
    entropy_coeff=[0.0, 0.3],
    reduction=["mean", "sum", "none"],
    masked=[False, True],
    forced=[False, True],
)
def test_ppo_is_its_definition(clip, normalize_advantage, entropy_coeff, reduction, masked, forced):
    """Of both signs of advantages, on both sides of the clip; gradients reach the actor alone."""
    td = decisions(masked)
    real = td["collector", "mask"] if masked else torch.ones(4, 6, dtype=torch.bool)
    free = real & ~td["forced"] if forced else real
    td = td if forced else td.exclude("forced")
    new, old = td["new_log_prob"].requires_grad_(), td["action_log_prob"]
    td["advantage"].requires_grad_(), td["new_entropy"].requires_grad_()
    kept, low, high = td["advantage"].detach()[free], *(clip if isinstance(clip, tuple) else (clip, clip))
    ratios, advantages = (new - old.detach()).exp(), td["advantage"].detach()
    if normalize_advantage:
        advantages = (advantages - kept.mean()) / kept.std(correction=0)
    terms = -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)
    entropy = -entropy_coeff * td["new_entropy"]
    count = {"mean": free.sum(), "sum": 1, "none": 1}[reduction]
    expected = {"loss_objective": terms.where(free, 0.0) / count}
    if entropy_coeff:
        expected["loss_entropy"] = entropy.where(free, 0.0) / count
    if reduction != "none":
        expected = {key: value.sum() for key, value in expected.items()}
    options = {"clip_epsilon": clip, "normalize_advantage": normalize_advantage, "entropy_coeff": entropy_coeff}
    out = BoundaryClipPPOLoss(Scored(), reduction=reduction, **options)(td)
    assert_same({key: out[key] for key in expected}, expected)
    inputs = [new, td["new_entropy"]]
    ours, theirs = (
        torch.autograd.grad(sum(x[key].sum() for key in expected), inputs, materialize_grads=True)
        for x in (out, expected)
    )
    torch.testing.assert_close(ours, theirs)
    inputs = [old, td["advantage"]]
    out = BoundaryClipPPOLoss(Scored(), **options)(td)
    slopes = torch.autograd.grad(total(out), inputs, materialize_grads=True)
    assert not any(slope.any() for slope in slopes)
    outside, r = (ratios < 1 - low) | (ratios > 1 + high), ratios.detach()[free]
    metrics = {
        "entropy": td["new_entropy"].detach()[free].mean(),
        "clip_fraction": outside[free].float().mean(),
        "ESS": r.sum() ** 2 / (len(r) * r.square().sum()),
        "kl_approx": (r - 1 - r.log()).mean(),
        "advantage_mean": kept.mean(),
        "advantage_spread": kept.std(correction=0),
    }
    assert_same({key: out[key] for key in metrics}, metrics)


@each(masked=[False, True], forced=[False, True])
def test_losses_are_on_the_device_of_the_rollout(masked, forced):
    """A tensor that a loss makes on the CPU would be a result there, or would not fit in."""
    td = decisions(masked).to("meta")
    td = td if forced else td.exclude("forced")
    losses: list[torch.nn.Module] = [BoundaryClipPPOLoss(Scored(), entropy_coeff=0.1, normalize_advantage=True)]
    for average, actor in product(AVERAGES, (None, Scored())):
        losses.append(BoundaryReinforceLoss(average=average, actor=actor, off_policy=actor is not None))
    losses += [RateLoss(0.3, control=control, ends=ends) for control in (*RATE_CONTROLS, *CONTROLLERS) for ends in ENDS]
    losses += [JointLoss({"bonus": EntropyBonus(), "rate": RateLoss(0.3, rows_per_mean=2)}, {"bonus": 0.1})]
    for loss in losses:
        assert {value.device.type for value in loss.to("meta")(td).values()} == {"meta"}


# Where the authors' released code and the paper differ (the loss's part of it).


def test_released_losses_are_mixed_and_means_span_a_micro_batch_and_all_positions(rollout):
    """0.9 late + 0.1 early; advantages of two rows of four; forced decisions count 0 in a mean over all."""
    paper = JointLoss.paper(target_rate=0.3)(rollout)
    released = JointLoss.released(target_rate=0.3, rows_per_mean=2, gamma=0.9)(rollout)
    torch.testing.assert_close(released["loss_language_model"], 0.9 * paper["loss_language_model"])
    torch.testing.assert_close(released["loss_early_exit"], paper["loss_early_exit"])
    g = discounted_return(rollout["next", "reward"].squeeze(-1), 0.9)
    advantages = torch.cat([x - x.mean(0) for x in g.split(2)])
    expected = -0.01 * (rollout["action_log_prob"] * advantages).sum() / 52  # twelve decisions and the last byte
    torch.testing.assert_close(released["loss_policy"], expected)
    free, every = (reinforce(average=average)(rollout)["loss_policy"] for average in ("free", "all"))
    torch.testing.assert_close(every, free * 11 / 12)  # one forced decision in twelve


def test_exact_released_loss_has_means_of_its_own_per_micro_batch(rollout):
    """Two rows a micro-batch: the average of both micro-batches' losses, every coefficient included."""
    whole, parts = (
        [JointLoss.released(target_rate=0.3, rows_per_mean=2)(part) for part in rollout.split(rows)] for rows in (4, 2)
    )
    for name in ("loss_language_model", "loss_early_exit", "loss_policy", "loss_rate"):
        torch.testing.assert_close(whole[0][name], sum(part[name] for part in parts) / 2)


def test_refusals(model, rollout):
    actor, language, stored = LearnedBoundaryActor(model), LanguageModelLoss, rollout.detach()
    returned = partial(BoundaryReinforceLoss, "discounted_return")
    again = EncodingBoundaryActor(model)
    refused(
        (lambda: reinforce()(stored), ValueError, "'action_log_prob' carries no gradient, .* roll out with gradients"),
        (lambda: BoundaryReinforceLoss()(rollout), KeyError, "must hold 'advantage', or the loss an estimator"),
        (lambda: BoundaryClipPPOLoss(actor)(stored), KeyError, "must hold 'advantage', or the loss an estimator"),
        (lambda: reinforce(off_policy=True), ValueError, "off_policy needs an actor"),
        (lambda: reinforce(max_weight=2.0), ValueError, "max_weight belongs to off_policy=True"),
        (lambda: reinforce(average="rows"), ValueError, r"average must be one of \['free', .* got 'rows'"),
        (lambda: RateLoss(0.3, ends="both"), ValueError, r"ends must be one of \['excluded', .* got 'both'"),
        (lambda: RateLoss(0.3, control="pi", rows_per_mean=2), ValueError, "must be None for 'pi', which"),
        (lambda: RateLoss(0.3, rows_per_mean=3)(stored), ValueError, r"divide the rows \[B, T\], got 3 and \[4, 12\]"),
        (lambda: reinforce(rows_per_mean=3)(rollout), ValueError, r"divide the rows \[B, T\], got 3 and \[4, 12\]"),
        (lambda: returned(baseline="group_mean", group_size=2, rows_per_mean=2), ValueError, "has its own groups"),
        (lambda: returned(baseline="running_mean", num_steps=12, rows_per_mean=2), ValueError, "a memory of all rows"),
        (lambda: language(reduction="median"), ValueError, r"reduction must be one of .* got 'median'"),
        (lambda: BoundaryReinforceLoss(gamma=0.9), ValueError, r"options \['gamma'\] belong to an estimator given by"),
        (lambda: JointLoss({}), ValueError, r"terms of the loss, \[\], got \[\]"),
        (lambda: JointLoss({"a": language()}, {"b": 1.0}), ValueError, r"terms of the loss, \['a'\], got \['b'\]"),
        (lambda: JointLoss({"a": language()}, {"a": math.nan}), ValueError, r"finite numbers, got \{'a': nan\}"),
        (lambda: JointLoss({"a": language()}, {"a": -math.inf}), ValueError, r"finite numbers, got \{'a': -inf\}"),
        (lambda: JointLoss({"a": language(), "b": language()}), ValueError, "two terms write .*; the second is 'b'"),
        (
            lambda: JointLoss({"bonus": EntropyBonus(), "ppo": BoundaryClipPPOLoss(actor)}),
            ValueError,
            "two terms write 'loss_entropy'; the second is 'ppo'",
        ),
        (lambda: JointLoss({"a b": language()}), ValueError, r"names that are identifiers, got \['a b'\]"),
        (lambda: language()(rollout.exclude("next")), KeyError, "must hold 'next.final_log_prob'; it holds"),
        (lambda: again.get_dist(stored[:, 3:]), ValueError, "first byte of a text, got position 3 in row 0"),
        (lambda: again.get_dist(stored[:, ::2]), ValueError, "in order, got position 2 after 0 in row 0"),
        (lambda: again(stored[:, 0]), RuntimeError, "reads whole windows"),
    )
    with torch.no_grad():
        reinforce()(stored)  # metrics need no gradient
    assert ZeroCritic()(stored)["state_value"].shape == (4, 12, 1)

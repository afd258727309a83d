"""Losses on real rollouts of a tiny U-Net: values, gradients, masks, keys."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, EncodingBoundaryActor, LearnedBoundaryActor
from tensordict import TensorDict

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

from ..layout import ONE_GRAPH
from .conftest import LEAVE_ONE_OUT, TEXT, make_model, make_rollout

LOSSES = {
    "language_model": lambda model: LanguageModelLoss(),
    "early_exit": lambda model: EarlyExitLoss(),
    "reinforce": lambda model: BoundaryReinforceLoss(**LEAVE_ONE_OUT),
    "reinforce, scored again": lambda model: BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=LearnedBoundaryActor(model)),
    "off-policy": lambda model: BoundaryReinforceLoss(
        "discounted_return",
        gamma=0.9,
        baseline="leave_one_out",
        actor=LearnedBoundaryActor(model),
        off_policy=True,
        max_weight=3.0,
    ),
    "ppo": lambda model: with_estimator(BoundaryClipPPOLoss(LearnedBoundaryActor(model), entropy_coeff=0.1)),
    "entropy": lambda model: EntropyBonus(),
    "rate": lambda model: RateLoss(0.3),
    "rate, pi": lambda model: RateLoss(0.3, control="pi"),
    "joint": lambda model: JointLoss.paper(target_rate=0.3),
}
every = pytest.mark.parametrize("name", list(LOSSES))


def with_estimator(loss):
    loss.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")
    return loss


def total(out):
    return sum(value for key, value in out.items() if key.startswith("loss_"))


def gradient(model, value):
    found = torch.autograd.grad(value, list(model.parameters()), retain_graph=True, materialize_grads=True)
    return dict(zip((n for n, _ in model.named_parameters()), found, strict=True))


def reached(model, value):
    return {name.split(".")[0] for name, g in gradient(model, value).items() if g.abs().max() > 0}


def loo(rollout, gamma=0.9):
    g = discounted_return(rollout["next", "reward"].squeeze(-1), gamma)
    return (g - g.mean(0)) * len(g) / (len(g) - 1)


@every
def test_the_rollout_is_left_alone(name, model, rollout):
    loss = LOSSES[name](model)
    given = rollout.detach() if name == "ppo" else rollout
    keys, values = set(given.keys(True, True)), given.clone()
    out = loss(given)
    assert set(given.keys(True, True)) == keys
    assert (given == values).all()
    assert out.batch_size == () and all(x.isfinite().all() for x in out.values())
    for key, value in out.items():
        assert value.requires_grad is key.startswith("loss_"), key


@every
def test_says_what_it_writes(name, model, rollout):
    loss = LOSSES[name](model)
    out = loss(rollout.detach() if name == "ppo" else rollout)
    assert set(out.keys()) == set(loss.out_keys)
    assert all(key in rollout.keys(True) for key in loss.in_keys if key != ("next", "terminated"))


@every
def test_steps_that_are_not_real_do_not_count(name):
    """A rollout with padding, NaN in it, has the losses and gradients of the shorter rollout."""
    model = make_model()
    short = make_rollout(model, num_steps=8, text=TEXT[:9])
    loss = LOSSES[name](model).eval()
    expected = gradient(model, total(loss(short.detach() if name == "ppo" else short)))

    def pad(values):
        width = [0, 0] * (values.dim() - 2) + [0, 3]
        filler = float("nan") if values.is_floating_point() else 0
        return torch.nn.functional.pad(values, width, value=filler)

    padded = TensorDict({k: pad(v) for k, v in short.items(True, True)}, [4, 11], names=[None, "time"])
    valid = torch.zeros(4, 11, 1, dtype=torch.bool)
    valid[:, :8] = True
    padded["collector", "mask"] = valid
    if "scored" in name or name in ("off-policy", "ppo"):  # the policy is asked there too: states must be numbers
        padded["encoder_state"] = padded["encoder_state"].nan_to_num(0.0)
    out = LOSSES[name](model).eval()(padded.detach() if name == "ppo" else padded)
    found = gradient(model, total(out))
    assert all(value.isfinite().all() for value in out.values())
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", [n for n in LOSSES if "reinforce" in n or n in ("off-policy", "ppo")])
@pytest.mark.parametrize("average", ["free", "all"])
def test_advantages_that_are_no_numbers_in_the_padding_leave_gradients_alone(name, average, model, rollout):
    """Made beforehand, by an estimator that knew no mask: 0 times NaN used to reach the weights."""
    valid = torch.arange(12).expand(4, 12) < 8
    rollout["collector", "mask"] = valid
    found = []
    for filler in (0.0, float("nan")):
        given = rollout.detach() if name == "ppo" else rollout.copy()
        torch.manual_seed(3)
        given["advantage"] = torch.randn(4, 12, 1).masked_fill(~valid.unsqueeze(-1), filler)
        loss = LOSSES[name](model)
        if name != "ppo":
            loss.average = average
        found.append(gradient(model, total(loss(given))))
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=0, atol=0, msg=lambda m, k=key: f"{k}: {m}")
    assert found[1]["boundary_head.projection.weight"].abs().max() > 0


@every
def test_forced_decisions_have_no_part(name, model, rollout):
    """Whatever logits, log-probabilities and entropies stand at forced decisions."""
    if name in ("language_model", "early_exit"):
        return
    changed = rollout.copy()
    forced = rollout["forced"]
    for key in ("logits", "entropy", "action_log_prob"):
        changed[key] = torch.where(forced, 7.0, rollout[key])
    for one in (rollout, changed):
        one["recent"] = rollout["recent"].float()
    first, second = (LOSSES[name](model)(x.detach() if name == "ppo" else x) for x in (rollout, changed))
    for key in first.keys():
        torch.testing.assert_close(first[key], second[key], msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", [n for n in LOSSES if "rate" not in n and n not in ("joint", "ppo")])
def test_reductions_agree(name, model, rollout):
    def reduced(reduction):
        loss = LOSSES[name](model)
        loss.reduction = reduction
        return total(loss(rollout))

    each = reduced("none")
    assert each.shape == rollout.shape
    torch.testing.assert_close(each.sum(), reduced("sum"))
    counted = 48 if name in ("language_model", "early_exit") else 44  # 4 decisions of 48 are forced
    torch.testing.assert_close(reduced("sum") / counted, reduced("mean"))


@every
def test_keys_can_be_renamed(name, model, rollout):
    loss = LOSSES[name](model)
    given = rollout.detach() if name == "ppo" else rollout
    expected = total(loss(given))
    terms = list(LOSSES[name](model).terms.values()) if name == "joint" else [LOSSES[name](model)]
    moved = given.copy()
    results = 0.0
    for term in terms:
        accepted = type(term.tensor_keys).__dataclass_fields__
        names = {}
        for key in ("action_log_prob", "sample_log_prob", "entropy", "logits", "log_prob", "reward"):
            if key not in accepted:
                continue
            old = getattr(term.tensor_keys, key)
            under_next = key in ("log_prob", "reward")
            new = ("deep", f"my_{old}")
            source = ("next", old) if under_next else old
            moved[("next", *new) if under_next else new] = given[source]
            names[key] = new
        term.set_keys(**names)
        results = results + total(term(moved.exclude("action_log_prob", "entropy", "logits")))
    if name == "joint":
        expected = sum(total(term(given)) for term in LOSSES[name](model).terms.values())
    torch.testing.assert_close(results, expected)


@every
def test_unknown_keys_are_refused(name, model):
    if name == "joint":
        return
    with pytest.raises(ValueError, match="not_a_key is not an accepted tensordict key"):
        LOSSES[name](model).set_keys(not_a_key="x")


@ONE_GRAPH
@every
def test_compiles_in_one_graph(name, model, rollout):
    given = rollout.detach()
    given["action_log_prob"] = given["action_log_prob"].requires_grad_()
    if name == "ppo":
        given = rollout.detach()
    loss = LOSSES[name](model)
    expected = loss(given)
    torch._dynamo.reset()
    out = torch.compile(LOSSES[name](model), fullgraph=True, backend="eager")(given)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value, msg=lambda m, k=key: f"{k}: {m}")


def test_values_by_hand(model, rollout):
    """Each loss as it is written in its docstring."""
    free = ~rollout["forced"]
    final, early = (rollout["next", k].squeeze(-1) for k in ("final_log_prob", "early_log_prob"))
    out = LanguageModelLoss()(rollout)
    torch.testing.assert_close(out["loss_language_model"], -final.mean())
    torch.testing.assert_close(out["bits_per_byte"], -final.detach().mean() / math.log(2))
    torch.testing.assert_close(EarlyExitLoss()(rollout)["loss_early_exit"], -early.mean())
    out = BoundaryReinforceLoss(**LEAVE_ONE_OUT)(rollout)
    advantages = loo(rollout)
    torch.testing.assert_close(out["loss_policy"], -(rollout["action_log_prob"] * advantages)[free].mean())
    torch.testing.assert_close(out["advantage_spread"], advantages[free].std(correction=0))
    torch.testing.assert_close(out["entropy"], rollout["entropy"].detach()[free].mean())
    out = RateLoss(0.3)(rollout)
    logits = rollout["logits"][free]
    torch.testing.assert_close(out["loss_rate"], logits.mean() * (logits.sigmoid().mean() - 0.3).detach())
    torch.testing.assert_close(out["rate"], rollout["action"][free].float().mean())
    torch.testing.assert_close(EntropyBonus()(rollout)["loss_entropy"], -rollout["entropy"][free].mean())


def test_each_loss_reaches_what_it_should(model, rollout):
    encoder = {"embedding", "encoder"}
    policy = encoder | {"encoder_norm", "boundary_head"}
    expected = {
        "loss_language_model": encoder | {"token_layers", "decoder", "decoder_norm", "final_head"},
        "loss_early_exit": encoder | {"encoder_norm", "early_head"},
        "loss_policy": policy,
        "loss_rate": policy,
    }
    out = JointLoss.paper(target_rate=0.25)(rollout)
    assert {key: reached(model, out[key]) for key in expected} == expected


def test_one_backward_is_the_sum_of_separate_ones(model, rollout):
    joint = JointLoss.paper(target_rate=0.25)
    out = joint(rollout)
    together = gradient(model, joint.total(out))
    weights = {"loss_language_model": 1.0, "loss_policy": 0.01, "loss_rate": 0.01, "loss_early_exit": 0.1}
    apart = [
        gradient(model, weights[key] * total(term(rollout)))
        for key, term in zip(
            ("loss_language_model", "loss_policy", "loss_rate", "loss_early_exit"), joint.terms.values(), strict=True
        )
    ]
    for name, value in together.items():
        torch.testing.assert_close(value, sum(g[name] for g in apart), rtol=1e-4, atol=1e-7)


def test_ppo_at_ratio_1_is_reinforce(model, rollout):
    """Before the first step of an epoch the two have one gradient, also when the encoder is run again."""
    for actor in (LearnedBoundaryActor(model), EncodingBoundaryActor(model)):
        ppo = with_estimator(BoundaryClipPPOLoss(actor))
        reinforce = BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=actor)
        stored = rollout.detach()
        found, expected = (gradient(model, total(loss(stored))) for loss in (ppo, reinforce))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)
    out = ppo(stored)
    assert out["ESS"] == pytest.approx(1.0) and abs(out["kl_approx"]) < 1e-6 and out["clip_fraction"] == 0


@pytest.mark.parametrize("lengths", ["aligned", "restarts"])
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
    first = gradient(model, (rollout["action_log_prob"] * weights)[free].sum())
    second = gradient(model, (scored * weights)[free].sum())
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_scoring_windows_again_refuses_what_it_cannot_do(model, rollout):
    actor = EncodingBoundaryActor(model)
    with pytest.raises(ValueError, match="windows must begin with the first byte of a text, got position 3 in row 0"):
        actor.get_dist(rollout[:, 3:])
    with pytest.raises(RuntimeError, match="reads whole windows"):
        actor(rollout[:, 0])


def test_ppo_figures_are_of_free_decisions_alone(model, rollout):
    """Log-ratios are known: the stored log-probabilities are off by known amounts."""
    stored = rollout.detach()
    free = ~stored["forced"]
    shift = torch.zeros(4, 12)
    shift[:, 5] = 1.0
    stored["action_log_prob"] = torch.where(free, stored["action_log_prob"] - shift, -50.0)
    out = with_estimator(BoundaryClipPPOLoss(LearnedBoundaryActor(model), clip_epsilon=(0.1, 0.3)))(stored)
    ratios = shift[free].exp()
    torch.testing.assert_close(out["clip_fraction"], (ratios > 1.3).float().mean())
    torch.testing.assert_close(out["ESS"], ratios.sum() ** 2 / (44 * ratios.square().sum()))
    torch.testing.assert_close(out["kl_approx"], (ratios - 1 - shift[free]).mean(), rtol=1e-4, atol=1e-6)


def test_ppo_with_a_critic(model, rollout):
    """TorchRL's own default estimator and critic loss, when a critic is given."""
    stored = rollout.detach()
    critic = BoundaryCritic(model.config)
    loss = BoundaryClipPPOLoss(LearnedBoundaryActor(model), critic, critic_coeff=0.5)
    loss.make_value_estimator("critic_advantage", gamma=0.9, lmbda=0.9)
    out = loss(stored)
    assert set(out.keys()) == set(loss.out_keys) and "loss_critic" in out.keys()
    out["loss_critic"].backward()
    assert critic.module[-1].weight.grad.abs().max() > 0


def test_off_policy_weights_are_cut(model, rollout):
    stored = rollout.detach()
    stored["action_log_prob"] = stored["action_log_prob"] - 2.0  # everything is e^2 times likelier now
    actor = LearnedBoundaryActor(model)
    plain, free_, cut = (
        gradient(
            model,
            total(BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=actor, **options)(stored)),
        )
        for options in ({}, {"off_policy": True}, {"off_policy": True, "max_weight": 2.0})
    )
    name = "boundary_head.projection.weight"
    torch.testing.assert_close(free_[name], plain[name] * math.e**2, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(cut[name], plain[name] * 2, rtol=1e-4, atol=1e-6)


def test_normalised_advantages_ignore_forced_decisions(model, rollout):
    stored = rollout.detach()
    loss = BoundaryClipPPOLoss(LearnedBoundaryActor(model), normalize_advantage=True)
    stored["advantage"] = torch.randn(4, 12, 1)
    expected = loss(stored)["loss_objective"]
    stored["advantage"][stored["forced"]] = 1e3
    torch.testing.assert_close(loss(stored)["loss_objective"], expected)


def test_normalised_advantages_have_no_mean_and_no_scale(model, rollout):
    """Advantages that are shifted and scaled give the same loss, here off-policy: on-policy it would be 0."""
    stored = rollout.detach()
    stored["action_log_prob"] = stored["action_log_prob"] + 0.3 * torch.randn(4, 12)
    loss = BoundaryClipPPOLoss(LearnedBoundaryActor(model), normalize_advantage=True)
    stored["advantage"] = torch.randn(4, 12, 1)
    expected = loss(stored)["loss_objective"]
    stored["advantage"] = 3 * stored["advantage"] + 5
    torch.testing.assert_close(loss(stored)["loss_objective"], expected)


def test_coefficients_are_scheduled_in_place(rollout):
    joint = JointLoss.paper(target_rate=0.25)
    before = joint(rollout)["loss_policy"]
    joint.coeff_policy = 0.05
    torch.testing.assert_close(joint(rollout)["loss_policy"], before * 5)
    assert joint.state_dict()["coeff_policy"] == pytest.approx(0.05)
    with pytest.raises(AttributeError, match="coeff_polcy must be one of"):
        joint.coeff_polcy = 0.05


# Where the authors' released code and the paper differ (the loss's part of it).


def test_released_mix_of_the_two_losses(rollout):
    """0.9 late + 0.1 early, instead of late + 0.1 early."""
    paper, released = (
        JointLoss.paper(target_rate=0.3)(rollout),
        JointLoss.released(target_rate=0.3, rows_per_mean=4)(rollout),
    )
    torch.testing.assert_close(released["loss_language_model"], 0.9 * paper["loss_language_model"])
    torch.testing.assert_close(released["loss_early_exit"], paper["loss_early_exit"])


def test_released_policy_mean_is_over_all_positions(rollout):
    """One forced decision in twelve: the released mean is 11/12 of the mean over free decisions."""
    options = {"gamma": 0.9, "baseline": "batch_mean"}
    free, every_ = (BoundaryReinforceLoss("discounted_return", **options, average=a)(rollout) for a in ("free", "all"))
    torch.testing.assert_close(every_["loss_policy"], free["loss_policy"] * 11 / 12)


@pytest.mark.parametrize("scored", [False, True], ids=["rollout", "actor"])
def test_released_policy_ends_are_forced(scored, model, rollout):
    """The last decision of a row was not the policy's there: it counts 0 in a mean that it is part of."""
    options = {"actor": LearnedBoundaryActor(model)} if scored else {}
    advantages = torch.randn(4, 12, 1)
    rollout["advantage"] = advantages
    middle = (rollout["action_log_prob"] * advantages.squeeze(-1))[:, 1:-1]
    loss = BoundaryReinforceLoss(average="released", **options)
    torch.testing.assert_close(loss(rollout)["loss_policy"], -middle.sum() / 48)
    torch.testing.assert_close(loss(rollout)["advantage_mean"], advantages[:, 1:-1].mean())
    valid = torch.arange(12) < torch.tensor([12, 8, 5, 12])[:, None]
    rollout["collector", "mask"] = valid
    counted = valid & valid.roll(-1, 1) & (torch.arange(12) > 0)
    counted[:, -1] = False
    expected = -(rollout["action_log_prob"] * advantages.squeeze(-1))[counted].sum() / valid.sum()
    torch.testing.assert_close(loss(rollout)["loss_policy"], expected)


def test_released_batch_mean_is_of_a_micro_batch(rollout):
    """Two rows of four: advantages shrink by (2 - 1)/2 instead of (4 - 1)/4, and know half the rows."""
    released = JointLoss.released(target_rate=0.3, rows_per_mean=2, gamma=0.9)
    g = discounted_return(rollout["next", "reward"].squeeze(-1), 0.9)
    advantages = torch.cat([x - x.mean(0) for x in g.split(2)])
    expected = -0.01 * (rollout["action_log_prob"] * advantages)[:, :-1].sum() / 48
    torch.testing.assert_close(released(rollout)["loss_policy"], expected)


def test_released_ends_count_in_the_rate(rollout):
    """Two decisions in twelve count as certain: the mean probability is (10 p + 2)/12, and the pressure with it."""
    logits = rollout["logits"].detach().requires_grad_()
    given = rollout.detach()
    given["logits"] = logits
    out = RateLoss(0.3, ends="released")(given)
    middle = logits[:, 1:-1]
    mean_prob = (middle.sigmoid().mean() * 10 + 2) / 12
    torch.testing.assert_close(out["loss_rate"], (middle.mean() * 10 + 200) / 12 * (mean_prob - 0.3).detach())
    out["loss_rate"].backward()
    assert (logits.grad[:, 0] == 0).all() and (logits.grad[:, -1] == 0).all() and (logits.grad[:, 1:-1] != 0).all()


def test_released_ends_are_those_of_the_real_steps(rollout):
    """Rows of 12, 8, 5 and 12 real steps: the last of each counts as certain, padding not at all."""
    lengths, step = torch.tensor([12, 8, 5, 12]), torch.arange(12)
    given = rollout.detach()
    given["collector", "mask"] = valid = step < lengths[:, None]
    found = RateLoss(0.3, ends="released")(given)["loss_rate"]
    middle = valid & (step > 0) & (step < lengths[:, None] - 1)
    logits, count = rollout["logits"].detach()[middle], valid.sum()
    mean_prob = (logits.sigmoid().sum() + 8) / count
    torch.testing.assert_close(found, (logits.sum() + 800) / count * (mean_prob - 0.3))


# Misuse.


def test_a_rollout_without_gradient_is_refused(rollout):
    with pytest.raises(ValueError, match="'action_log_prob' carries no gradient, .* roll out with gradients"):
        BoundaryReinforceLoss(**LEAVE_ONE_OUT)(rollout.detach())
    with torch.no_grad():
        BoundaryReinforceLoss(**LEAVE_ONE_OUT)(rollout.detach())  # to look at figures is fine


def test_other_misuse_is_refused(model, rollout):
    with pytest.raises(KeyError, match="must hold 'advantage', or the loss an estimator"):
        BoundaryReinforceLoss()(rollout)
    with pytest.raises(ValueError, match="off_policy needs an actor"):
        BoundaryReinforceLoss("discounted_return", baseline="leave_one_out", off_policy=True)
    with pytest.raises(ValueError, match="max_weight belongs to off_policy=True"):
        BoundaryReinforceLoss("discounted_return", baseline="leave_one_out", max_weight=2.0)
    with pytest.raises(ValueError, match=r"average must be one of \['free', 'all', 'released'\], got 'rows'"):
        BoundaryReinforceLoss(average="rows")
    with pytest.raises(ValueError, match=r"reduction must be one of .* got 'median'"):
        LanguageModelLoss(reduction="median")
    with pytest.raises(ValueError, match=r"options \['gamma'\] belong to an estimator given by name"):
        BoundaryReinforceLoss(gamma=0.9)
    with pytest.raises(ValueError, match=r"coefficients must name terms of the loss, \['a'\], got \['b'\]"):
        JointLoss({"a": LanguageModelLoss()}, {"b": 1.0})
    with pytest.raises(ValueError, match=r"coefficients must be finite numbers, got \{'a': nan\}"):
        JointLoss({"a": LanguageModelLoss()}, {"a": math.nan})
    with pytest.raises(ValueError, match="two terms write 'loss_language_model'"):
        JointLoss({"a": LanguageModelLoss(), "b": LanguageModelLoss()})(rollout)
    with pytest.raises(KeyError, match="must hold 'next.final_log_prob'; it holds"):
        LanguageModelLoss()(rollout.exclude(("next", "final_log_prob")))
    with pytest.raises(KeyError, match="must hold 'advantage', or the loss an estimator"):
        BoundaryClipPPOLoss(LearnedBoundaryActor(model))(rollout.detach())
    assert ZeroCritic()(rollout.detach())["state_value"].shape == (4, 12, 1)

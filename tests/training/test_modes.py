"""Further epochs of the policy, random boundaries to begin with, critics, and boundaries by a rule."""

from __future__ import annotations

import copy

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, EncodingBoundaryActor, RandomActor, RolloutPolicy, UniformActor
from rltok_rl.agents.segmenters import SegmenterActor, make_segmenter
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import TextSource
from rltok_rl.functional.boundary_rules import spacebyte
from rltok_rl.models import UNet, preset
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
from rltok_rl.training import LoopOptions, Trainer

LEAVE_ONE_OUT = {"estimator": "discounted_return", "gamma": 0.9, "baseline": "leave_one_out"}
TEXT = "the cat sat on the mat, and the dog sat on the log. " * 20
both = pytest.mark.parametrize("micro_batches", [1, 2])


def joint(policy) -> JointLoss:
    terms = {"language_model": LanguageModelLoss(), "policy": policy, "rate": RateLoss(0.3), "early": EarlyExitLoss()}
    return JointLoss(terms, {"policy": 0.1, "rate": 0.01, "early": 0.1})


def clipped(**options) -> BoundaryClipPPOLoss:
    options = {"gamma": 0.9, "baseline": "leave_one_out", **options}
    loss = BoundaryClipPPOLoss(RolloutPolicy(), entropy_bonus=False)
    return loss.make_value_estimator("discounted_return", **options)


def make_env(model: UNet) -> ByteBoundaryEnv:
    return ByteBoundaryEnv(model, TEXT, num_steps=16, batch_size=(4,), seed=0)


def make_trainer(loss, *, actor=None, warm_start_rule=None, **options) -> Trainer:
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16, window=4, target_rate=0.3))
    with torch.no_grad():
        model.early_head.projection.weight.add_(0.3 * torch.randn_like(model.early_head.projection.weight))
    loss = loss if isinstance(loss, JointLoss) else loss(model)
    options = LoopOptions(**{"total_bytes": 640, **options})
    rule = None if warm_start_rule is None else make_segmenter(warm_start_rule, model)
    return Trainer(model, make_env(model), loss, options, actor=actor, warm_start_rule=rule)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_close(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], rtol: float = 1e-4) -> None:
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, expected[name], rtol=rtol, atol=1e-7, msg=name)


@both
def test_epochs_train_encoder_and_policy_on_the_stored_batch(micro_batches):
    """Each further epoch is one step down the clipped objective of the first batch, by a definition of few lines."""
    trainer = make_trainer(joint(clipped()), policy_epochs=3, micro_batches=micro_batches)
    model, step, drawn = trainer.model.train(), trainer.step, []
    draw = step.draw
    step.draw = lambda **options: drawn.append(draw(**options)) or drawn[-1]
    step.accumulate(micro_batches) if micro_batches > 1 else step()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn_like(weight))  # as after an optimizer step
    model.zero_grad(set_to_none=True)
    step.policy_epoch(step.batch)
    ours = gradients(model)

    rows = torch.cat([rollout.detach() for rollout in drawn], 0)
    advantage = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rows.copy())["advantage"].squeeze(-1)
    policy = EncodingBoundaryActor(model).get_dist(rows)
    ratio = (policy.log_prob(rows["action"]) - rows["action_log_prob"]).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    again = rows.copy().update({"logits": policy.logits})
    model.zero_grad(set_to_none=True)
    (-0.1 * gain[~rows["forced"]].mean() + 0.01 * RateLoss(0.3)(again)["loss_rate"]).backward()
    assert not any("token_layers" in name for name in ours)
    assert_close(ours, gradients(model))


def test_epochs_score_rows_of_several_texts_in_any_micro_batch():
    """The first micro-batch has two texts in a row, the second one: both are scored as they were drawn."""
    trainer = make_trainer(joint(clipped()), policy_epochs=2, micro_batches=2)
    texts = [TextSource([TEXT[i : i + 10] for i in range(20)], short_documents="whole"), trainer.env.source]
    draw, whole = trainer.step.draw, []

    def draw_next(**options):
        trainer.env.source = texts[len(whole)]
        rollout = draw(**options)
        whole.append(trainer.env.whole_rows)
        return rollout

    trainer.step.draw = draw_next
    assert trainer.update()["kl_approx"] != 0 and whole == [False, True]


@both
def test_advantages_are_made_once_per_batch(micro_batches):
    """An estimator with a memory would otherwise count a batch as often as it is trained on."""
    counts = []
    for epochs in (3, 1):
        loss = clipped(baseline="running_mean", num_steps=16)
        make_trainer(joint(loss), policy_epochs=epochs, micro_batches=micro_batches).update()
        counts.append(loss._value_estimator.baseline.count)
    assert float(counts[0].sum()) > 0 and torch.equal(*counts)


def test_warm_start_rewards_the_policys_own_entropy():
    """Not that of the random boundaries it is trained on, which never changes."""
    loss = JointLoss({**joint(clipped()).terms, "entropy": EntropyBonus()}, {"entropy": 0.01})
    trainer = make_trainer(loss, warm_start_bytes=640, lr=1e-2)
    assert trainer.update()["loss_entropy"] != trainer.update()["loss_entropy"]


def test_epochs_move_the_policy_and_report_how_far():
    trainers = [make_trainer(joint(clipped()), policy_epochs=n, lr=1e-2) for n in (1, 4)]
    once, again = [trainer.update() for trainer in trainers]
    for trainer, all_losses in zip(trainers, (True, False), strict=True):  # gradients of the last epoch alone
        assert ("token_layers.0.attention.query_key_value.weight" in gradients(trainer.model)) is all_losses
        assert "boundary_head.projection.weight" in gradients(trainer.model)
    assert abs(once["kl_approx"]) < 1e-7 and once["ESS"] == pytest.approx(1.0)
    assert abs(again["kl_approx"]) > 1e-6 and again["ESS"] < 1.0


@both
def test_in_a_warm_start_the_control_of_the_rate_alone_reaches_plain_reinforce(micro_batches):
    """Two updates are those of a policy whose advantages count nothing; in the third they count."""
    curves = {}
    for weight, warm_start in ((0.0, 0), (1.0, 2), (1.0, 0)):
        terms = dict(JointLoss.paper(target_rate=0.3).terms)
        loss = JointLoss(terms, {"policy": weight, "rate": 0.01, "early_exit": 0.1})
        size = 64 * micro_batches
        trainer = make_trainer(loss, warm_start_bytes=warm_start * size, lr=1e-2, micro_batches=micro_batches)
        curves[weight, warm_start] = updates = []
        for number in range(3):
            assert trainer.warming is (number < warm_start)
            updates.append(trainer.update())
            assert ("loss_policy" in updates[-1]) is (number >= warm_start)
            updates[-1]["head"] = trainer.model.boundary_head.projection.weight.detach().clone()
    silent, warm, plain = curves.values()
    for number, same in ((0, True), (1, True), (2, False)):
        assert torch.equal(silent[number]["head"], warm[number]["head"]) is same
        assert silent[number]["rate"] == warm[number]["rate"]
    assert not torch.equal(plain[0]["head"], warm[0]["head"])


def test_a_warm_start_without_advantages_pays_for_no_fit():
    terms = dict(JointLoss.paper(target_rate=0.3).terms)
    estimator = make_estimator("control_variate", gamma=0.9, regressor_keys=["encoder_state"])
    loss = JointLoss({**terms, "policy": BoundaryReinforceLoss(estimator)})
    trainer = make_trainer(loss, warm_start_bytes=64)
    fit = 64 * estimator.fit_flops(trainer.model.config.width)
    for number in range(3):
        update = trainer.update()
        assert update["total_flops"] - update["flops"] == pytest.approx(number * fit) and fit > 0


@both
def test_a_policy_imitates_a_rule_until_it_learns_from_its_own_decisions(micro_batches):
    """The gradient is that of 0.3 times the mean surprise of the rule's decisions, 0 for the first of a row of 16."""
    loss = JointLoss.paper(target_rate=0.3)
    trainer = make_trainer(
        loss, warm_start_rule="spacebyte", warm_start_bytes=640, micro_batches=micro_batches, clip_norm=1e9
    )
    model, head = copy.deepcopy(trainer.env.model).train(), "boundary_head.projection.weight"
    env = make_env(model)
    actor = SegmenterActor(make_segmenter("spacebyte", model))
    rows = torch.cat([env.parallel_rollout(actor) for _ in range(micro_batches)], 0)
    assert torch.equal(rows["action"].bool(), spacebyte(rows["byte"].view(len(rows), -1)) | rows["forced"].bool())
    logits = torch.cat([EncodingBoundaryActor(model).get_dist(part).logits for part in rows.split(4)])
    distance = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 1:], rows["action"][:, 1:].float())
    distance = distance * 15 / 16
    (0.3 * distance).backward()
    metrics = trainer.update()
    assert metrics["loss_imitation"] == pytest.approx(0.3 * distance.item(), rel=1e-4) and "loss_policy" not in metrics
    expected = gradients(model)[head]
    torch.testing.assert_close(gradients(trainer.env.model)[head], expected, rtol=1e-4, atol=1e-7)


def test_imitation_ends_with_the_warm_start():
    options = {"warm_start_bytes": 20 * 64, "total_bytes": 22 * 64, "lr": 5e-2}
    trainer = make_trainer(JointLoss.paper(target_rate=0.3), warm_start_rule="whitespace", **options)
    updates = [trainer.update() for _ in range(22)]
    assert updates[19]["loss_imitation"] < 0.8 * updates[0]["loss_imitation"]
    assert ["loss_policy" in update for update in updates] == 20 * [False] + 2 * [True]
    assert ["loss_imitation" in update for update in updates] == 20 * [True] + 2 * [False]


def test_policies_that_do_not_draw_their_own_boundaries_imitate_nothing():
    loss = joint(BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=RolloutPolicy(), off_policy=True))
    for options in ({}, {"actor": UniformActor(0.3)}):
        with pytest.raises(ValueError, match="must be None with an actor or an off-policy loss, got SpaceByte"):
            make_trainer(JointLoss.paper(target_rate=0.3) if options else loss, warm_start_rule="spacebyte", **options)


@pytest.mark.parametrize("rule", ["hnet", "random", "bernoulli"])
def test_only_rules_without_losses_and_random_numbers_are_imitated(rule):
    with pytest.raises(ValueError, match="warm_start_rule must have no losses, draw nothing at random"):
        make_trainer(JointLoss.paper(target_rate=0.3), warm_start_rule=rule, warm_start_bytes=64)


def test_a_rule_without_a_warm_start_is_refused():
    with pytest.raises(ValueError, match="warm_start_bytes must be above 0 with a warm_start_rule, got 0"):
        make_trainer(JointLoss.paper(target_rate=0.3), warm_start_rule="spacebyte")


@both
def test_off_policy_loss_learns_from_random_boundaries(micro_batches):
    """The gradient of ``mean pi/b A`` over random decisions, b the rate they were drawn with."""
    loss = joint(BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=RolloutPolicy(), off_policy=True, max_weight=1.5))
    trainer = make_trainer(loss, warm_start_bytes=640, micro_batches=micro_batches, clip_norm=1e9)
    twin = copy.deepcopy(trainer.env.model).train()
    env, generator = make_env(twin), torch.Generator().manual_seed(0)
    trainer.model.train()
    trainer.update()

    rows = torch.cat([env.parallel_rollout(RandomActor(0.3), generator=generator) for _ in range(micro_batches)], 0)
    advantage = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rows.detach())["advantage"]
    policy = EncodingBoundaryActor(twin).get_dist(rows.detach())
    weight = (policy.log_prob(rows["action"]) - rows["action_log_prob"]).exp()
    capped = weight.clamp(max=1.5).detach() * policy.log_prob(rows["action"])  # the gradient of a capped weight
    rate = RateLoss(0.3)(rows.detach().update({"logits": policy.logits}))["loss_rate"]
    (-0.1 * (capped * advantage.squeeze(-1))[~rows["forced"]].mean() + 0.01 * rate).backward()
    name = "boundary_head.projection.weight"
    assert_close({name: gradients(trainer.model)[name]}, {name: gradients(twin)[name]}, rtol=1e-3)


def test_critic_is_trained_with_the_model():
    def loss(model: UNet) -> JointLoss:
        critic = BoundaryClipPPOLoss(RolloutPolicy(), BoundaryCritic(model.config), critic_coeff=0.5)
        return joint(critic.make_value_estimator("critic_advantage", gamma=0.9, lmbda=0.9))

    trainer = make_trainer(loss)
    critic = trainer.loss.terms["policy"].critic_network
    before = [p.detach().clone() for p in critic.parameters()]
    assert trainer.update()["loss_critic"] > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, critic.parameters(), strict=True))
    trained = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    parts = {id(p) for p in (*trainer.model.parameters(), *critic.parameters())}
    assert len(trained) == len(parts) and {id(p) for p in trained} == parts  # everything once


@both
def test_boundaries_by_a_rule_train_the_language_model_alone(micro_batches):
    loss = JointLoss({"language_model": LanguageModelLoss(), "early": EarlyExitLoss()}, {"early": 0.1})
    trainer = make_trainer(loss, actor=UniformActor(0.25), micro_batches=micro_batches, lr=1e-2)
    first, *_, last = [trainer.update() for _ in range(10)]
    assert first["rate"] == 0.25 and "loss_policy" not in first
    assert last["bits_per_byte"] < first["bits_per_byte"]

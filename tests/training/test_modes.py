"""Further epochs of the policy, random boundaries to begin with, critics, and boundaries by a rule."""

from __future__ import annotations

import copy

import pytest
import torch
from rltok_rl.agents import BoundaryCritic, EncodingBoundaryActor, RandomActor, RolloutPolicy, UniformActor
from rltok_rl.envs import ByteBoundaryEnv
from torch import nn

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
)
from rltok_rl.training import LoopOptions, Trainer

LEAVE_ONE_OUT = {"estimator": "discounted_return", "gamma": 0.9, "baseline": "leave_one_out"}
TEXT = "the cat sat on the mat, and the dog sat on the log. " * 20


def make_loss(policy) -> JointLoss:
    terms = {"language_model": LanguageModelLoss(), "policy": policy, "rate": RateLoss(0.3), "early": EarlyExitLoss()}
    return JointLoss(terms, {"policy": 0.1, "rate": 0.01, "early": 0.1})


def clipped(critic=None, **options) -> BoundaryClipPPOLoss:
    loss = BoundaryClipPPOLoss(RolloutPolicy(), critic, **options)
    name, more = ("discounted_return", {"baseline": "leave_one_out"})
    if critic is not None:
        name, more = "critic_advantage", {"lmbda": 0.9}
    return loss.make_value_estimator(name, gamma=0.9, **more)


def make_trainer(loss, *, actor=None, rows=4, **options) -> Trainer:
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16, window=4, target_rate=0.3))
    with torch.no_grad():
        model.early_head.projection.weight.add_(0.3 * torch.randn_like(model.early_head.projection.weight))
    env = ByteBoundaryEnv(model, TEXT, num_steps=16, batch_size=(rows,), seed=0)
    return Trainer(model, env, loss(model), LoopOptions(**{"total_bytes": 640, **options}), actor=actor)


def test_the_first_epoch_of_clipping_is_reinforce():
    """Where nothing has moved, ratios are 1 and both objectives have one gradient."""
    gradients = []
    for policy in (clipped(), BoundaryReinforceLoss(**LEAVE_ONE_OUT)):
        trainer = make_trainer(lambda _, p=policy: make_loss(p))
        trainer.update()
        gradients.append({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_epochs_train_encoder_and_policy_on_the_stored_batch(micro_batches):
    """Each further epoch is one step down the clipped objective of the first batch, by a definition of few lines."""
    trainer = make_trainer(lambda _: make_loss(clipped()), policy_epochs=3, micro_batches=micro_batches, rows=4)
    model, step, drawn = trainer.model.train(), trainer.step, []
    draw = step.draw
    step.draw = lambda **options: drawn.append(draw(**options)) or drawn[-1]
    step.accumulate(micro_batches) if micro_batches > 1 else step()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn_like(weight))  # as if a step had been made
    model.zero_grad(set_to_none=True)
    step.policy_epoch(step.batch)
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    rows = torch.cat([rollout.detach() for rollout in drawn], 0)
    advantage = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rows.copy())["advantage"].squeeze(-1)
    policy = EncodingBoundaryActor(model).get_dist(rows)
    free = ~rows["forced"]
    ratio = (policy.log_prob(rows["action"]) - rows["action_log_prob"]).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    again = rows.copy().update({"logits": policy.logits})
    expected = -0.1 * gain[free].mean() + 0.01 * RateLoss(0.3)(again)["loss_rate"]
    model.zero_grad(set_to_none=True)
    expected.backward()
    reached = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == reached.keys() and not any("token_layers" in name for name in found)
    for name, gradient in reached.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_advantages_are_those_of_the_first_epoch(micro_batches):
    """Made once per batch: an estimator that remembers would count a batch as often as it is trained on."""
    loss = BoundaryClipPPOLoss(RolloutPolicy()).make_value_estimator(
        "discounted_return", gamma=0.9, baseline="running_mean", num_steps=16
    )
    trainer = make_trainer(lambda _: make_loss(loss), policy_epochs=3, micro_batches=micro_batches)
    once = make_trainer(lambda _: make_loss(copy.deepcopy(loss)), micro_batches=micro_batches)
    for one in (trainer, once):
        one.update()
    counts = [one.loss.terms["policy"]._value_estimator.baseline.count for one in (trainer, once)]
    assert float(counts[0].sum()) > 0 and torch.equal(*counts)


def test_a_warm_start_rewards_the_policys_own_entropy():
    """Not that of the random boundaries it is trained on, which never changes."""
    terms = {**make_loss(clipped(entropy_bonus=False)).terms, "entropy": EntropyBonus()}
    trainer = make_trainer(lambda _: JointLoss(terms, {"entropy": 0.01}), warm_start_bytes=640, lr=1e-2)
    first, *_, last = [trainer.update()["loss_entropy"] for _ in range(5)]
    assert first != last


def test_epochs_move_the_policy_and_say_how_far():
    once, again = [make_trainer(lambda _: make_loss(clipped()), policy_epochs=n, lr=1e-2).update() for n in (1, 4)]
    assert abs(once["kl_approx"]) < 1e-7 and once["ESS"] == pytest.approx(1.0)
    assert abs(again["kl_approx"]) > 1e-6 and again["ESS"] < 1.0


def weights_after(trainer: Trainer, updates: int) -> dict[str, torch.Tensor]:
    for _ in range(updates):
        trainer.update()
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def test_a_warm_start_draws_at_random_and_leaves_plain_reinforce_alone():
    """64 bytes an update: two updates of random boundaries, in which the policy has nothing to learn."""
    trainer = make_trainer(lambda _: JointLoss.paper(target_rate=0.3), warm_start_bytes=128)
    before = trainer.model.boundary_head.projection.weight.detach().clone()
    assert trainer.warming
    for _ in range(2):
        metrics = trainer.update()
        assert "loss_policy" not in metrics and 0 < metrics["rate"] < 1
    assert not trainer.warming
    assert torch.equal(trainer.model.boundary_head.projection.weight, before)
    assert "loss_policy" in trainer.update()
    assert not torch.equal(trainer.model.boundary_head.projection.weight, before)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_an_off_policy_loss_learns_from_random_boundaries(micro_batches):
    """The gradient of ``mean pi/b A`` over random decisions, b the rate they were drawn with."""
    loss = make_loss(BoundaryReinforceLoss(**LEAVE_ONE_OUT, actor=RolloutPolicy(), off_policy=True, max_weight=1.5))
    trainer = make_trainer(lambda _: loss, warm_start_bytes=640, micro_batches=micro_batches, clip_norm=1e9)
    twin = copy.deepcopy(trainer.env.model).train()
    env = ByteBoundaryEnv(twin, TEXT, num_steps=16, batch_size=(4,), seed=0)
    generator = torch.Generator().manual_seed(0)
    trainer.model.train()
    trainer.update()

    rolls = [env.parallel_rollout(RandomActor(0.3), generator=generator) for _ in range(micro_batches)]
    rows = torch.cat(rolls, 0)
    advantage = ReturnEstimator(gamma=0.9, baseline="leave_one_out")(rows.detach())["advantage"]
    policy = EncodingBoundaryActor(twin).get_dist(rows.detach())
    free = ~rows["forced"]
    weight = (policy.log_prob(rows["action"]) - rows["action_log_prob"]).exp()
    capped = weight.clamp(max=1.5).detach() * policy.log_prob(rows["action"])  # the gradient of a capped weight
    objective = (capped * advantage.squeeze(-1))[free].mean()
    rate = RateLoss(0.3)(rows.detach().update({"logits": policy.logits}))["loss_rate"]
    (-0.1 * objective + 0.01 * rate).backward()
    expected = twin.boundary_head.projection.weight.grad
    torch.testing.assert_close(trainer.model.boundary_head.projection.weight.grad, expected, rtol=1e-3, atol=1e-7)


def test_a_critic_is_trained_along():
    trainer = make_trainer(lambda model: make_loss(clipped(BoundaryCritic(model.config), critic_coeff=0.5)))
    critic = trainer.loss.terms["policy"].critic_network
    before = [p.detach().clone() for p in critic.parameters()]
    errors = [trainer.update()["loss_critic"] for _ in range(5)]
    assert all(e > 0 for e in errors)
    assert any(not torch.equal(a, b) for a, b in zip(before, critic.parameters(), strict=True))
    trained = sum(p.numel() for group in trainer.optimizer.param_groups for p in group["params"])
    parts = nn.ModuleList([trainer.model, critic])
    assert trained == sum(p.numel() for p in parts.parameters())  # everything once


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_boundaries_by_a_rule_train_the_language_model_alone(micro_batches):
    loss = JointLoss({"language_model": LanguageModelLoss(), "early": EarlyExitLoss()}, {"early": 0.1})
    trainer = make_trainer(lambda _: loss, actor=UniformActor(0.25), micro_batches=micro_batches, lr=1e-2)
    first, *_, last = [trainer.update() for _ in range(10)]
    assert first["rate"] == 0.25 and "loss_policy" not in first
    assert last["bits_per_byte"] < first["bits_per_byte"]


@pytest.mark.parametrize(
    "options", [{"policy_epochs": 3}, {"warm_start_bytes": 128}, {"micro_batches": 2, "policy_epochs": 2}]
)
def test_resumed_is_uninterrupted_in_every_mode(options):
    def fresh() -> Trainer:
        return make_trainer(lambda model: make_loss(clipped(BoundaryCritic(model.config), critic_coeff=0.5)), **options)

    whole = weights_after(fresh(), 5)
    first, second = fresh(), fresh()
    weights_after(first, 3)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for name, weight in weights_after(second, 2).items():
        assert torch.equal(weight, whole[name]), name

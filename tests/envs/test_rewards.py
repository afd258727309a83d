"""Custom and relative rewards and reward transforms: equal stepped and in parallel, or refused by name."""

from __future__ import annotations

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, UniformActor
from rltok_rl.agents.rules import evenly_spaced
from rltok_rl.envs import ByteBoundaryEnv, ParallelCollector, SB3VecEnv, parallel_rollout, reward_transforms
from torch import Tensor
from torchrl.envs import (
    BinarizeReward,
    Compose,
    EnvBase,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
)

from rltok_rl.data import TextSource
from rltok_rl.functional.rewards import REWARDS, as_reward, broken_reward_laws, early_exit_reward, reads_entropy
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import BoundaryReinforceLoss, JointLoss, LocalFlips
from rltok_rl.training import LoopOptions, Trainer

from ..each import each, refused
from .conftest import LONG, SHORT
from .test_parallel import assert_paths_agree, assert_same_rollout, step_through


def squashed(final: Tensor, early: Tensor, entropy: Tensor | None = None) -> Tensor:
    return (final - early).tanh()


def surprise(final: Tensor, early: Tensor, entropy: Tensor) -> Tensor:
    return final / (1.0 + entropy)


def after_spaces(byte_ids: Tensor) -> Tensor:
    return byte_ids == ord(" ")


class Noise:
    def __call__(self, final: Tensor, early: Tensor, entropy: Tensor) -> Tensor:
        return final + torch.rand_like(final)


BROKEN = {
    "shape": lambda final, early, entropy: final.sum(),
    "dtype": lambda final, early, entropy: (final > early).long(),
    "finite": lambda final, early, entropy: entropy.log(),
    "certain": lambda final, early, entropy: 1 / final,
    "certain early": lambda final, early, entropy: 1 / early,
    "unlikely": lambda final, early, entropy: torch.where(final < -20, -torch.inf, final),
    "no number": lambda final, early, entropy: 0 * final / final,  # the same wherever it is
    "gradient": lambda final, early, entropy: torch.ones((), requires_grad=True) * final,
    "inputs": lambda final, early, entropy: final.clamp_(min=-4.0),
    "rows": lambda final, early, entropy: final - final.mean(),
    "past": lambda final, early, entropy: final.cumsum(-1),
    "future": lambda final, early, entropy: final + final.roll(-1, -1),
    "shapes": lambda final, early, entropy: final * len(final),
    "axes": lambda final, early, entropy: final.flip(1),
    "chance": Noise(),
}
LAWS = {"dtype": "shape", "rows": "steps", "past": "steps", "future": "steps", "axes": "steps"}
LAWS |= {"shapes": "steps", "chance": "steps"}
LAWS |= dict.fromkeys(("certain", "certain early", "unlikely", "no number"), "finite")


@each(name=BROKEN)
def test_laws_name_what_a_reward_does_wrong(name, make_env):
    reward, law = BROKEN[name], LAWS.get(name, name)
    assert [*broken_reward_laws(reward)] == [law]
    with pytest.raises(ValueError, match=f"reward must obey the laws of rewards, got {__name__}:.* breaks '{law}'"):
        make_env(reward=reward)


def test_laws_are_asked_as_rewards_are_used():
    """Without the entropy if it is not asked for; on their device; rounding is no dependence on other steps."""
    for reward, reads in (
        (lambda final, early, entropy=None: final if entropy is None else final.sum(), False),
        (lambda final, early, entropy: final + 1e-6 * len(final), True),
        (lambda *inputs: inputs[0] - inputs[1], True),
        (lambda final, *others: final, True),
    ):
        assert broken_reward_laws(reward) == {} and reads_entropy(reward) is reads
    with torch.no_grad():
        assert [*broken_reward_laws(BROKEN["gradient"])] == ["gradient"]
    seen = []
    with pytest.raises(ValueError, match="inputs of any shape"):
        as_reward(lambda final, early, entropy: seen.append(final.device.type) or 1 / 0, device="meta")
    assert seen == ["meta"]


def test_custom_rewards_are_named_checked_and_read_entropy_only_if_they_ask_for_it(make_env):
    for reward, name, entropy in (
        (squashed, f"{__name__}:squashed", False),
        (f"{__name__}:surprise", f"{__name__}:surprise", True),
        ("early_exit", "early_exit", False),
        ("entropy_relative", "entropy_relative", True),
        ("relative", "relative", False),
    ):
        env = make_env(reward=reward)
        assert (env.reward_name, env.reads_predictions) == (name, entropy)
    assert as_reward(f"{__name__}:squashed") is squashed and not reads_entropy(early_exit_reward)
    rollout = make_env(reward=squashed, price=0.5).parallel_rollout(UniformActor(0.25))
    seen = rollout["next"]
    expected = (seen["final_log_prob"] - seen["early_log_prob"]).tanh() - 0.5 * rollout["action"][..., None]
    torch.testing.assert_close(seen["reward"], expected)
    also = "or a function (environments and training: also 'relative'), got 'relativ'; did you mean 'relative'"
    for option, value, error, message in (
        ("reward", "relativ", ValueError, also),
        ("reward", 3, TypeError, "reward must be a name, module:function or a function, got 3"),
        ("reward", lambda final: final, TypeError, "reward must take (final_log_prob, early_log_prob, early_entropy)"),
        ("reward", "torch:sub", TypeError, "early_entropy), got torch:sub: no signature found"),
        ("reward", lambda f, e, h: f[0, 0, 0], ValueError, "inputs of any shape; called with [4, 5]: too many"),
        ("reference", LearnedBoundaryActor(UNet(preset("tiny"))), ValueError, "LearnedBoundaryActor, which raises"),
        ("reference", "even", ValueError, "reference must be 'uniform', 'never', 'always', a custom"),
        ("reference", 3, TypeError, "reference must be a function of byte_ids [n, L] to boundaries [n, L] of 0 and 1"),
        ("reference", lambda ids: ids, ValueError, "which returns [3, 8] for [3, 8]"),
        ("reference", lambda ids: ids[:, :1] > 5, ValueError, "which returns [3, 1] for [3, 8]"),
        *(
            ("reference", rule, ValueError, "depends on later bytes, other texts or chance")
            for rule in (
                lambda ids: (ids > 64).roll(-1, 1),
                lambda ids: (ids > 80) ^ (ids[:1] > 80),  # of the first text
                lambda ids: (ids > 80) ^ (ids[-1:] > 80),
                lambda ids: torch.rand(ids.shape) < 0.5,
            )
        ),
    ):
        refused((lambda o=option, v=value: make_env(**{o: v}), error, re.escape(message)))
    model = UNet(preset("tiny", byte_scope="token"))
    with pytest.raises(ValueError, match="reference must be None .* with byte_scope='token'"):
        ByteBoundaryEnv(model, LONG, num_steps=8, reward="relative")


@each(reference=["uniform", after_spaces, "never", "always", f"{__name__}:after_spaces"])
@torch.no_grad()
def test_relative_rewards_are_relative_to_the_policy_on_the_same_text(reference, make_env):
    absolute, relative = (make_env(reward=r, reference=reference, price=0.1) for r in ("early_exit", "relative"))
    rollout, other = (env.parallel_rollout(UniformActor(0.5)) for env in (absolute, relative))
    earned = rollout["next", "reference_reward"]
    torch.testing.assert_close(other["next", "reward"], rollout["next", "reward"] - earned)
    byte_ids = rollout["byte"]
    even = UniformActor(absolute.model.config.target_rate)
    actions = {"uniform": lambda ids: even(rollout)["action"], "never": torch.zeros_like, "always": torch.ones_like}
    actions = actions.get(reference, after_spaces)(byte_ids).long()
    for env, expected in ((absolute, earned), (relative, torch.zeros_like(earned))):
        env.set_seed(0)
        torch.testing.assert_close(env.parallel_rollout(actions=actions)["next", "reward"], expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_policy_that_draws_what_the_reference_draws_earns_nothing_at_the_rate_of_each_text():
    """In texts that end early, and in those that follow in their rows; stepped and in one pass."""
    model = UNet(preset("tiny", rate_embedding=True, smoothing="detached")).eval()  # rates reach the decoder, too
    torch.nn.init.normal_(model.rate_embedding.weight, std=0.5)
    source = TextSource(SHORT, short_documents="whole")
    for rates in ((0.05, 0.6), None):
        options = {"num_steps": 24, "batch_size": (3,), "target_rates": rates, "price": 0.1, "seed": 0}
        env = ByteBoundaryEnv(model, source, reward="relative", **options)
        seen = env.parallel_rollout(max_steps=37, actions=torch.zeros(3, 37, dtype=torch.int64))
        rate = seen["target_rate"].squeeze(-1)
        assert (len(rate.unique()) == 1) == (rates is None)
        actions = evenly_spaced(seen["position"], rate=rate).long()
        for roll in (step_through, lambda env, actions: env.parallel_rollout(actions=actions)):
            env = ByteBoundaryEnv(model, source, reward="relative", **options)
            reward = roll(env, actions)["next", "reward"]
            torch.testing.assert_close(reward, torch.zeros_like(reward), atol=1e-4, rtol=0)


@each(reward=[*REWARDS, "relative", squashed])
def test_rewards_carry_no_gradient_and_options_reach_every_head(reward, make_env, model, monkeypatch):
    """Those of the reference neither; all likelihoods are computed in the chunks that were asked for."""
    env, chunks, layouts = make_env(reward=reward, likelihood_chunk=5, layout="packed", reference="uniform"), [], []
    for name in ("final_log_prob", "early_log_prob"):
        inner = getattr(model, name)
        monkeypatch.setattr(model, name, lambda *a, f=inner, **o: chunks.append(o.get("chunk")) or f(*a, **o))
    decode = model.decode_levels
    monkeypatch.setattr(model, "decode_levels", lambda *a, **o: layouts.append(o.get("layout")) or decode(*a, **o))
    rollout = env.parallel_rollout()
    assert rollout["next", "final_log_prob"].requires_grad
    assert not rollout["next", "reward"].requires_grad and not rollout["next", "reference_reward"].requires_grad
    assert "packed" in layouts and len(chunks) >= 2 and set(chunks) == {5}


@torch.no_grad()
def test_gymnasium_reports_the_return_of_the_reference(model):
    options = {"model": model, "text": LONG, "num_steps": 6, "reference": "uniform"}
    single = {r: gymnasium.make("rltok_rl/ByteBoundary-v0", reward=r, **options) for r in ("early_exit", "relative")}
    returns = {}
    for name, env in single.items():
        _, info = env.reset(seed=3)
        assert info["reference_return"] == 0.0
        rewards = [env.step(t % 2) for t in range(6)]
        returns[name] = sum(step[1] for step in rewards), rewards[-1][-1]["reference_return"]
    (absolute, reference), (relative, same) = returns.values()
    assert reference == same != 0.0 and absolute - reference == pytest.approx(relative, abs=1e-4)
    vector = SB3VecEnv(2, **options)
    vector.seed(3)
    vector.reset()
    infos = [vector.step(np.full(2, t % 2))[-1] for t in range(6)]
    assert infos[-1][0]["reference_return"] != infos[-1][1]["reference_return"]  # each text its own, at its end
    assert "reference_return" not in gymnasium.make("rltok_rl/ByteBoundary-v0", num_steps=4).reset()[1]


class Squash(Transform):
    def __init__(self) -> None:
        super().__init__(in_keys=["reward"], out_keys=["reward"])

    def _apply_transform(self, reward: Tensor) -> Tensor:
        return reward.tanh()


class Centre(Squash):
    def _apply_transform(self, reward: Tensor) -> Tensor:
        return reward - reward.mean()


class Wait(Squash):
    def _step(self, tensordict, next_tensordict):
        return next_tensordict


@torch.no_grad()
def test_reward_transforms_apply_stepped_and_in_parallel(make_env, model):
    actor = LearnedBoundaryActor(model)

    def wrap() -> TransformedEnv:
        inner = TransformedEnv(make_env(short=True, reward="relative"), RewardScaling(0.5, 3.0))
        return TransformedEnv(inner, Compose(Squash(), RewardClipping(-0.5, 0.75)), auto_unwrap=False)

    assert_paths_agree(wrap(), actor, 37, stop=False)
    actions = (torch.rand(3, 24) < 0.4).long()
    plain = make_env(short=True, reward="relative").parallel_rollout(actions=actions)
    changed = plain.clone()
    changed["next", "reward"] = (0.5 + 3.0 * plain["next", "reward"]).tanh().clamp(-0.5, 0.75)
    assert_same_rollout(step_through(wrap(), actions), changed)
    for roll in (parallel_rollout, TransformedEnv.parallel_rollout):
        assert_same_rollout(roll(wrap(), actions=actions), changed)
    torch.manual_seed(5)
    stepped = EnvBase.rollout(wrap(), 24, actor, break_when_any_done=False)
    torch.manual_seed(5)
    assert_same_rollout(stepped, wrap().rollout(24, actor, break_when_any_done=False))
    batches = []
    for env in (make_env(short=True, reward="relative"), wrap()):
        torch.manual_seed(5)
        batches += ParallelCollector(env, actor, total_frames=72)
    expected = (0.5 + 3.0 * batches[0]["next", "reward"]).tanh().clamp(-0.5, 0.75)
    torch.testing.assert_close(batches[1]["next", "reward"], expected)


@each(
    transform=[
        (RewardSum, r"RewardSum, which reads \['reward'\] and writes \['episode_reward'\]"),
        (StepCounter, r"StepCounter, which defines \['_step', '_reset'\]"),
        (Wait, r"Wait, which defines \['_step'\]"),
        (Centre, "Centre, which breaks the laws of rewards: each reward must depend on its own prediction alone"),
        (BinarizeReward, "BinarizeReward, which breaks .* rewards must be torch.float32"),
    ]
)
def test_other_transforms_are_refused_by_name(transform, make_env, model):
    make, message = transform
    env = TransformedEnv(make_env(), Compose(RewardScaling(0.0, 2.0), make()))
    for use in (
        lambda: parallel_rollout(env),
        lambda: env.parallel_rollout(),
        lambda: ParallelCollector(env, LearnedBoundaryActor(model), total_frames=72),
        lambda: Trainer(model, env, JointLoss.paper(target_rate=0.2), LoopOptions(total_bytes=72)),
    ):
        refused((use, ValueError, message))
    with pytest.raises(TypeError, match="env must be a ByteBoundaryEnv, got CountingEnv"):
        parallel_rollout(type("CountingEnv", (EnvBase,), {"_reset": 0, "_step": 0, "_set_seed": 0})())


@each(name=["_call", "_step", "_reset", "_inv_call", "_reset_env_preprocess", "_post_step_mdp_hooks"])
def test_whatever_else_a_transform_defines_is_refused(name, make_env):
    transform = type("Other", (Squash,), {name: lambda self, *args: args[-1]})()
    with pytest.raises(ValueError, match=rf"got Other, which defines \['{name}'\]"):
        reward_transforms.reward_transforms(TransformedEnv(make_env(), transform))


class Counting(Squash):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def _apply_transform(self, reward: Tensor) -> Tensor:
        self.calls += 1
        return super()._apply_transform(reward)


def test_checks_leave_the_state_of_a_transform_alone(make_env):
    counting = Counting()
    assert reward_transforms.reward_transforms(TransformedEnv(make_env(), counting)) == [counting]
    assert int(counting.calls) == 0


def test_transforms_are_checked_once_and_again_after_a_change(make_env, monkeypatch):
    checked, laws = [], reward_transforms.broken_reward_laws
    monkeypatch.setattr(reward_transforms, "broken_reward_laws", lambda *a, **k: checked.append(1) or laws(*a, **k))
    env = TransformedEnv(make_env(), Compose(RewardScaling(0.0, 2.0), Squash()))
    for _ in range(3):
        env.parallel_rollout()
    assert len(checked) == 2
    scaling, squash = env.transform
    scaling.scale.fill_(3.0)
    env.parallel_rollout()
    scaling.scale = torch.tensor(float("inf"))
    refused((env.parallel_rollout, ValueError, "got RewardScaling, which breaks .*finite"))
    scaling.scale = torch.tensor(1.0)
    squash._apply_transform = Centre()._apply_transform
    refused((env.parallel_rollout, ValueError, "got Squash, which breaks .* depend on its own prediction alone"))
    assert len(checked) == 6


def test_trainer_learns_from_transformed_rewards(make_env, model):
    def train(wrap, **options) -> dict[str, float]:
        torch.manual_seed(0)
        fresh = UNet(preset("tiny"))
        env = wrap(ByteBoundaryEnv(fresh, LONG, num_steps=24, batch_size=(4,), seed=0, **options))
        trainer = Trainer(fresh, env, JointLoss.paper(target_rate=0.2), LoopOptions(total_bytes=96))
        return trainer.update()

    plain, doubled = train(lambda env: env), train(lambda env: TransformedEnv(env, RewardScaling(0.0, 2.0)))
    assert doubled["loss_policy"] == pytest.approx(2 * plain["loss_policy"], rel=1e-5)
    assert doubled["loss_language_model"] == plain["loss_language_model"]
    relative = train(lambda env: env, reward="relative")
    assert relative["total_flops"] > relative["flops"] == plain["total_flops"]
    loss = JointLoss({"policy": BoundaryReinforceLoss(LocalFlips(model, gamma=0.9))}, {"policy": 1.0})
    for env in (make_env(reward=squashed), TransformedEnv(make_env(), RewardScaling(0.0, 2.0))):
        trainer = partial(Trainer, model, env, loss, LoopOptions(total_bytes=72))
        refused((trainer, ValueError, "without transforms, with estimators that run trials"))

"""The environment keeps TorchRL's contract, pays what it says, and refuses misuse."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from tensordict import TensorDict
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

from rltok_rl.data import TextSource
from rltok_rl.models import UNet, preset
from rltok_rl.text import ids_to_bytes, text_to_ids


def test_specs(make_env):
    for number, options in enumerate(
        [
            {},
            {"reward": "log_likelihood"},
            {"reward": "entropy_relative", "price": 0.5},
            {"observe_entropy": True},
            {"short": True},
            {"num_steps": 1},
        ]
    ):
        check_env_specs(make_env(batch_size=[(), (1,), (4,)][number % 3], **options))
    for num_lags in (0, 1):
        model = UNet(preset("tiny", num_lags=num_lags))
        check_env_specs(ByteBoundaryEnv(model, "some text", num_steps=5, batch_size=(2,)))


def stepped(env, actions, **reset):
    """Root and next tensordicts of every step."""
    td, steps = env.reset(**reset), []
    for t in range(actions.shape[-1]):
        td = td.set("action", actions[..., t])
        after = env.step(td)
        steps.append(after)
        td = after["next"].exclude("reward")
    return steps


@pytest.mark.parametrize("reward", ["early_exit", "log_likelihood", "entropy_relative"])
def test_rewards_follow_the_full_forward(make_env, model, reward):
    """Eq. 15 and its alternatives, computed from the whole window by the textbook."""
    env = make_env(reward=reward, price=0.25, batch_size=(2,), num_steps=10)
    texts = ["hello, old world", "other text at all"]
    actions = torch.rand(2, 10) < 0.4
    rewards = torch.stack([s["next", "reward"] for s in stepped(env, actions.long(), text=texts)], 1).squeeze(-1)
    byte_ids = torch.stack([text_to_ids(t)[:11] for t in texts])
    boundaries = actions.clone()
    boundaries[:, 0] = True
    out = model(byte_ids[:, :10], boundaries)
    final, early = (
        x.log_softmax(-1).gather(-1, byte_ids[:, 1:, None]).squeeze(-1) for x in (out.final_logits, out.early_logits)
    )
    probs = out.early_logits.softmax(-1)
    entropy = -(probs * probs.log()).sum(-1)
    expected = {"early_exit": final - early, "log_likelihood": final, "entropy_relative": final + entropy}[reward]
    torch.testing.assert_close(rewards, expected - 0.25 * boundaries, rtol=0, atol=1e-4)


def test_observations_tell_what_was_read_and_drawn(make_env):
    env = make_env(batch_size=(), num_steps=6, observe_entropy=True)
    actions = torch.tensor([0, 1, 0, 0, 1, 1])
    steps = stepped(env, actions, text="abcdefgh")
    assert ids_to_bytes(torch.stack([s["byte"] for s in steps])) == b"abcdef"
    assert [int(s["position"]) for s in steps] == [0, 1, 2, 3, 4, 5]
    assert [bool(s["forced"]) for s in steps] == [True] + [False] * 5
    assert steps[-1]["next", "recent"].tolist() == [1, 1, 0, 0, 1, 1, 0, 0]  # a_0 = 1 although 0 was asked for
    assert float(steps[0]["final_log_prob"]) == 0.0 > float(steps[0]["next", "final_log_prob"])
    difference = steps[2]["next", "final_log_prob"] - steps[2]["next", "early_log_prob"]
    torch.testing.assert_close(steps[2]["next", "reward"], difference)


@pytest.mark.parametrize(("text", "end"), [("abcde", "terminated"), ("abcdef", "terminated"), ("abcdefg", "truncated")])
def test_documents_terminate_and_windows_truncate(make_env, text, end):
    """Five decisions: a text of six bytes ends with the window, and that is the end of the text."""
    env = make_env(batch_size=(), num_steps=5)
    steps = stepped(env, torch.zeros(min(5, len(text) - 1), dtype=torch.int64), text=text)
    assert not any(bool(s["next", "done"]) for s in steps[:-1])
    last = steps[-1]["next"]
    assert bool(last["done"])
    assert {name for name in ("terminated", "truncated") if bool(last[name])} == {end}


def test_partial_resets_leave_other_rows_alone(make_env):
    """Rows 0 and 2 read on while row 1 starts anew: as if row 1 had never been touched."""
    env, actions = make_env(), (torch.rand(3, 12) < 0.4).long()
    texts = ["first text, long enough", "second text, also long", "third text, long as well"]
    undisturbed = stepped(env, actions, text=texts)
    td = env.reset(text=texts)
    for t in range(12):
        if t == 5:
            mask = torch.tensor([[False], [True], [False]])
            td = env.reset(td.set("_reset", mask), text=["fresh"])
            assert td["position"].flatten().tolist() == [5, 0, 5]
            assert int(td["byte"][1]) == ord("f")
        after = env.step(td.set("action", actions[:, t]))
        for row in (0, 2):
            torch.testing.assert_close(
                after["next", "reward"][row], undisturbed[t]["next", "reward"][row], rtol=0, atol=1e-4
            )
        td = after["next"].exclude("reward")
        if bool(td["done"].any()):
            break
    fresh = stepped(env, actions[:, 5:9], text=["fresh"] * 3)
    torch.testing.assert_close(after["next", "reward"][1], fresh[-1]["next", "reward"][1], rtol=0, atol=1e-4)
    assert bool(after["next", "terminated"][1])


def test_what_was_handed_out_does_not_change(make_env):
    """A rollout with resets inside keeps its past: stored tensors are not views of the environment's state."""
    env = make_env(short=True)
    rollout = EnvBase.rollout(env, 40, break_when_any_done=False)
    assert bool(rollout["next", "done"].any())
    started = rollout["position"][..., 0] == 0
    torch.testing.assert_close(rollout["next", "done"][:, :-1, 0], started[:, 1:])


def test_same_seed_same_texts(make_env):
    first, second, third = (make_env(short=True) for _ in range(3))
    first.set_seed(3), second.set_seed(3), third.set_seed(4)
    bytes_of = [torch.cat([env.reset()["byte"] for _ in range(20)]) for env in (first, second, third)]
    assert torch.equal(bytes_of[0], bytes_of[1])
    assert not torch.equal(bytes_of[0], bytes_of[2])


def test_wrong_arguments(make_env, model):
    for options, message in [
        ({"num_steps": 0}, "num_steps must be an integer of at least 1, got 0"),
        ({"num_steps": 2.0}, "num_steps must be an integer of at least 1, got 2.0"),
        ({"batch_size": (2, 3)}, "batch_size must be [] or [B] with B >= 1, got [2, 3]"),
        ({"batch_size": (0,)}, "batch_size must be [] or [B] with B >= 1, got [0]"),
        ({"batch_size": 3}, "batch_size must be [] or [B] with B >= 1, got 3"),
        ({"price": -0.1}, "price must be a finite number of at least 0, got -0.1"),
        ({"price": float("nan")}, "price must be a finite number of at least 0, got nan"),
        ({"reward": "fame"}, "reward must be one of ['early_exit', 'log_likelihood', 'entropy_relative'], got 'fame'"),
        ({"num_steps": 5000}, "documents must have at least the 5001 bytes of a window, got 440 in document 0"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            make_env(**options)
    for documents, message in [
        ([], "documents must hold at least one text, got none"),
        (["ab", ""], "got 0 in document 1"),
        ("a", "got 1 in"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            ByteBoundaryEnv(model, documents, num_steps=4)
    with pytest.raises(TypeError, match="model must be a UNet, got str"):
        ByteBoundaryEnv("tiny", "some text", num_steps=4)  # type: ignore[arg-type]


def test_unseeded_environments_differ_and_follow_the_global_seed(model):
    def texts() -> list[int]:
        env = ByteBoundaryEnv(model, bytes(range(1, 200)), num_steps=4, batch_size=(20,))
        return env.reset()["byte"].tolist()

    assert texts() != texts()
    torch.manual_seed(0)
    first = texts()
    torch.manual_seed(0)
    assert texts() == first


@torch.no_grad()
def test_numpy_counts_and_other_precisions(model):
    """A NumPy integer is an integer; a bfloat16 model observes in float32 and is drawn from as it is."""
    env = ByteBoundaryEnv(model.bfloat16(), "some text", num_steps=np.int64(5), batch_size=(2,), seed=0)
    check_env_specs(env)
    rollouts = [EnvBase.rollout(env, 5, LearnedBoundaryActor(model)), env.parallel_rollout()]
    assert all(rollout["encoder_state"].dtype == torch.float32 for rollout in rollouts)
    assert all(bool(rollout["logits"].isfinite().all()) for rollout in rollouts)


def test_a_refused_text_changes_nothing(make_env):
    """Texts are looked at before any row starts: those that go on are not touched."""
    env, fresh = make_env(), make_env()
    with pytest.raises(ValueError, match="text must have at least 2 bytes .* got 1 in row 1"):
        fresh.reset(text=["ab", "c", "de"])
    with pytest.raises(RuntimeError, match="step was called before reset"):
        fresh.step(fresh.rand_action(TensorDict(batch_size=(3,))))
    td = env.reset()
    with pytest.raises(ValueError, match="got 0 in row 0"):
        env.reset(td.clone().set("_reset", torch.tensor([[False], [True], [False]])), text=[""])
    after = env.step(td.set("action", torch.zeros(3, dtype=torch.int64)))
    assert after["next", "position"].flatten().tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match=re.escape("reset takes text, got ['texts']")):
        env.reset(texts="ab")
    with pytest.raises(TypeError, match="text must be str or bytes, got int"):
        env.reset(text=[1, 2, 3])


def test_long_given_texts_are_cut_to_a_window(make_env):
    env = make_env(num_steps=3, batch_size=())
    steps = stepped(env, torch.zeros(3, dtype=torch.int64), text="abcdefgh")
    assert bool(steps[-1]["next", "truncated"]) and int(steps[-1]["next", "byte"]) == ord("d")


def test_misuse_of_steps(make_env):
    env = make_env(num_steps=2)
    action = TensorDict({"action": torch.zeros(3, dtype=torch.int64)}, (3,))
    with pytest.raises(RuntimeError, match="step was called before reset"):
        env.step(action.clone())
    td = env.reset()
    with pytest.raises(KeyError, match="step reads 'action', got only"):
        env.step(td.clone())
    with pytest.raises(ValueError, match="action must be on the environment's device, cpu, got meta"):
        env._step(TensorDict({"action": torch.zeros(3, dtype=torch.int64, device="meta")}, (3,)))
    for wrong, message in [
        (torch.full((3,), 2), "action must be 0 (no boundary) or 1 (boundary), got 2"),
        (torch.full((3,), -1), "action must be 0 (no boundary) or 1 (boundary), got -1"),
        (torch.zeros(3, 1, dtype=torch.int64), "action must have shape [3], got [3, 1]"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            env.step(td.clone().set("action", wrong))
    for _ in range(2):
        td = env.step(td.update(action))["next"]
    with pytest.raises(RuntimeError, match=re.escape("step was called after the end of the episode in rows [0, 1, 2]")):
        env.step(td.update(action))
    with pytest.raises(ValueError, match="text must be one text or one per row that starts, 3, got 2"):
        env.reset(text=["ab", "cd"])


def test_rows_that_ended_stay_ended_when_others_are_reset(make_env):
    env = make_env(num_steps=2)
    td = env.reset()
    for _ in range(2):
        td = env.step(td.set("action", torch.ones(3, dtype=torch.int64)))["next"]
    env.reset(td.set("_reset", torch.tensor([[False], [True], [False]])))
    with pytest.raises(RuntimeError, match=re.escape("step was called after the end of the episode in rows [0, 2]")):
        env.step(td.set("action", torch.ones(3, dtype=torch.int64)))


def test_device_is_the_models(make_env, model):
    env = make_env()
    assert env.device == model.embedding.weight.device
    model.to("meta")  # any other device will do
    for start in (env.reset, env.parallel_rollout):
        with pytest.raises(RuntimeError, match="model must stay on the device .* cpu, got meta"):
            start()


@pytest.mark.gpu
def test_specs_on_gpu(model):
    check_env_specs(ByteBoundaryEnv(model.cuda(), TextSource("some text that is long"), num_steps=8, batch_size=(2,)))

"""The environment keeps TorchRL's contract, pays what it says, and refuses misuse."""

from __future__ import annotations

import math
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

from ..each import each, refused

MIDDLE = torch.tensor([[False], [True], [False]])  # resets row 1 of 3


def test_specs(make_env, model):
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
        check_env_specs(ByteBoundaryEnv(UNet(preset("tiny", num_lags=num_lags)), "some text", num_steps=5))
    # A NumPy integer is an integer; a bfloat16 model observes in float32 and is drawn from as it is.
    env = ByteBoundaryEnv(model.bfloat16(), "some text", num_steps=np.int64(5), batch_size=(2,), seed=0)
    check_env_specs(env)
    with torch.no_grad():
        rollouts = [EnvBase.rollout(env, 5, LearnedBoundaryActor(model)), env.parallel_rollout()]
    assert all(rollout["encoder_state"].dtype == torch.float32 for rollout in rollouts)
    assert all(bool(rollout["logits"].isfinite().all()) for rollout in rollouts)
    narrow = UNet(preset("tiny", second_level="routing", num_token_layers=2, width=16)).bfloat16()
    options = {"observe_entropy": True, "reference": "uniform", "seed": 0}
    env = ByteBoundaryEnv(narrow, "some text", num_steps=5, batch_size=(2,), **options)
    check_env_specs(env)
    with torch.no_grad():
        for rollout in (EnvBase.rollout(env, 5), env.parallel_rollout()):
            kinds = {rollout[name].dtype for name in rollout.keys(True, True)}
            assert kinds == {torch.float32, torch.int64, torch.int8, torch.bool}


def test_specs_have_the_ranges_of_the_docstring():
    fields = {"begin_of_text": True, "num_special": 2, "num_lags": 3, "rate_embedding": True, "width": 16}
    model = UNet(preset("tiny", second_level="routing", num_token_layers=2, **fields))
    options = {"observe_entropy": True, "reference": "never"}
    env = ByteBoundaryEnv(model, "some text", num_steps=5, batch_size=(2,), **options)
    spec = env.observation_spec
    assert [spec[name].space.n for name in ("byte", "forced", "second_boundary")] == [258, 2, 2]
    for name, most in (("recent", 1), ("position", 5), ("target_rate", 1)):
        assert (spec[name].space.low == 0).all() and (spec[name].space.high == most).all(), name
    assert {name: [*spec[name].shape[1:]] for name in spec.keys() if spec[name].shape != (2, 1)} == {
        **dict.fromkeys(("byte", "forced", "second_boundary"), []),
        **{"recent": [3], "encoder_state": [16]},
    }
    dtypes = {"byte": torch.int64, "recent": torch.int8, "position": torch.int64}
    dtypes |= dict.fromkeys(("forced", "second_boundary"), torch.bool)
    assert all(spec[name].dtype == dtypes.get(name, torch.float32) for name in spec.keys())
    assert env.action_spec.space.n == 2 and env.action_spec.dtype == torch.int64
    check_env_specs(env)


def stepped(env, actions, **reset):
    """Root and next tensordicts of every step."""
    td, steps = env.reset(**reset), []
    for t in range(actions.shape[-1]):
        steps.append(env.step(td.set("action", actions[..., t])))
        td = steps[-1]["next"].exclude("reward")
    return steps


@each(reward=["early_exit", "log_likelihood", "entropy_relative"])
def test_rewards_follow_the_full_forward(reward, make_env, model):
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


def test_observations_show_what_was_read_and_drawn(make_env):
    env = make_env(batch_size=(), num_steps=6, observe_entropy=True)
    steps = stepped(env, torch.tensor([0, 1, 0, 0, 1, 1]), text="abcdefgh")
    assert ids_to_bytes(torch.stack([s["byte"] for s in steps])) == b"abcdef"
    assert [int(s["position"]) for s in steps] == [0, 1, 2, 3, 4, 5]
    assert [bool(s["forced"]) for s in steps] == [True] + [False] * 5
    assert steps[-1]["next", "recent"].tolist() == [1, 1, 0, 0, 1, 1, 0, 0]  # a_0 = 1 although 0 was asked for
    assert float(steps[0]["final_log_prob"]) == 0.0 > float(steps[0]["next", "final_log_prob"])
    difference = steps[2]["next", "final_log_prob"] - steps[2]["next", "early_log_prob"]
    torch.testing.assert_close(steps[2]["next", "reward"], difference)


def test_documents_terminate_and_windows_truncate(make_env):
    """Five decisions: a text of six bytes ends with the window, and that is the end of the text."""
    env = make_env(batch_size=(), num_steps=5)
    for text, end in [("abcde", "terminated"), ("abcdef", "terminated"), ("abcdefg", "truncated")]:
        steps = stepped(env, torch.zeros(min(5, len(text) - 1), dtype=torch.int64), text=text)
        assert not any(bool(s["next", "done"]) for s in steps[:-1])
        last = steps[-1]["next"]
        assert bool(last["done"]) and int(last["byte"]) == ord(text[len(steps)])
        assert {name for name in ("terminated", "truncated") if bool(last[name])} == {end}


def test_partial_resets_leave_other_rows_alone(make_env):
    """Rows 0 and 2 read on while row 1 starts anew: as if row 1 had never been touched."""
    env, actions = make_env(), (torch.rand(3, 12) < 0.4).long()
    texts = ["first text, long enough", "second text, also long", "third text, long as well"]
    undisturbed = stepped(env, actions, text=texts)
    td = env.reset(text=texts)
    for t in range(12):
        if t == 5:
            td = env.reset(td.set("_reset", MIDDLE), text=["fresh"])
            assert td["position"].flatten().tolist() == [5, 0, 5]
            assert int(td["byte"][1]) == ord("f")
        after = env.step(td.set("action", actions[:, t]))
        others = (x["next", "reward"][::2] for x in (after, undisturbed[t]))
        torch.testing.assert_close(*others, rtol=0, atol=1e-4)
        td = after["next"].exclude("reward")
        if bool(td["done"].any()):
            break
    fresh = stepped(env, actions[:, 5:9], text=["fresh"] * 3)
    torch.testing.assert_close(after["next", "reward"][1], fresh[-1]["next", "reward"][1], rtol=0, atol=1e-4)
    assert bool(after["next", "terminated"][1])


def test_stored_tensors_do_not_change(make_env):
    rollout = EnvBase.rollout(make_env(short=True), 40, break_when_any_done=False)
    assert bool(rollout["next", "done"].any())
    started = rollout["position"][..., 0] == 0
    torch.testing.assert_close(rollout["next", "done"][:, :-1, 0], started[:, 1:])


def test_resets_leave_observations_alone_that_were_handed_out(make_env):
    """A row that starts anew would otherwise change the last step of the row before, in a buffer that keeps it."""
    env = make_env(reward="relative", observe_entropy=True, num_steps=6)
    td = env.reset()
    for _ in range(3):
        after = env.rand_step(td)["next"]
        kept = after.clone()
        td = env.reset(after.exclude("reward").set("_reset", MIDDLE))
        assert int(td["position"][1]) == 0
        for name in after.keys():
            assert torch.equal(after[name], kept[name]), name


def test_observations_may_be_changed_in_place(make_env):
    """What a program does to an observation changes neither another entry nor what a partial reset returns."""
    env, other = (make_env(observe_entropy=True, reference="uniform") for _ in range(2))
    td, expected = env.reset(), other.reset()
    for name in env.observation_spec.keys():
        td[name].fill_(1)
        assert all(torch.equal(td[key], expected[key]) for key in expected.keys() if td[key] is not td[name]), name
        td[name].copy_(expected[name])
    for name in env.observation_spec.keys():
        td[name].fill_(1)
    rows = TensorDict({"_reset": MIDDLE}, [3])
    again, expected = env.reset(rows.clone()), other.reset(rows.clone())
    assert all(torch.equal(again[key], expected[key]) for key in expected.keys())


def test_a_reset_of_no_row_changes_nothing(make_env):
    env = make_env()
    td = env.reset()
    before = env.random_state()
    after = env.begin_texts(torch.zeros(3, dtype=torch.bool), text=["of nobody"] * 3)
    assert all(torch.equal(after[name], td[name]) for name in after) and torch.equal(env.random_state(), before)
    assert len({td[name].data_ptr() for name in ("done", "terminated", "truncated")}) == 3


def test_texts_follow_the_seed(make_env, model):
    def texts(env, resets=20):
        return torch.cat([env.reset()["byte"] for _ in range(resets)]).tolist()

    def unseeded():
        return texts(ByteBoundaryEnv(model, bytes(range(1, 200)), num_steps=4, batch_size=(20,)), 1)

    envs = [make_env(short=True) for _ in range(3)]
    for env, seed in zip(envs, (3, 3, 4), strict=True):
        env.set_seed(seed)
    first, same, other = map(texts, envs)
    assert first == same != other
    assert unseeded() != unseeded()
    torch.manual_seed(0)
    first = unseeded()
    torch.manual_seed(0)
    assert unseeded() == first


def test_refused_arguments(make_env, model):
    for options, words in [
        ({"num_steps": 0}, "num_steps must be an integer of at least 1, got 0"),
        ({"batch_size": (2, 3)}, "batch_size must be [] or [B] with B >= 1, got [2, 3]"),
        ({"batch_size": 3}, "batch_size must be [] or [B] with B >= 1, got 3"),
        *(({"price": p}, f"price must be at least 0 and finite, got {p}") for p in (-0.1, math.inf, math.nan)),
        ({"reward": "fame"}, "or a function (environments and training: also 'relative'), got 'fame'"),
        ({"batch_size": (0,)}, "batch_size must be [] or [B] with B >= 1, got [0]"),
        ({"layout": "tight"}, "layout must be"),
        ({"num_steps": 5000}, "documents must have at least the 5001 bytes of a window, got 440 in document 0"),
    ]:
        refused((lambda options=options: make_env(**options), ValueError, re.escape(words)))
    refused(
        (lambda: ByteBoundaryEnv("tiny", "some text", num_steps=4), TypeError, "model must be a UNet, got str"),
        (lambda: ByteBoundaryEnv(model, 5, num_steps=4), TypeError, "source must be a source of windows, .* got int"),
        (lambda: make_env(price="0.1"), TypeError, "price must be a number, got '0.1'"),
        (
            lambda: ByteBoundaryEnv(model, "a text", num_steps=4, seed="x"),
            ValueError,
            "seed must be an integer .* got 'x'",
        ),
        (  # its mark has the only decision
            lambda: ByteBoundaryEnv(UNet(preset("tiny", begin_of_text=True, num_special=1)), "a text", num_steps=1),
            ValueError,
            "num_steps must be an integer of at least 2, got 1",
        ),
    )
    env = make_env()
    model.to("meta")  # any other device will do
    moved = "model must stay on the device .* cpu, got meta"
    refused((env.reset, RuntimeError, moved), (env.parallel_rollout, RuntimeError, moved))


def test_a_refused_text_changes_nothing(make_env):
    """Texts are checked before any row starts."""
    env, fresh = make_env(), make_env()
    one_byte = "text must have at least 2 bytes .* got 1 in row 1"
    refused(
        (lambda: fresh.reset(text=["ab", "c", "de"]), ValueError, one_byte),
        (lambda: fresh.step(fresh.rand_action(TensorDict(batch_size=(3,)))), RuntimeError, "called before reset"),
    )
    td = env.reset()
    with pytest.raises(ValueError, match="got 0 in row 0"):
        env.reset(td.clone().set("_reset", MIDDLE), text=[""])
    after = env.step(td.set("action", torch.zeros(3, dtype=torch.int64)))
    assert after["next", "position"].flatten().tolist() == [1, 1, 1]
    refused(
        (lambda: env.reset(texts="ab"), TypeError, r"reset takes text, got \['texts'\]"),
        (lambda: env.reset(text=[1, 2, 3]), TypeError, "text must be str or bytes, got int"),
        (lambda: env.reset(text=["ab", "cd"]), ValueError, "text must be one text or one per row .* 3, got 2"),
    )


def test_refused_steps(make_env):
    env = make_env(num_steps=2)
    action = TensorDict({"action": torch.zeros(3, dtype=torch.int64)}, (3,))
    refused((lambda: env.step(action.clone()), RuntimeError, "step was called before reset"))
    td = env.reset()
    on_meta = TensorDict({"action": torch.zeros(3, dtype=torch.int64, device="meta")}, (3,))
    refused(
        (lambda: env.step(td.clone()), KeyError, "step reads 'action', got only"),
        (lambda: env._step(on_meta), ValueError, "action must be on the environment's device, cpu, got meta"),
        (lambda: env.step(td.clone().set("action", torch.full((3,), 2))), ValueError, "or 1 .boundary., got 2"),
        (lambda: env.step(td.clone().set("action", torch.full((3,), -1))), ValueError, "or 1 .boundary., got -1"),
        (lambda: env.step(td.clone().set("action", torch.ones(3, 1).long())), ValueError, r"shape \[3\], got \[3, 1\]"),
    )
    for _ in range(2):
        td = env.step(td.update(action))["next"]
    ended = "step was called after the end of the episode in rows"
    refused((lambda: env.step(td.clone().update(action)), RuntimeError, rf"{ended} \[0, 1, 2\]"))
    env.reset(td.set("_reset", MIDDLE))  # rows that ended stay ended when others are reset
    refused((lambda: env.step(td.clone().update(action)), RuntimeError, rf"{ended} \[0, 2\]"))


@pytest.mark.gpu
def test_specs_on_gpu(model):
    check_env_specs(ByteBoundaryEnv(model.cuda(), TextSource("some text that is long"), num_steps=8, batch_size=(2,)))

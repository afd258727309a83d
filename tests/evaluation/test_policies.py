"""Policies evaluated in batches, against a plain loop over one environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from rltok_rl.agents import BernoulliBoundary, LearnedBoundaryActor, RandomActor, UniformActor
from rltok_rl.envs import ByteBoundaryEnv, ByteBoundaryGym
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import LSTMModule, ProbabilisticActor

from rltok_rl.evaluation import evaluate_policy, mean_and_error
from rltok_rl.models import UNet, preset

from ..each import each, refused

TEXTS = ["to be or not to be", "ab", "a text that is much longer than one window", b"\xff\x00\xff end", "bcdef"]


def after_spaces(observation) -> np.ndarray:
    """A policy on batches and on single observations: after spaces, and after three bytes without a boundary."""
    return (observation["byte"] == ord(" ")) | (observation["recent"][..., :3].sum(-1) == 0)


class Agent:
    """After the interface of Stable-Baselines3; counts the bytes of each text in its state."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        state = np.zeros(len(episode_start), dtype=int) if state is None else state
        state = np.where(episode_start, 0, state + 1)
        assert (state == observation["position"][:, 0]).all() and deterministic
        return after_spaces(observation).astype(int), state


def loop(policy, options, texts) -> list[tuple[float, int, float, int]]:
    """Return, tokens, bits and steps of each text."""
    env, results = ByteBoundaryGym(**options), []
    for text in texts:
        observation, _ = env.reset(options={"text": text})
        total, steps, over = 0.0, 0, False
        while not over:
            observation, reward, terminated, truncated, info = env.step(int(policy(observation)))
            total, steps, over = total + reward, steps + 1, terminated or truncated
        results.append((total, info["num_tokens"], info["bits"], steps))
    return results


MODELS = {
    "plain": {},
    "mark": {"begin_of_text": True, "num_special": 1},
    "token scope": {"byte_scope": "token"},
}


@each(kind=MODELS)
def test_batches_equal_a_plain_loop_over_one_environment(kind):
    """Functions, agents, stepped actors and whole windows; five texts in batches of two."""
    model = UNet(preset("tiny", **MODELS[kind])).eval()
    options = {"model": model, "num_steps": 12, "price": 0.1}
    stepped = TensorDictModule(
        lambda byte, recent: ((byte == ord(" ")) | (recent[..., :3].sum(-1) == 0)).long(),
        in_keys=["byte", "recent"],
        out_keys=["action"],
    )
    policies = [(after_spaces, {}), (lambda seen: bool(after_spaces(seen)), {"batched": False}), (stepped, {})]
    policies.append((Agent(), {"deterministic": True}))
    expected = np.array(loop(after_spaces, options, TEXTS))
    every = np.array(loop(lambda _: 1, options, TEXTS))
    for policy, how in policies:
        result = evaluate_policy(policy, TEXTS, reference="always", num_envs=2, **how, **options)
        for episodes, (returns, tokens, bits, steps) in ((result.policy, expected.T), (result.reference, every.T)):
            np.testing.assert_allclose(episodes.returns, returns, atol=1e-3)
            np.testing.assert_array_equal(episodes.steps, steps)
            np.testing.assert_array_equal(episodes.boundaries.sum(1), tokens)
            np.testing.assert_allclose(episodes.rates, tokens / steps)
            np.testing.assert_allclose(episodes.bits_per_byte, bits / steps, atol=1e-4)
        difference = expected[:, 0] - every[:, 0]
        assert result.summary["returns"]["difference"] == pytest.approx(mean_and_error(difference.tolist()), abs=1e-3)


def test_functions_see_the_boundary_that_is_given():
    """A boundary after each boundary: the first byte has one, although the policy does not draw it."""
    result = evaluate_policy(lambda seen: seen["recent"][:, 0], TEXTS, reference="never", num_envs=2, num_steps=12)
    assert (result.policy.rates == 1).all()


def test_whole_windows_equal_steps_and_references_have_the_rate_of_the_policy():
    options = {"model": UNet(preset("tiny")).eval(), "num_steps": 60}
    result = evaluate_policy("learned", 40, reference="random", num_envs=16, **options)
    again = evaluate_policy(LearnedBoundaryActor(options["model"]), 40, num_envs=16, **options)
    assert result.texts == again.texts and len(set(result.texts)) == 40
    assert torch.equal(result.policy.boundaries, again.policy.boundaries), "the same seed draws the same boundaries"
    rate, uniform, random = (x.rates.mean().item() for x in (result.policy, again.reference, result.reference))
    assert 0.02 < rate < 0.5 and abs(rate - uniform) < 1 / 60 and abs(rate - random) < 0.03
    never = evaluate_policy("never", 40, reference="random", num_envs=16, **options)
    assert torch.equal(never.reference.boundaries, never.policy.boundaries), "first bytes are not drawn"
    actor = UniformActor(0.3)
    actor.draws_windows = False
    parallel = evaluate_policy(UniformActor(0.3), 40, reference=actor, num_envs=16, **options)
    np.testing.assert_allclose(parallel.policy.returns, parallel.reference.returns, atol=1e-3)
    assert parallel.summary["rates"]["difference"] == (0.0, 0.0)
    paired = evaluate_policy("always", 40, reference="never", **options).summary["returns"]
    assert paired["difference"][0] == pytest.approx(paired["policy"][0] - paired["reference"][0])


@torch.no_grad()
def test_a_recurrent_policy_keeps_its_memory():
    torch.manual_seed(0)
    model = UNet(preset("tiny")).eval()
    lstm = LSTMModule(input_size=model.config.width, hidden_size=8, in_key="encoder_state", out_key="memory")
    head = TensorDictModule(nn.Sequential(nn.Linear(8, 1), nn.Flatten(-2)), in_keys=["memory"], out_keys=["logits"])
    options = {"in_keys": ["logits", "forced"], "distribution_class": BernoulliBoundary}
    policy = ProbabilisticActor(TensorDictSequential(lstm, head), **options)
    texts = ["to be or not to be", "that is the question", "whether"]
    result = evaluate_policy(policy, texts, num_envs=2, model=model, num_steps=12, deterministic=True)
    memory: Any = None
    for row, text in enumerate(texts):
        env = ByteBoundaryEnv(model, "a text of thirteen bytes", num_steps=12)
        seen, memory, drawn = env.reset(text=text), None, []
        for _ in range(min(12, len(text) - 1)):
            out, memory = lstm.lstm(seen["encoder_state"][None, None], memory)
            drawn.append(bool(head(TensorDict({"memory": out[0]}, [1]))["logits"] > 0) or not drawn)
            seen = env.step(seen.set("action", torch.tensor(int(drawn[-1]))))["next"]
        assert result.policy.boundaries[row, : len(drawn)].tolist() == drawn
    assert 0 < result.policy.rates.mean() < 1


def test_an_agent_of_stable_baselines_and_a_language():
    sb3 = pytest.importorskip("stable_baselines3")
    from rltok_rl.envs import SB3VecEnv

    options = {"env_id": "rltok_rl/Recall-v0", "num_steps": 10}
    agent = sb3.PPO("MultiInputPolicy", SB3VecEnv(2, **options), n_steps=4, batch_size=8, seed=0)
    result = evaluate_policy(agent, 3, reference="never", deterministic=True, **options)
    env, returns = gymnasium.make(options["env_id"], num_steps=10), []
    for text in result.texts:
        observation, _ = env.reset(options={"text": text})
        returns.append(0.0)
        for _ in range(10):
            action, _ = agent.predict(observation, deterministic=True)
            observation, reward, *_ = env.step(int(action))
            returns[-1] += reward
    np.testing.assert_allclose(result.policy.returns, returns, atol=1e-3)
    words = "policy must have the observations of this environment, .*: give the model and the options"
    refused((lambda: evaluate_policy(agent, 3, num_steps=10, observe_entropy=True), ValueError, words))


def test_table_and_text():
    result = evaluate_policy("always", TEXTS[:2], reference="never", num_steps=12)
    assert result.text() == "t|o| |b|e| |o|r| |n|o|t| " and result.text(1) == "a|b"
    cut = evaluate_policy("never", TEXTS, num_steps=12)
    assert cut.texts == [(text if isinstance(text, bytes) else text.encode())[:13] for text in TEXTS]
    assert cut.text(2) == "a| text that i" and cut.text(4) == "b|cdef"
    lines = str(result).splitlines()
    assert lines[0].split() == ["2", "texts", "always", "never", "difference"]
    assert lines[2].startswith("boundaries per byte  1.0000 ± 0.0000")
    assert "±" not in str(evaluate_policy("always", TEXTS[0], num_steps=12))
    marked = UNet(preset("tiny", begin_of_text=True, num_special=1)).eval()
    assert evaluate_policy("always", "to be", model=marked, num_steps=12).text() == "t|o| |b|e"
    drawn = evaluate_policy("always", 2, model=marked, num_steps=12)
    assert [len(text) for text in drawn.texts] == drawn.policy.steps.tolist() == [12, 12]  # the mark is no byte


def test_policies_by_name_have_their_rate_and_others_their_name():
    half = UNet(preset("tiny", target_rate=0.5)).eval()
    result = evaluate_policy("uniform", "to be or not", reference=after_spaces, model=half, num_steps=12)
    assert result.policy.rates.item() == 6 / 11 and result.reference.policy == "after_spaces"
    always = evaluate_policy("always", "to be or not", reference="random", model=half, num_steps=12)
    assert torch.equal(always.reference.boundaries, always.policy.boundaries)
    shortest = evaluate_policy("never", ["ab"], reference="random", model=half, num_steps=12)  # of first bytes alone
    assert shortest.reference.boundaries.tolist() == shortest.policy.boundaries.tolist()
    agent = evaluate_policy(Agent(), "to be or not", deterministic=True, model=half, num_steps=12)
    assert str(agent).splitlines()[0].split() == ["1", "texts", "Agent", "uniform", "difference"]


def test_agents_are_asked_for_the_likelier_action_if_it_is_wanted(monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr(Agent, "predict", lambda self, seen, state, begins, how: (asked.append(how) or [0] * 2, None))
    for how, options in ((False, {}), (False, {"deterministic": False}), (True, {"deterministic": True})):
        asked.clear()
        evaluate_policy(Agent(), ["to be", "be"], reference="never", num_steps=4, **options)
        assert asked == [how] * 4, options


def test_refusals():
    refused(
        (lambda: evaluate_policy("unifrm", TEXTS), ValueError, "policy must be one of .*'unifrm'; did you mean 'unif"),
        (lambda: evaluate_policy(3, TEXTS), TypeError, "policy must be a name, an actor, an agent or a function, got"),
        (
            lambda: evaluate_policy("never", TEXTS, reference=None),
            TypeError,
            "reference must be a name, .*got NoneType",
        ),
        (lambda: evaluate_policy(nn.Linear(1, 1), TEXTS), TypeError, "policy must read a tensordict: wrap Linear in a"),
        (lambda: evaluate_policy(lambda _: 1, TEXTS), ValueError, r"of shape \[5\], got 1; batched=False calls it"),
        (
            lambda: evaluate_policy(lambda _: [0, 1, 2, 0, 1], TEXTS),
            ValueError,
            r"must return 0 or 1, of shape \[5\], got \[0, 1",
        ),
        (lambda: evaluate_policy("always", ["ab", "a"]), ValueError, "at least 2 bytes each .* got b'a' at 1"),
        (lambda: evaluate_policy("always", 0), ValueError, "texts must be an integer of at least 1, got 0"),
        (lambda: evaluate_policy("always", "tests"), ValueError, "text is the text itself, got 'tests'"),
        (lambda: evaluate_policy("always", TEXTS, num_stpes=3), TypeError, "'num_stpes'; .*did you mean 'num_steps'"),
        (lambda: evaluate_policy("always", TEXTS, env_id="Recall-v0"), ValueError, "env_id must be one of .*'Recall"),
    )


def test_texts_and_draws_follow_the_seed_alone():
    """In any state of torch's generator, which is not seeded."""
    options = {"num_envs": 2, "num_steps": 12, "reference": "random"}
    results, numbers = [], set()
    for seed in (3, 3, 4):
        torch.manual_seed(len(results))
        results.append(evaluate_policy("learned", 5, seed=seed, **options))
        numbers.add(torch.rand(()).item())
    assert len(numbers) == 3
    first, same, other = results
    assert first.texts == same.texts != other.texts and all(len(text) == 13 for text in first.texts)
    for name in ("policy", "reference"):
        drawn = [getattr(result, name).boundaries for result in results]
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    first, other = (evaluate_policy(RandomActor(0.5), TEXTS, seed=seed, **options) for seed in (3, 4))
    for name in ("policy", "reference"):  # of the same texts
        assert not torch.equal(getattr(first, name).boundaries, getattr(other, name).boundaries)
    given = {"reference": "uniform", "num_envs": 32, "deterministic": False, "batched": True, "seed": 0}
    texts = TEXTS * 7  # more than a batch
    plain, same = (evaluate_policy(RandomActor(0.5), texts, num_steps=12, **how) for how in ({}, given))
    for name in ("policy", "reference"):  # by default
        assert torch.equal(getattr(plain, name).boundaries, getattr(same, name).boundaries)
    assert len(evaluate_policy("never", num_steps=2).texts) == 64
    documents = ["abc", "de", "a document that is cut"]
    short = evaluate_policy("always", 9, text=documents, short_documents="whole", num_steps=5, num_envs=4)
    assert set(short.texts) <= {b"abc", b"de", *(documents[2].encode()[n : n + 6] for n in range(17))}
    assert {b"abc", b"de"} & set(short.texts)


def test_references_are_read_as_the_policy_is():
    """Whatever a policy is, it does not differ from itself: on one text, at its target rate, with its options."""
    model = UNet(preset("tiny", rate_embedding=True)).eval()
    torch.nn.init.normal_(model.rate_embedding.weight, std=0.5)
    options = {"model": model, "num_steps": 8, "num_envs": 2, "target_rates": (0.05, 0.6)}
    texts, stepped = ["to be or not to be"] * 3, RandomActor(0.3)
    stepped.draws_windows = False
    pairs = (
        ("learned", LearnedBoundaryActor(model), {}),
        ("learned", "learned", {"deterministic": True}),
        (RandomActor(0.3), stepped, {}),  # whole windows draw what steps draw
        (after_spaces, after_spaces, {}),
        (lambda seen: bool(after_spaces(seen)), lambda seen: after_spaces(seen).item(), {"batched": False}),
        (lambda seen: np.ones(2, int), "always", {}),  # two passes read each text at one rate
        (Agent(), Agent(), {"deterministic": True}),
    )
    for policy, reference, how in pairs:
        result = evaluate_policy(policy, texts, reference=reference, **how, **options)
        assert torch.equal(result.policy.boundaries, result.reference.boundaries), policy
        torch.testing.assert_close(result.policy.nats, result.reference.nats, atol=1e-3, rtol=0)
        torch.testing.assert_close(result.policy.returns, result.reference.returns, atol=1e-3, rtol=0)
    always = evaluate_policy("always", texts, **options).policy
    assert len({round(nats, 3) for nats in always.nats.tolist()}) == 3  # each text has a rate of its own

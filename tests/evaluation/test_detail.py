"""Per-byte metrics: costs of an evaluation; rewards, returns and advantages by their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.evaluation import read_text, summarise
from rltok_rl.evaluation.detail import read_detail
from rltok_rl.models import UNet

from .conftest import small_model

TEXT = "To be, or not to be,\nthat is the question: é € 日本"


@pytest.fixture(scope="module")
def model() -> UNet:
    return small_model().double()


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def passes(model: UNet, draws: int, context: int) -> list:
    """The text, read again and again with the same random numbers one after the other."""
    generator = seeded()
    return [read_text(model, TEXT, context=context, generator=generator) for _ in range(draws)]


def returns_by_hand(rewards: list[float], context: int, gamma: float) -> list[float]:
    returns = [0.0] * len(rewards)
    for t in reversed(range(len(rewards))):
        ends = t + 1 == len(rewards) or (t + 1) % context == 0
        returns[t] = rewards[t] + (0.0 if ends else gamma * returns[t + 1])
    return returns


def test_costs_and_boundaries_are_those_of_an_evaluation(model):
    for context in (7, 16, 100):
        detail = read_detail(model, TEXT, context=context, gamma=0.9, draws=2, generator=seeded())
        reading = read_text(model, TEXT, context=context, generator=seeded())
        assert torch.equal(detail.boundaries[:-1], reading.boundaries)
        assert torch.equal(detail.forced[:-1], reading.forced)
        torch.testing.assert_close(detail.final_bits[1:] * math.log(2), reading.final_nats, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(detail.early_bits[1:] * math.log(2), reading.early_nats, rtol=1e-9, atol=1e-9)
        expected = summarise(reading)
        for name, value in detail.summary.items():
            assert value == pytest.approx(expected[name.replace("bits_per_byte", "corpus_bits_per_byte")]), name
        assert math.isnan(detail.final_bits[0]) and math.isnan(detail.rewards[-1]) and not detail.boundaries[-1]


def test_probabilities_are_those_of_the_policy_and_forced_bytes_have_none(model):
    detail = read_detail(model, TEXT, context=16, gamma=0.9, draws=2, generator=seeded())
    size = len(TEXT.encode())
    for start in range(0, size - 1, 16):
        end = min(start + 16, size - 1)
        window = torch.tensor([list(TEXT.encode()[start:end])])
        logits = model(window, detail.boundaries[None, start:end]).boundary_logits[0, 1:]
        torch.testing.assert_close(detail.probabilities[start + 1 : end], logits.sigmoid().double())
    assert detail.probabilities.isnan().nonzero().squeeze(1).tolist() == [*range(0, size - 1, 16), size - 1]


def test_rewards_and_returns_by_hand(model):
    detail = read_detail(model, TEXT, context=16, gamma=0.9, price=0.25, draws=2, generator=seeded())
    first = passes(model, 1, 16)[0]
    rewards = first.early_nats - first.final_nats - 0.25 * first.boundaries
    torch.testing.assert_close(detail.rewards[:-1], rewards, rtol=1e-8, atol=1e-8)
    by_hand = torch.tensor(returns_by_hand(rewards.tolist(), 16, 0.9), dtype=torch.float64)
    torch.testing.assert_close(detail.returns[:-1], by_hand, rtol=1e-8, atol=1e-8)


def test_rewards_are_those_of_the_environment(model):
    """One window, the boundaries given to the environment as actions, byte by byte."""
    text = TEXT.encode()[:24]
    detail = read_detail(model, text, context=64, gamma=0.9, reward="entropy_relative", draws=2, generator=seeded())
    env = ByteBoundaryEnv(model, text, num_steps=len(text) - 1, batch_size=(1,), reward="entropy_relative")
    state = env.reset()
    for t in range(len(text) - 1):
        stepped = env.step(state.set("action", detail.boundaries[None, t].to(env.action_spec.dtype)))
        assert stepped["next", "reward"].item() == pytest.approx(detail.rewards[t].item(), abs=1e-4), t
        state = stepped["next"]


def test_leave_one_out_takes_the_mean_of_the_other_draws(model):
    draws = 3
    detail = read_detail(model, TEXT, context=16, gamma=0.9, draws=draws, generator=seeded())
    rows = [returns_by_hand((one.early_nats - one.final_nats).tolist(), 16, 0.9) for one in passes(model, draws, 16)]
    for t, value in enumerate(detail.advantages.tolist()):
        if t % 16 == 0 or t == len(rows[0]):
            assert math.isnan(value)
        else:
            others = [row[t] for row in rows[1:]]
            assert value == pytest.approx(rows[0][t] - sum(others) / len(others), abs=1e-7)


def test_other_estimators(model):
    options = {"context": 16, "gamma": 0.5}
    plain = read_detail(model, TEXT, baseline="none", generator=seeded(), **options)
    free = ~plain.advantages.isnan()
    assert torch.equal(plain.advantages[free], plain.returns[free])
    normal = read_detail(model, TEXT, baseline="z_score", generator=seeded(), **options)
    assert normal.advantages[free].mean().item() == pytest.approx(0, abs=1e-6)
    assert normal.advantages[free].std(unbiased=False).item() == pytest.approx(1, abs=1e-5)
    shrunk = read_detail(model, TEXT, baseline="batch_mean", draws=4, generator=seeded(), **options)
    whole = read_detail(model, TEXT, baseline="leave_one_out", draws=4, generator=seeded(), **options)
    torch.testing.assert_close(shrunk.advantages[free] * 4 / 3, whole.advantages[free], rtol=1e-8, atol=1e-8)


def test_greedy_boundaries_are_shown_and_compared_with_draws(model):
    detail = read_detail(model, TEXT, context=16, gamma=0.9, greedy=True, generator=seeded())
    reading = read_text(model, TEXT, context=16, greedy=True)
    assert torch.equal(detail.boundaries[:-1], reading.boundaries)
    assert detail.advantages[1:16].abs().max() > 0


def test_rules_have_no_probabilities_and_no_advantages(model):
    for name in ("spacebyte", "hnet", "entropy-threshold"):
        segmenter = make_segmenter(name, model, **({"predictor": "early_exit"} if "entropy" in name else {}))
        detail = read_detail(model, TEXT, context=16, gamma=0.9, segmenter=segmenter.double().eval())
        assert detail.probabilities.isnan().all() and detail.advantages.isnan().all(), name
        assert not detail.returns[:-1].isnan().any(), name
        assert bool(detail.scores[1:16].isnan().all()) == (name == "spacebyte"), name
    drawn = make_segmenter("bernoulli", model, rate=0.4).eval()
    detail = read_detail(model, TEXT, context=16, gamma=0.9, segmenter=drawn, generator=seeded())
    assert detail.probabilities[1].item() == pytest.approx(0.4, abs=1e-6)
    assert not detail.advantages[1:16].isnan().any()

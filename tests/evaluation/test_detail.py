"""Per-byte metrics: costs of an evaluation; rewards, returns and advantages by their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.evaluation import read_text, summarise
from rltok_rl.evaluation.detail import COMPARING, read_detail
from rltok_rl.functional.baselines import BASELINES
from rltok_rl.models import UNet

from ..each import each
from ..states import seeded
from .conftest import small_model

TEXT = "To be, or not to be,\nthat is the question: é € 日本"


@pytest.fixture(scope="module")
def model() -> UNet:
    return small_model().double()


def returns_by_hand(rewards: list[float], context: int, gamma: float) -> list[float]:
    returns = [0.0] * len(rewards)
    for t in reversed(range(len(rewards))):
        ends = t + 1 == len(rewards) or (t + 1) % context == 0
        returns[t] = rewards[t] + (0.0 if ends else gamma * returns[t + 1])
    return returns


@each(marked=[False, True], context=[7, 16, 100])
def test_rewards_returns_and_advantages_by_hand(marked, context):
    """Of three readings with random numbers one after the other; the first is shown, and compared with the others."""
    model = small_model(begin_of_text=marked, num_special=int(marked)).double()
    detail = read_detail(model, TEXT, context=context, gamma=0.9, price=0.25, draws=3, generator=seeded(3))
    generator = seeded(3)
    readings = [read_text(model, TEXT, context=context, generator=generator) for _ in range(3)]
    rewards = [(one.early_nats - one.final_nats - 0.25 * one.boundaries).tolist() for one in readings]
    returns = [returns_by_hand(row, context, 0.9) for row in rewards]
    advantages = [mine - (one + other) / 2 for mine, one, other in zip(*returns, strict=True)]
    expected = [math.nan if t % context == 0 and not marked else advantage for t, advantage in enumerate(advantages)]
    undecided = [] if marked else [*range(0, len(advantages), context)]  # after a mark, first bytes are decisions, too
    assert detail.probabilities.isnan().nonzero().squeeze(1).tolist() == [*undecided, len(advantages)]
    assert detail.rewards.tolist() == pytest.approx([*rewards[0], math.nan], nan_ok=True)
    assert detail.returns.tolist() == pytest.approx([*returns[0], math.nan], nan_ok=True)
    assert detail.advantages.tolist() == pytest.approx([*expected, math.nan], nan_ok=True)
    metrics = summarise(readings[0])
    for name, value in detail.summary.items():
        assert value == pytest.approx(metrics[name.replace("bits_per_byte", "corpus_bits_per_byte")]), name
    assert math.isnan(detail.final_bits[0]) and not detail.boundaries[-1]


def test_probabilities_are_those_of_the_policy_and_forced_bytes_have_none(model):
    detail = read_detail(model, TEXT, context=16, gamma=0.9, draws=2, generator=seeded(3))
    size = len(TEXT.encode())
    for start in range(0, size - 1, 16):
        end = min(start + 16, size - 1)
        window = torch.tensor([list(TEXT.encode()[start:end])])
        logits = model(window, detail.boundaries[None, start:end]).boundary_logits[0, 1:]
        torch.testing.assert_close(detail.probabilities[start + 1 : end], logits.sigmoid().double())
    assert detail.probabilities.isnan().nonzero().squeeze(1).tolist() == [*range(0, size - 1, 16), size - 1]


def test_rewards_are_those_of_the_environment(model):
    """One window, the boundaries given to the environment as actions, byte by byte."""
    text = TEXT.encode()[:24]
    detail = read_detail(model, text, context=64, gamma=0.9, reward="entropy_relative", draws=2, generator=seeded(3))
    env = ByteBoundaryEnv(model, text, num_steps=len(text) - 1, batch_size=(1,), reward="entropy_relative")
    state = env.reset()
    for t in range(len(text) - 1):
        stepped = env.step(state.set("action", detail.boundaries[None, t].to(env.action_spec.dtype)))
        assert stepped["next", "reward"].item() == pytest.approx(detail.rewards[t].item(), abs=1e-4), t
        state = stepped["next"]


def test_relative_rewards_are_compared_at_the_given_rate():
    rated = small_model(rate_embedding=True).double()
    torch.nn.init.normal_(rated.rate_embedding.weight, std=0.5)
    options = {"context": 16, "gamma": 0.9, "draws": 2, "target_rate": 0.6, "price": 0.25}
    plain = read_detail(rated, TEXT, generator=seeded(3), **options)
    reading = read_text(rated, TEXT, context=16, target_rate=0.6, generator=seeded(3))
    assert torch.equal(plain.boundaries[:-1], reading.boundaries)
    torch.testing.assert_close(plain.final_bits[1:] * math.log(2), reading.final_nats)
    even = read_text(rated, TEXT, context=16, segmenter=make_segmenter("uniform", rated, rate=0.6))
    relative = read_detail(rated, TEXT, generator=seeded(3), reward="relative", **options)
    expected = plain.rewards[:-1] - (even.early_nats - even.final_nats - 0.25 * even.boundaries)
    torch.testing.assert_close(relative.rewards[:-1], expected)
    torch.testing.assert_close(relative.advantages, plain.advantages, equal_nan=True)  # all draws are compared alike


def test_advantages_are_those_of_the_baseline_over_the_free_decisions(model):
    """Baselines that compare draws read the text as often as asked, others once."""
    forced = torch.arange(len(TEXT.encode()) - 1) % 16 == 0
    for name, baseline in BASELINES.items():
        draws, reads = seeded(3), 3 if name in COMPARING else 1
        detail = read_detail(model, TEXT, context=16, gamma=0.9, baseline=name, draws=3, generator=draws)
        generator = seeded(3)
        readings = [read_text(model, TEXT, context=16, generator=generator) for _ in range(reads)]
        assert torch.equal(draws.get_state(), generator.get_state()), name
        gains = [(one.early_nats - one.final_nats).tolist() for one in readings]
        returns = torch.tensor([returns_by_hand(row, 16, 0.9) for row in gains], dtype=torch.float64)
        expected = baseline(returns, mask=(~forced).expand_as(returns))[0].masked_fill(forced, math.nan)
        torch.testing.assert_close(detail.advantages[:-1], expected, equal_nan=True)
    for estimator, name in (("discounted_return", "none"), ("leave_one_out", "leave_one_out")):
        with pytest.warns(DeprecationWarning, match="estimator is now baseline") as warned:
            former = read_detail(model, TEXT, context=16, gamma=0.9, estimator=estimator, generator=seeded(3))
        assert warned[0].filename == __file__
        same = read_detail(model, TEXT, context=16, gamma=0.9, baseline=name, generator=seeded(3))
        torch.testing.assert_close(former.advantages, same.advantages, equal_nan=True)
    with pytest.warns(DeprecationWarning, match="baseline 'batch_centred' is now 'batch_mean'") as warned:
        former = read_detail(model, TEXT, context=16, gamma=0.9, baseline="batch_centred", generator=seeded(3))
    assert warned[0].filename == __file__
    same = read_detail(model, TEXT, context=16, gamma=0.9, baseline="batch_mean", draws=4, generator=seeded(3))
    torch.testing.assert_close(former.advantages, same.advantages, equal_nan=True)  # of four draws by default


def test_greedy_boundaries_are_shown_and_compared_with_draws(model):
    detail = read_detail(model, TEXT, context=16, gamma=0.9, greedy=True, generator=seeded(3))
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
        assert detail.scores[detail.forced].isnan().all(), name
    for fidelity in ("paper", "released"):  # the second byte of the released rule is infinite, too
        options = {"predictor": "early_exit", "threshold_add": 0.0, "fidelity": fidelity}
        risen = make_segmenter("entropy-threshold", model, **options).double().eval()
        scores = read_detail(model, TEXT, context=16, gamma=0.9, segmenter=risen).scores
        assert not scores.isinf().any() and scores.nan_to_num().abs().max() < 100  # no score where entropy did not rise
        assert 5 < int(scores.isnan().sum()) < len(scores)
    drawn = make_segmenter("bernoulli", model, rate=0.4).eval()
    detail = read_detail(model, TEXT, context=16, gamma=0.9, segmenter=drawn, generator=seeded(3))
    assert detail.probabilities[1].item() == pytest.approx(0.4, abs=1e-6)
    assert not detail.advantages[1:16].isnan().any()

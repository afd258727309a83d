"""Regressed effects of decisions: by hand, against the exact gradient, with masks, memories and resumed runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.baselines import batch_mean
from rltok_rl.functional.linear_effect import EffectSums, linear_effect
from rltok_rl.functional.returns import discounted_return
from rltok_rl.objectives import LinearEffect

from ..each import each
from ..training.processes import make
from .conftest import make_model, make_rollout


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def decisions(*shape: int) -> tuple[Tensor, Tensor]:
    probs = seeded(*shape).sigmoid()
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) < probs, probs


def test_linear_effects_are_found_exactly_and_advantages_are_those_of_all_actions():
    features, weights = seeded(4, 30, 3), torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    drawn, probs = decisions(4, 30)
    effects = features @ weights
    returns = (drawn.double() - probs) * effects
    advantages, state = linear_effect(returns, features, drawn, probs, EffectSums.empty(3), ridge=1e-12)
    torch.testing.assert_close(advantages, torch.where(drawn, probs, probs - 1) * effects, rtol=1e-8, atol=1e-8)
    logits = probs.logit().requires_grad_()
    policy = torch.distributions.Bernoulli(logits=logits)
    (policy.log_prob(drawn.double()) * advantages).sum().backward()
    torch.testing.assert_close(logits.grad, probs * (1 - probs) * effects, rtol=1e-8, atol=1e-8)
    assert state.squares.shape == (3, 3)


def test_the_mean_gradient_is_exact_if_effects_are_linear_and_returns_are_noisy():
    """Noise of the returns, and what later decisions add, average out over a long memory."""
    features = torch.cat((seeded(64, 20, 2), torch.ones(64, 20, 1).double()), -1)
    weights = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    generator, state = torch.Generator().manual_seed(1), EffectSums.empty(3)
    probs = (0.5 * features[..., 0]).sigmoid()
    for _ in range(60):
        drawn = torch.rand(probs.shape, generator=generator, dtype=torch.float64) < probs
        noise = 3 * torch.randn(probs.shape, generator=generator, dtype=torch.float64)
        returns = (drawn.double() - probs) * (features @ weights) + noise
        advantages, state = linear_effect(returns, features, drawn, probs, state, decay=1.0, ridge=1e-9)
    fitted = torch.linalg.solve(state.squares, state.products)
    torch.testing.assert_close(fitted, weights, atol=0.06, rtol=0)
    score = drawn.double() - probs
    torch.testing.assert_close(score * advantages, probs * (1 - probs) * (features @ fitted), atol=1e-6, rtol=1e-6)


def test_what_is_masked_counts_nowhere():
    features, (drawn, probs) = seeded(3, 8, 2), decisions(3, 8)
    returns, mask = seeded(3, 8), torch.arange(8).expand(3, 8) > 2
    expected, state = linear_effect(
        *(x[:, 3:] for x in (returns, features, drawn, probs)), EffectSums.empty(2), ridge=0.1
    )
    poisoned = [x.masked_fill(~mask, torch.nan) for x in (returns, probs)]
    hidden = features.masked_fill(~mask.unsqueeze(-1), torch.nan)
    got, same = linear_effect(poisoned[0], hidden, drawn, poisoned[1], EffectSums.empty(2), ridge=0.1, mask=mask)
    torch.testing.assert_close(got[:, 3:], expected)
    assert not got[:, :3].any()
    torch.testing.assert_close(same.squares, state.squares)
    nothing, _ = linear_effect(returns, 0 * features, drawn, probs, EffectSums.empty(2))
    assert not nothing.any(), "features that are always 0 have no effect"


def test_the_memory_decays():
    features, (drawn, probs), returns = seeded(2, 6, 2), decisions(2, 6), seeded(2, 6)
    _, once = linear_effect(returns, features, drawn, probs, EffectSums.empty(2))
    _, twice = linear_effect(returns, features, drawn, probs, once, decay=0.5)
    torch.testing.assert_close(twice.products, 1.5 * once.products)
    _, fresh = linear_effect(returns, features, drawn, probs, once, decay=0.0)
    torch.testing.assert_close(fresh.squares, once.squares)
    for state, words in ((None, "must be EffectSums, got NoneType"), (EffectSums.empty(3), "hold the 2 features")):
        with pytest.raises((TypeError, ValueError), match=words):
            linear_effect(returns, features, drawn, probs, state)


def test_the_estimator_reads_the_input_of_the_policy_and_learns_in_training_mode_alone():
    model = make_model()
    rollout = make_rollout(model, num_rows=4, num_steps=11).detach()
    estimator = LinearEffect(model, gamma=0.8, baseline="batch_mean", ridge=0.1)
    first = estimator(rollout.copy())["advantage"].squeeze(-1)
    assert estimator.squares.diagonal()[: model.config.width].gt(0).all() and not first[rollout["forced"]].any()
    drawn = rollout["action"].bool() | rollout["forced"]
    lags = [torch.nn.functional.pad(drawn, (k, 0))[:, :11] for k in range(1, model.config.num_lags + 1)]
    features = torch.cat((rollout["encoder_state"], torch.stack((torch.ones(4, 11), *lags), -1)), -1)
    returns = batch_mean(discounted_return(rollout["next", "reward"].squeeze(-1), 0.8))
    probs = rollout["logits"].sigmoid()
    state = EffectSums.empty(features.shape[-1])
    expected, _ = linear_effect(returns, features, drawn, probs, state, ridge=0.1, mask=~rollout["forced"])
    torch.testing.assert_close(first, expected)
    before = estimator.products.clone()
    estimator.eval()(rollout.copy())
    assert torch.equal(estimator.products, before) and {"squares", "products"} <= set(estimator.state_dict())
    assert estimator.flops(100.0, 20.0) == 200.0 * len(before) * (len(before) + 2)


@each(options=[{}, {"micro_batches": 2}])
def test_training_adds_a_batch_per_update(options):
    trainer = make(estimator="linear_effect", baseline="batch_mean", updates=3, **options)
    estimator = trainer.loss.terms["policy"]._value_estimator
    sizes = []
    for _ in range(3):
        metrics = trainer.update()
        sizes.append(float(estimator.squares.trace()))
    assert sizes[0] > 0 and 1.5 < sizes[1] / sizes[0] < 2.5 and torch.isfinite(torch.tensor(metrics["loss"]))

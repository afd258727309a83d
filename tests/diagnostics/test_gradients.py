"""The closed form of the policy gradient, and what is signal in it."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.diagnostics.exact import exact_head_gradient
from rltok_rl.diagnostics.gradient_quality import policy_gradient, signal_to_noise

from .conftest import opinionated


@pytest.mark.parametrize("num_lags", [0, 3])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_closed_form_is_what_backpropagation_gives(training, num_lags):
    model = opinionated(num_lags=num_lags).train(training)
    env = ByteBoundaryEnv(model, "so long lives this and this gives life to thee " * 3, num_steps=20, batch_size=(4,))
    rollout = env.parallel_rollout(LearnedBoundaryActor(model))
    advantages = torch.randn(4, 20)
    loss = -(rollout["action_log_prob"] * advantages).mean()
    (expected,) = torch.autograd.grad(loss, model.boundary_head.projection.weight)
    torch.testing.assert_close(policy_gradient(model, rollout, advantages), expected.flatten(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reward", ["log_likelihood", "early_exit", "entropy_relative"])
def test_the_score_function_is_exact_when_all_strings_are_weighed(model, reward):
    """E[mean_t log pi(a_t) G_t] has the exact gradient, whatever the text pays beside the boundaries."""
    model = model.double()
    rollouts = enumerate_rollouts(model, ["to be, o", "question"], reward=reward)
    returns = rollouts["next", "reward"].squeeze(-1).flip(-1).cumsum(-1).flip(-1)
    weight = rollouts["log_weight"].exp() * rollouts.shape[1]  # the mean over strings becomes the expectation
    found = policy_gradient(model, rollouts, returns * weight).mean(0)
    torch.testing.assert_close(found, exact_head_gradient(model, ["to be, o", "question"]))


def test_signal_and_noise_of_known_gaussians():
    """Mean (3, 4), covariance diag(4, 1) in 50 dimensions beyond: signal 25, noise 5 + 50."""
    torch.manual_seed(0)
    count = 4000
    noise = torch.randn(count, 52) * torch.tensor([2.0, *[1.0] * 51])
    found = signal_to_noise(noise + torch.tensor([3.0, 4.0, *[0.0] * 50]))
    assert found.signal == pytest.approx(25, rel=0.03)
    assert found.noise == pytest.approx(55, rel=0.03)
    assert found.ratio == pytest.approx(25 / 55, abs=5 * found.error)


def test_noise_alone_is_no_signal():
    """Over many sets of repetitions the ratio scatters around 0, as widely as its error says."""
    torch.manual_seed(0)
    found = [signal_to_noise(torch.randn(20, 30)) for _ in range(200)]
    ratios = torch.tensor([one.ratio for one in found])
    errors = torch.tensor([one.error for one in found])
    assert abs(ratios.mean()) < 4 * ratios.std() / 200**0.5  # 4 standard errors: 6 in 100,000
    assert 0.7 < errors.mean() / ratios.std() < 1.5


def test_too_few_repetitions_a_bias_and_a_wrong_shape_are_refused(model):
    for shape in ((2, 5), (5,)):
        with pytest.raises(ValueError, match=r"gradients must be \[K >= 3, P\]"):
            signal_to_noise(torch.zeros(shape))
    rollout = enumerate_rollouts(model, "abc")
    with pytest.raises(ValueError, match=r"advantages must have the shape of logits, \[1, 2, 2\], got \[2, 2\]"):
        policy_gradient(model, rollout, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="boundary_bias=False"):
        policy_gradient(opinionated(boundary_bias=True), rollout, torch.zeros(1, 2, 2))

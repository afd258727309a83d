"""Enumeration and exact gradients, against finite differences and the environment."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.diagnostics.enumeration import boundary_strings, enumerate_rollouts
from rltok_rl.diagnostics.exact import exact_gradient
from rltok_rl.functional.rewards import REWARDS
from rltok_rl.sampling import sample_boundaries
from rltok_rl.text import text_to_ids

from .conftest import opinionated

TEXTS = ["to be, o", "question"]


def test_strings_are_all_different_and_begin_with_a_boundary():
    for num_steps in (1, 2, 7):
        strings = boundary_strings(num_steps)
        assert len({tuple(s) for s in strings.tolist()}) == 2 ** (num_steps - 1) == len(strings)
        assert strings[:, 0].all()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("reward", list(REWARDS))
def test_an_enumerated_rollout_is_the_environments(model, reward, training):
    """The environment is the reference: same keys where both have them, same values to float32."""
    model.train(training)
    actions = boundary_strings(7).long()
    env = ByteBoundaryEnv(
        model, "x" * 20, num_steps=7, batch_size=(64,), reward=reward, price=0.1, observe_entropy=True
    )
    theirs = env.parallel_rollout(LearnedBoundaryActor(model), actions=actions, text=TEXTS[0])
    ours = enumerate_rollouts(model, TEXTS, reward=reward, price=0.1)[0]
    here = "byte recent position forced encoder_state action logits entropy action_log_prob early_entropy".split()
    following = "reward final_log_prob early_log_prob byte recent position forced done encoder_state".split()
    for name in (*here, *(("next", name) for name in following)):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_weights_are_the_probabilities_of_the_strings(model):
    model = model.double()
    rollouts = enumerate_rollouts(model, TEXTS)
    weights = rollouts["log_weight"][..., 0].exp()
    torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=torch.float64))
    # Independent of log-probabilities: how often the sampler draws each string. 4 standard errors, 64 strings.
    states = model.encode(torch.stack([text_to_ids(t) for t in TEXTS]))[:1, :-1]
    count = 40_000
    base, lags = (x.expand(count, *x.shape[1:]) for x in model.boundary_terms(states))
    drawn = sample_boundaries(base, lags, cap=model.boundary_cap)
    number = (drawn[:, 1:].long() * 2 ** torch.arange(5, -1, -1)).sum(1)
    seen = torch.bincount(number, minlength=64) / count
    error = (weights[0] * (1 - weights[0]) / count).sqrt()
    assert ((seen - weights[0]).abs() <= 4.5 * error + 1 / count).all()


def expected_loss(model):
    """The mean over all strings and texts, in nats per byte."""
    rollouts = enumerate_rollouts(model, TEXTS)
    nats = -rollouts["next", "final_log_prob"].squeeze(-1).mean(-1)
    return (rollouts["log_weight"][..., 0].exp() * nats).sum(-1).mean()


@pytest.mark.parametrize("options", [{}, {"pooling": "mean"}, {"upsampling": "deviation"}, {"num_lags": 0}], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_every_parameters_gradient_is_a_finite_difference(options, training):
    """Central differences along one random direction per parameter."""
    model = opinionated(**options).train(training).double()
    found = exact_gradient(model, TEXTS)
    torch.testing.assert_close(found.loss, expected_loss(model).detach())
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        differences = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter.add_(step * direction)
                differences.append(expected_loss(model).item())
                parameter.sub_(step * direction)
        numeric = (differences[0] - differences[1]) / 2e-5
        assert (found.total[name] * direction).sum().item() == pytest.approx(numeric, rel=1e-5, abs=1e-8), name


def test_each_half_reaches_what_it_should(model):
    found = exact_gradient(model, TEXTS)
    reached = {name.split(".")[0] for name, gradient in found.policy.items() if gradient.abs().max() > 0}
    assert reached == {"embedding", "encoder", "encoder_norm", "boundary_head"}
    reached = {name.split(".")[0] for name, gradient in found.likelihood.items() if gradient.abs().max() > 0}
    assert reached == {"embedding", "encoder", "token_layers", "decoder", "decoder_norm", "final_head"}


def test_a_price_is_paid_for_every_boundary(model):
    """The difference of the losses is the price times the expected rate; predictions have the same gradient."""
    free, charged = (exact_gradient(model, TEXTS, price=price) for price in (0.0, 1.0))
    rollouts = enumerate_rollouts(model.double(), TEXTS)
    rate = (rollouts["log_weight"][..., 0].exp() * rollouts["action"].double().mean(-1)).sum(1).mean()
    torch.testing.assert_close(charged.loss - free.loss, rate)
    torch.testing.assert_close(charged.likelihood, free.likelihood)


def test_the_model_is_left_alone(model):
    before = {name: p.clone() for name, p in model.named_parameters()}
    exact_gradient(model, TEXTS[0])
    for name, p in model.named_parameters():
        assert p.dtype == torch.float32 and p.grad is None
        assert torch.equal(p, before[name])


def test_what_cannot_be_enumerated_is_refused(model):
    for texts, message in (
        ("x" * 30, r"num_steps must lie in 1..16 to be enumerated .*, got 29"),
        ("a", "texts must have at least 2 bytes .*, got 1"),
        (["ab", "abc"], r"texts must be at least one, all of one length, got lengths \[2, 3\]"),
        ([], r"got lengths \[\]"),
        (torch.full((1, 5), 999), r"byte_ids must lie in 0\.\.255, got 999 at index \[0, 0\]"),
        (torch.rand(1, 5), "byte_ids must be an integer tensor, got torch.float32"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            exact_gradient(model, texts)
    with pytest.raises(ValueError, match=r"num_steps must lie in 1\.\.16 to be enumerated .* got 30"):
        boundary_strings(30)
    with pytest.raises(ValueError, match=r"reward must be one of .*got 'gain'"):
        enumerate_rollouts(model, TEXTS, reward="gain")
    narrow = torch.tensor([list(b"to be")], dtype=torch.uint8)
    torch.testing.assert_close(exact_gradient(model, narrow).loss, exact_gradient(model, "to be").loss)

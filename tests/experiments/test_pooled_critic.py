"""The critic that pools tokens: what it reads, and that its advantages are those of any critic."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies.pooled_critic import PooledCritic, PooledCriticAdvantage
from rltok_rl.experiments.studies.suite_entries import cell_config
from torch import Tensor

from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.diagnostics.exact import exact_head_gradient
from rltok_rl.diagnostics.gradient_quality import policy_gradient

from ..each import each
from ..objectives.conftest import make_model, make_rollout


def make_critic(model) -> PooledCritic:
    critic = PooledCritic(model.config, hidden=8)
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return critic


def values(critic: PooledCritic, rollout) -> Tensor:
    return critic(rollout.select(*critic.in_keys))["state_value"].squeeze(-1).detach()


def test_values_are_those_of_a_loop_over_bytes():
    model = make_model()
    rollout, critic = make_rollout(model, num_rows=3, num_steps=16).detach(), make_critic(model)
    module, states = critic.module, critic.module.norm(rollout["encoder_state"])
    drawn = rollout["action"].bool() | rollout["forced"]
    expected = torch.zeros(3, 16)
    for row in range(3):
        for t in range(16):
            starts = [i + 1 for i in range(t) if drawn[row, i]]
            tokens = states[row, starts]
            zero = torch.zeros(model.config.width)
            mean, latest = (tokens.mean(0), tokens[-1]) if starts else (zero, zero)
            numbers = torch.tensor([len(starts), t - starts[-1] if starts else t]).log1p()
            read = torch.cat((states[row, t], latest, mean, numbers))
            expected[row, t] = module.value(torch.nn.functional.gelu(module.hidden(read)))
    assert 5 < int(drawn.sum()) < 30
    torch.testing.assert_close(values(critic, rollout), expected, rtol=1e-4, atol=1e-4)
    after = values(critic, rollout["next"])
    torch.testing.assert_close(after[:, :-1], expected[:, 1:], rtol=1e-4, atol=1e-4)


def test_values_depend_on_earlier_decisions_of_the_text_alone():
    model = make_model()
    rollout, critic = make_rollout(model, num_rows=2, num_steps=16).detach(), make_critic(model)
    plain, changed = values(critic, rollout), rollout.clone()
    changed["recent"][:, 9, 0] = 1 - changed["recent"][:, 9, 0]  # the decision at byte 8
    moved = values(critic, changed) != plain
    assert not moved[:, :9].any() and moved[:, 9:].all()
    in_turn = torch.cat((rollout[:1], rollout[1:]), 1)  # two texts, one after the other
    for part in (in_turn, in_turn["next"]):
        alone = torch.cat([values(critic, part[:, :16]), values(critic, part[:, 16:])], 1)
        torch.testing.assert_close(values(critic, part), alone, rtol=1e-4, atol=1e-4)


@each(lags=[1, 3])
def test_as_a_baseline_it_leaves_the_expected_gradient_exact(lags):
    """Summed over all strings with lambda 1, whatever the critic says."""
    model, text = make_model(num_lags=lags).double(), "to be so"
    rows = enumerate_rollouts(model, text)[0].detach()
    estimator = PooledCriticAdvantage(model, gamma=1.0, lmbda=1.0)
    estimator.value_network = make_critic(model).double()
    advantages = estimator(rows.copy())["advantage"].squeeze(-1)
    gradient = policy_gradient(model, rows, advantages * rows["log_weight"].exp() * len(rows))
    exact = exact_head_gradient(model, text)
    torch.testing.assert_close(gradient, exact, rtol=1e-9, atol=1e-10)


def test_runs_train_it_and_count_it():
    """A cell of the suite, whose critic learns, and whose updates cost more than with a critic of states."""
    options = {"flops": 1e9, "overrides": ["data.num_steps=32", "data.num_rows=4"]}
    trainer, _ = make_trainer(cell_config("delay", 1, "pooled_critic@0.9", **options))
    plain, _ = make_trainer(cell_config("delay", 1, "critic_advantage@0.9", **options))
    critic = trainer.loss.policy_estimator.value_network
    assert isinstance(critic, PooledCritic) and not critic.module.value.weight.any()
    for run in (trainer, trainer, plain, plain):
        run.update()
    assert critic.module.value.weight.any()
    assert trainer.total_flops_done > plain.total_flops_done


def test_lags_mark_tokens():
    with pytest.raises(ValueError, match="num_lags must be at least 1 for a critic that pools tokens, got 0"):
        PooledCritic(make_model(num_lags=0).config)

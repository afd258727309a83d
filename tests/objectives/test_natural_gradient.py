"""Gradients of boundary logits that do not vanish where the policy has almost decided."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rltok_rl.objectives import NaturalGradient, ReturnEstimator

from ..each import each


def rollout(rewards: Tensor, logits: Tensor) -> TensorDict:
    return TensorDict({"logits": logits, "next": {"reward": rewards.unsqueeze(-1)}}, [*logits.shape])


def test_the_expected_gradient_of_a_logit_is_a_quarter_of_the_effect_down_to_the_floor():
    """Both decisions of one step in two rows, weighted with their probabilities."""
    logits = torch.linspace(-6, 6, 49, dtype=torch.float64)[:, None]
    effect, floor = 1.7, 0.05
    probs, expected = logits.sigmoid(), torch.zeros_like(logits)
    for drawn, chance in ((1.0, probs), (0.0, 1 - probs)):
        advantages = NaturalGradient(gamma=0.9, floor=floor)(
            rollout(0.3 + effect * drawn * torch.ones_like(logits), logits)
        )
        expected += chance * (drawn - probs) * advantages["advantage"].squeeze(-1)
    information = probs * (1 - probs)
    inside = information >= floor
    assert 10 < inside.sum() < 40
    torch.testing.assert_close(expected[inside], torch.full_like(expected[inside], effect / 4))
    torch.testing.assert_close(expected[~inside], effect / 4 * information[~inside] / floor)


@each(baseline=["none", "batch_mean", "leave_one_out"])
def test_with_the_highest_floor_advantages_are_returns_minus_the_baseline(baseline):
    given = rollout(torch.randn(4, 9), torch.randn(4, 9))
    plain = ReturnEstimator(gamma=0.9, baseline=baseline)(given.clone())
    natural = NaturalGradient(gamma=0.9, baseline=baseline, floor=0.25)(given.clone())
    torch.testing.assert_close(natural["advantage"], plain["advantage"])
    other = NaturalGradient(gamma=0.9, baseline=baseline)(given.clone())
    assert torch.equal(other["value_target"], plain["value_target"]) and not torch.equal(
        other["advantage"], plain["advantage"]
    )


def test_a_wrong_floor_and_a_rollout_without_logits_are_refused():
    for floor in (0, 0.26):
        with pytest.raises(ValueError, match=r"floor must"):
            NaturalGradient(gamma=0.9, floor=floor)
    with pytest.raises(KeyError, match="logits"):
        NaturalGradient(gamma=0.9)(rollout(torch.randn(2, 3), torch.randn(2, 3)).exclude("logits"))

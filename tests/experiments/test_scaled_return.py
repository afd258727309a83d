"""Returns over their standard deviation at each position or in each row."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from rltok_rl.experiments.studies.scaled_return import ScaledReturn
from tensordict import TensorDict

from rltok_rl.diagnostics.laws import broken_laws

from ..each import each


def advantages(rewards, mask, **options):
    rollout = TensorDict({"next": {"reward": rewards.unsqueeze(-1)}, "collector": {"mask": mask}}, rewards.shape)
    return ScaledReturn(gamma=0.9, **options)(rollout)["advantage"].squeeze(-1)


@each(scale=["position", "row"])
def test_advantages_are_those_of_loops(scale):
    rewards, mask = torch.randn(5, 7, dtype=torch.float64), torch.rand(5, 7) < 0.8
    mask[:, 0] = True
    returns = torch.zeros(5, 7, dtype=torch.float64)
    for row in range(5):
        later = 0.0
        for t in reversed(range(7)):
            later = 0.9 * later + float(rewards[row, t] * mask[row, t])
            returns[row, t] = later
    centred = torch.zeros_like(returns)
    for t in range(7):
        real = mask[:, t]
        centred[real, t] = returns[real, t] - returns[real, t].mean()
    expected = torch.zeros_like(returns)
    for row, t in mask.nonzero().tolist():
        peers = centred[mask[:, t], t] if scale == "position" else centred[row, mask[row]]
        expected[row, t] = centred[row, t] / peers.square().mean().sqrt().clamp(min=1e-12)
    torch.testing.assert_close(advantages(rewards, mask, scale=scale), expected)


def test_equal_returns_have_no_advantage_and_mistakes_are_refused():
    for scale in ("position", "row"):
        assert not advantages(torch.ones(3, 4), torch.ones(3, 4, dtype=torch.bool), scale=scale).any()
    with pytest.raises(ValueError, match=r"scale must be one of \['position', 'row'\], got 'text'"):
        ScaledReturn(gamma=0.9, scale="text")


def test_scales_break_the_laws_that_they_depend_on():
    assert set(broken_laws(partial(ScaledReturn, scale="position"))) == {"exact"}
    assert set(broken_laws(partial(ScaledReturn, scale="row"))) == {"exact", "past", "ends"}

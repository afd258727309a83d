"""Flips with predicted effects."""

from __future__ import annotations

import torch
from torch import Tensor

from rltok_rl.objectives import BudgetedFlips, DoublyRobustFlips

from .conftest import make_model, make_rollout


def test_expected_advantages_are_those_of_flips_whatever_is_predicted():
    """Summed exactly over flipped decisions and drawn rows; without lags a row is known from its flips."""
    model = make_model(num_lags=0).double()
    rollout = make_rollout(model, num_rows=4, num_steps=11).detach()
    free = (~rollout["forced"].view(4, 11).bool()).all(0).nonzero().flatten().tolist()

    def expected(kind: type[BudgetedFlips], rows: Tensor) -> Tensor:
        every = 4 // len(rows)
        made = kind(model, baseline="batch_mean", gamma=0.9, num_flips=1, span=11, every=every)
        made._drawn_rows = lambda *_: rows
        total = torch.zeros(4, 11, dtype=torch.float64)
        for t in free:
            where, chance = torch.full((len(rows), 1, 1), t), torch.full((len(rows), 1, 1), 1 / len(free))
            made._choose = lambda _, answer=(where, chance): answer
            made._entropy = 1.0
            if isinstance(made, DoublyRobustFlips):
                made.gram.copy_(torch.eye(len(made.gram)))
                made.moment.copy_(torch.randn(len(made.gram), generator=torch.Generator().manual_seed(3)))
            total += made(rollout.copy())["advantage"].squeeze(-1) / len(free)
        return total

    plain = expected(BudgetedFlips, torch.arange(4))
    torch.testing.assert_close(expected(DoublyRobustFlips, torch.arange(4)), plain, rtol=1e-4, atol=1e-6)
    halves = [expected(DoublyRobustFlips, torch.arange(2) * 2 + offset) for offset in range(2)]
    assert not torch.allclose(halves[0], plain, rtol=1e-2)
    torch.testing.assert_close(sum(halves) / 2, plain, rtol=1e-4, atol=1e-6)

"""Flips in some rows, and while the policy is undecided."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from rltok_rl.experiments.runs.build import make_trainer
from torch import Tensor

from rltok_rl.functional.policy import boundary_entropy
from rltok_rl.models.flops import trial_flops
from rltok_rl.objectives import BudgetedFlips, LocalFlips, make_estimator

from ..each import each
from ..experiments.configured import configured
from ..states import seeded
from ..training.processes import make, metrics_of
from .conftest import make_model, make_rollout


def advantages(estimator: LocalFlips, rollout) -> Tensor:
    return estimator(rollout.detach().copy())["advantage"].squeeze(-1)


@each(every=[1, 2, 3])
def test_one_row_of_each_group_is_flipped_and_counts_for_all(every):
    """With its chance of 1 / every the average over all draws is that of flips in all rows."""
    model = make_model(num_lags=0).double()  # without lags a row is known from its flips
    rollout = make_rollout(model, num_rows=6, num_steps=15).detach()
    where = torch.tensor([[4, 8, 12]]).expand(6, 2, 3) + torch.arange(6)[:, None, None] % 2
    options = {"gamma": 0.9, "num_flips": 2, "span": 5}

    def judged(rows: Tensor | None) -> Tensor:
        flips = LocalFlips(model, every=1 if rows is None else every, **options)
        flips._choose = lambda weights: (where[: len(weights)], torch.full((len(weights), 2, 3), 0.25))
        if rows is not None:
            where_of_rows = where[rows]
            flips._drawn_rows = lambda *_: rows
            flips._choose = lambda weights: (where_of_rows, torch.full((len(weights), 2, 3), 0.25))
        return advantages(flips, rollout)

    whole, groups = judged(None), torch.arange(6 // every) * every
    parts = [judged(groups + offset) for offset in range(every)]
    for offset, part in enumerate(parts):
        rows = (part != 0).any(-1).nonzero().flatten()
        assert torch.equal(rows, groups + offset)
    torch.testing.assert_close(sum(parts) / every, whole, rtol=1e-5, atol=1e-6)


def test_each_row_of_a_group_is_drawn_equally_often():
    flips, counts = LocalFlips(make_model(), gamma=0.9, every=4, generator=seeded(5)), torch.zeros(8)
    for _ in range(1000):
        rows = flips._drawn_rows(8, torch.device("cpu"))
        assert torch.equal(rows // 4, torch.arange(2))
        counts[rows] += 1
    assert ((counts / 1000 - 0.25).abs() < 0.06).all()  # four standard errors


def test_rows_of_processes_are_those_of_one():
    class Group:
        def __init__(self, rank: int) -> None:
            self.at = rank

        def rank(self) -> int:
            return self.at

        def size(self) -> int:
            return 2

    def drawn(num_rows: int, group: Group | None = None) -> Tensor:
        flips = LocalFlips(make_model(), gamma=0.9, every=2, generator=seeded(5))
        flips.process_group = group
        return flips._drawn_rows(num_rows, torch.device("cpu"))

    halves = [drawn(4, Group(rank)) + 4 * rank for rank in range(2)]
    assert torch.equal(torch.cat(halves), drawn(8))


def test_the_entropy_of_the_batch_before_decides():
    """It is that of free and real decisions, and part of the state; at the threshold there are flips still."""
    model = make_model()
    rollout = make_rollout(model, num_rows=4, num_steps=15).detach()
    mask = torch.arange(15).expand(4, 15) < torch.tensor([15, 12, 9, 15])[:, None]
    rollout["collector"] = {"mask": mask}
    logits, forced = rollout["logits"].view(4, 15), rollout["forced"].view(4, 15).bool()
    mean = float(boundary_entropy(logits)[mask & ~forced].mean())
    passes = []
    decode = model.decode
    model.decode = lambda *rest, **options: passes.append(1) or decode(*rest, **options)
    options = {"gamma": 0.8, "num_flips": 2, "span": 5, "every": 2}
    for settled, flips in ((mean - 1e-5, True), (0.0, True), (mean + 1e-5, False)):
        made = BudgetedFlips(model, settled=settled, baseline="leave_one_out", generator=seeded(5), **options)
        assert made.entropy == float("inf")
        first = advantages(made, rollout)
        assert made.ran_trials and made.entropy == pytest.approx(mean, abs=1e-6)
        torch.testing.assert_close(first, advantages(LocalFlips(model, generator=seeded(5), **options), rollout))
        other = BudgetedFlips(model, settled=settled, baseline="leave_one_out", generator=seeded(7), **options)
        other.load_state_dict(made.state_dict())
        expected: LocalFlips = LocalFlips(model, generator=seeded(7), **options)
        if not flips:
            expected = make_estimator("discounted_return", gamma=0.8, baseline="leave_one_out")
        passes.clear()
        second = advantages(other, rollout)
        assert other.ran_trials is flips and len(passes) == flips
        torch.testing.assert_close(second, advantages(expected, rollout), rtol=0, atol=0)
    with pytest.raises(ValueError, match="entropy must be at least 0"):
        made.entropy = -1.0


def test_flops_are_counted_for_batches_with_flips():
    """A quarter of the rows is a quarter of the cost; after a batch without flips the total is that of passes."""
    trainer = make(estimator="budgeted_flips", updates=3)
    estimator = trainer.loss.terms["policy"]._value_estimator
    assert estimator.flops(100, 30) == pytest.approx(2 / estimator.every * trial_flops(trainer.model, 100, 30))
    totals, trials = [], []
    for settled in (0.0, 10.0, 0.0):
        estimator.settled = settled
        update = trainer.update()
        totals.append(update["total_flops"] - update["flops"])
        trials.append(update["trials"])
    assert 0 < totals[0] == totals[1] < totals[2] and trials == [1.0, 0.0, 1.0]


def test_a_resumed_run_knows_whether_its_policy_had_settled():
    whole = metrics_of(make(estimator="budgeted_flips", updates=4))
    first = make(estimator="budgeted_flips", updates=4)
    assert metrics_of(first, 2) == whole[:2] and [update["trials"] for update in whole] == [1.0, 0.0, 0.0, 0.0]
    state = copy.deepcopy(first.state_dict())
    second = make(estimator="budgeted_flips", updates=4, seed=5)
    second.load_state_dict(state)
    assert metrics_of(second) == whole[2:]


def test_rows_of_groups_lie_in_one_process():
    options = ["experiment=recall", "estimator=budgeted_flips", "baseline=batch_mean", "estimator.options.every=5"]
    with pytest.raises(ValueError, match="every must divide the rows of an update in each process, 16 rows x 1 micro"):
        make_trainer(configured(*options))


def test_rows_that_every_does_not_divide_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match="every must divide the rows of the rollout, 4, got 3"):
        LocalFlips(model, gamma=0.9, every=3)(make_rollout(model).detach())
    for name, value, message in (
        ("every", 0, "of at least 1, got 0"),
        ("settled", -0.1, "at least 0 and finite"),
        ("price", math.nan, "at least 0 and finite, got nan"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be .*{message}"):
            BudgetedFlips(model, gamma=0.9, **{name: value})

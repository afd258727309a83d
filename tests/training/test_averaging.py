"""Gradients that are averaged while the backward pass runs are those that are averaged after it."""

from __future__ import annotations

from pathlib import Path

import torch

from rltok_rl.training import parallel as sharding
from rltok_rl.training.parallel import EarlyAverages, Processes

from .processes import ROWS, STEPS, figures, make, spawn

CASES = {
    "plain": {},
    "a warm start, epochs": {"policy_epochs": 2, "warm_start_bytes": ROWS * STEPS},  # the policy is left out at first
    "micro-batches": {"micro_batches": 2},
}


class Noted(EarlyAverages):
    """Remembers how many buckets each step found sent."""

    def finish(self) -> int:
        self.sent = [*getattr(self, "sent", []), super().finish()]
        return self.sent[-1]


class Late(EarlyAverages):
    """Sends nothing early."""

    def last_pass(self, is_last: bool = True):
        return super().last_pass(False)


def train(processes: Processes, folder: Path) -> None:
    """Every case, with buckets so small that there are many."""
    sharding.BUCKET_BYTES = 2_000
    for name, case in CASES.items():
        found = {}
        for kind in (Noted, Late):
            trainer = make(processes, "ddp", **case)
            trainer._averages = kind(trainer.trained, processes.group)
            told = figures(trainer)
            found[kind] = {"figures": told, "weights": trainer.model.state_dict(), "of": trainer}
        early, late = found[Noted], found[Late]
        assert early["figures"] == late["figures"], name
        assert all(torch.equal(early["weights"][key], weight) for key, weight in late["weights"].items()), name
        averages = early["of"]._averages
        # Sums of more than two processes depend on where in its bucket a gradient lies: buckets are those sent late.
        parameters = list(early["of"].trained.parameters())
        assert all(p.grad is not None for p in parameters) or case, "the plain case trains everything"
        if not case:
            sizes = [len(bucket) for bucket in sharding.buckets([p.grad for p in parameters])]
            assert [len(numbers) for numbers in sorted(averages._plan)] == sizes
            assert sum(sorted(averages._plan), []) == list(range(len(parameters)))
        if processes.main:
            torch.save({"sent": averages.sent, "plan": averages._plan}, folder / f"{name}.pt")


def test_results_are_equal_to_the_bit_and_buckets_are_sent_early(tmp_path):
    spawn(train, tmp_path)
    told = {name: torch.load(tmp_path / f"{name}.pt") for name in CASES}
    plain = told["plain"]
    count = len(plain["plan"])
    assert plain["sent"] == [0, count, count, count] and count > 5
    assert told["micro-batches"]["sent"] == [0] * 4
    # Steps of two epochs in turn: the second is late. The first with a policy meets an order that does not know it.
    first, _, second, _, third, *_ = told["a warm start, epochs"]["sent"]
    assert first == 0 and 0 < second <= third and told["a warm start, epochs"]["sent"][1::2] == [0] * 4

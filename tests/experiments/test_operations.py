"""Operations and bytes moved by an update stay where docs/performance.md has them."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.experiments.bench.operations import CountOperations, count_update, experiment_trainer, operator_table

from rltok_rl import fused


@pytest.mark.parametrize(("fusing", "operations", "kilobytes"), [(True, 815, 64.8), (False, 1504, 409.6)])
def test_an_update_of_recall(fusing, operations, kilobytes):
    """At most a tenth more, for other versions of torch."""
    if fusing and fused.missing() is not None:
        pytest.skip(f"no fused operations: {fused.missing()}")
    trainer = experiment_trainer("recall", "compute.threads=1")
    with fused.fused(fusing):
        counted = count_update(trainer)
    assert sum(counted.calls.values()) < 1.1 * operations
    assert sum(counted.moved.values()) / trainer.bytes_per_update < 1.1e3 * kilobytes
    assert ("finish_part" in counted.calls) == fusing
    assert operator_table(counted, 2048).count("\n") == 23  # header, rule, 20 operators, the others, all


def test_what_counts():
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    with CountOperations() as counted:
        z = (x + y).view(8, 4)  # reads two tensors, writes one; the view is free
        z[0].mul_(2.0)  # reads and writes four numbers in place, counted once
        torch.empty(1000)
    assert dict(counted.moved) == {"aten::add.Tensor": 3 * 128, "aten::mul_.Tensor": 16}
    assert counted.calls.total() == 2

"""Operations and bytes moved by an update stay where docs/performance.md has them, also on a GPU without values."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rltok_rl.experiments.bench import __main__ as bench
from rltok_rl.experiments.bench import timing
from rltok_rl.experiments.bench.operations import (
    FLIPS,
    CountOperations,
    count_update,
    experiment_trainer,
    operator_table,
)
from rltok_rl.experiments.bench.roofline import COUNTS, tables
from rltok_rl.experiments.bench.timing import in_new_process

from rltok_rl import fused

from ..forked import run_code

MEASURED = [("recall", True, 531, 65.2), ("recall", False, 1291, 407.2), ("books", True, 500, 68.0)]


@pytest.mark.parametrize(("experiment", "fusing", "operations", "kilobytes"), MEASURED)
def test_an_update(experiment, fusing, operations, kilobytes):
    """At most 5 % more, for other versions of torch."""
    if fusing and fused.missing() is not None:
        pytest.skip(f"no fused operations: {fused.missing()}")
    trainer = experiment_trainer(experiment, "compute.threads=1")
    with fused.fused(fusing):
        counted = count_update(trainer)
    assert sum(counted.calls.values()) < 1.05 * operations
    assert sum(counted.moved.values()) / trainer.bytes_per_update < 1.05e3 * kilobytes
    assert ("finish_part" in counted.calls) == fusing
    assert operator_table(counted, 2048).count("\n") == 23  # header, rule, 20 operators, the others, all


def test_what_counts():
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    with CountOperations() as counted:
        z = (x + y).view(8, 4)  # reads two tensors, writes one; the view is free
        z[0].mul_(2.0)  # reads and writes four numbers in place, counted once
        torch.empty(1000)
    assert dict(counted.written) == {"aten::add.Tensor": 128, "aten::mul_.Tensor": 16} and not counted.flops
    assert dict(counted.moved) == {"aten::add.Tensor": 3 * 128, "aten::mul_.Tensor": 16}
    assert counted.calls.total() == 2


@pytest.mark.skipif(not hasattr(torch._C, "_acc"), reason="torch 2.9 or newer")
@pytest.mark.parametrize(
    ("options", "products", "calls", "written"),
    [((), {"bfloat16": 54, "float32": 3}, 1054, 14.8e6), (FLIPS, {"bfloat16": 65, "float32": 4}, 1365, 21.3e6)],
)
def test_a_step_on_a_gpu_without_values(options, products, calls, written, monkeypatch):
    """Autocast makes every product bfloat16 but the boundary head's: one forward, two backward, one of flipped rows."""
    monkeypatch.setattr(timing, "subprocess", SimpleNamespace(run=run_code))
    tiny = ("model=tiny", "data.num_steps=64", "data.num_rows=2", *options)
    step = in_new_process(f"large.print_counts(*{tiny})")
    assert step["products"] == products
    assert step["calls"] < 1.05 * calls and step["written"] < 1.05 * written


def test_a_timed_step(monkeypatch):
    """On the CPU, whose peak memory is not measured."""
    monkeypatch.setattr(timing, "subprocess", SimpleNamespace(run=run_code))
    tiny = ["model=tiny", "data.num_steps=64", "compute.compile=false"]
    step = in_new_process(f"large.print_step(2, {tiny}, 'cpu')")
    assert step["seconds"] > 0 and step["flops"] > 1e6 and step["memory"] == step["kernels"] == step["busy"] == 0


def test_roofline_page():
    page = Path(__file__).parents[2] / "docs" / "roofline.md"
    assert tables(json.loads(COUNTS.read_text())) in page.read_text()


def test_a_failed_section_leaves_a_row_and_the_others_run(tmp_path, monkeypatch, capsys):
    def start(command: list[str], **_) -> nullcontext[SimpleNamespace]:
        done = run_code(command)
        lines = [done.stdout, *done.stderr.splitlines(keepends=True)]
        return nullcontext(SimpleNamespace(stdout=lines, returncode=done.returncode))

    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(Popen=start, PIPE=None, STDOUT=None))
    monkeypatch.setattr(bench, "SECTIONS", ("absent", "large"))
    assert bench.main(["--out", str(tmp_path)]) == 1
    out = capsys.readouterr()
    assert "large: skipped, it needs a GPU" in out.err and "failed" in out.out
    (row,) = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert row["section"] == "absent" and "exit status 1" in row["note"] and math.isnan(row.get("ratio") or math.nan)

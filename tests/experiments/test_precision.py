"""The study of precision: its options, its comparison, its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.runs.folder import RunFolder
from rltok_rl.experiments.studies import precision
from rltok_rl.experiments.studies.precision import HELD_OUT, TRAINED, VARIANTS, compare, main, read_precision_options


def run(shift: float, updates: int = 20) -> RunFolder:
    """A run whose metrics fall to 2 + shift in its last updates."""
    history = {name: [9.0] * (updates - 4) + [2.0 + shift + 0.1 * (n % 2) for n in range(4)] for name in TRAINED}
    snapshots = [dict.fromkeys(HELD_OUT, 8.0), dict.fromkeys(HELD_OUT, 3.0 + shift)]
    return RunFolder(Path("."), {}, {"parameters": 7}, [], history, snapshots, [], {"updates": updates}, None)


def test_metrics_are_compared_seed_by_seed():
    references, runs = [run(0.0), run(0.3), run(0.9)], [run(0.01), run(0.29), run(0.93)]
    for parity in compare(runs, references, last=4):
        assert parity.mean == pytest.approx(3.4 if parity.figure in HELD_OUT else 2.45)
        assert parity.differences == pytest.approx([0.01, -0.01, 0.03])
        assert parity.between_seeds == pytest.approx(0.6) and parity.within  # 0.3, 0.6 and 0.9
    assert not compare([run(1.0), run(1.3)], [run(0.0), run(0.3)], last=4)[0].within


def test_the_command_writes_table_and_figure(tmp_path, monkeypatch, capsys):
    runs = {name: [run(0.1 * place), run(0.5 + 0.1 * place)] for place, name in enumerate(VARIANTS)}
    monkeypatch.setattr(precision, "train_all", lambda _: runs)
    assert main(["source=books", "seeds=2", "updates=20", "last=4", f"out={tmp_path}"]) == 0
    page = (tmp_path / "precision.md").read_text()
    assert "| `bits_per_byte` | 2.3000 | +0.1000 ± 0.0000 | +0.1000 +0.1000 | +0.2000 ± 0.0000 | 0.5000 |" in page
    assert page in capsys.readouterr().out
    assert (tmp_path / "precision.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "precision.json").read_text())["courses"]["nudged"]["rate"]) == 2


def test_variants_differ_in_one_option():
    options = read_precision_options(["source=books"])
    lines = {name: precision.run_overrides(options, name, 1) for name in VARIANTS}
    for line in lines.values():
        compose_config(line)  # options that exist
    usual, narrow, nudged = (set(lines[name]) for name in ("float32", "bfloat16", "nudged"))
    assert narrow - usual == {"compute.precision=bfloat16", "out=runs/precision/bfloat16-1"}
    rate = next(option for option in nudged - usual if option.startswith("optim.lr="))
    assert 0 < float(rate.removeprefix("optim.lr=")) / precision.LR - 1 < 2e-7


def test_wrong_options_are_refused(capsys):
    for arguments, message in (
        ([], "source"),
        (["source=a", "seeds=1"], "seeds must be at least 2, got 1"),
        (["source=a", "last=400"], "last must be at most updates=300, got 400"),
        (["source=a", "sedes=3"], "options must be among"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err, arguments

"""The study of precision: its options, what it compares, what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.runs.folder import RunFolder
from rltok_rl.experiments.studies import precision
from rltok_rl.experiments.studies.precision import HELD_OUT, TRAINED, WAYS, compare, main, read_study, training


def run(shift: float, updates: int = 20) -> RunFolder:
    """A run whose figures fall to 2 + shift in its last updates."""
    history = {name: [9.0] * (updates - 4) + [2.0 + shift + 0.1 * (n % 2) for n in range(4)] for name in TRAINED}
    looks = [dict.fromkeys(HELD_OUT, 8.0), dict.fromkeys(HELD_OUT, 3.0 + shift)]
    model = {"parameters": 7}
    return RunFolder(Path("."), {}, model, [], history, looks, [], {"updates": updates})


def test_figures_are_compared_seed_by_seed():
    theirs, ours = [run(0.0), run(0.3), run(0.9)], [run(0.01), run(0.29), run(0.93)]
    for one in compare(ours, theirs, last=4):
        assert one.mean == pytest.approx(3.4 if one.figure in HELD_OUT else 2.45)
        assert one.differences == pytest.approx([0.01, -0.01, 0.03])
        assert one.between_seeds == pytest.approx(0.6) and one.within  # 0.3, 0.6 and 0.9
    assert not compare([run(1.0), run(1.3)], [run(0.0), run(0.3)], last=4)[0].within


def test_the_command_writes_table_and_figure(tmp_path, monkeypatch, capsys):
    runs = {way: [run(0.1 * place), run(0.5 + 0.1 * place)] for place, way in enumerate(WAYS)}
    monkeypatch.setattr(precision, "train_all", lambda _: runs)
    assert main(["source=books", "seeds=2", "updates=20", "last=4", f"out={tmp_path}"]) == 0
    page = (tmp_path / "precision.md").read_text()
    assert "| `bits_per_byte` | 2.3000 | +0.1000 ± 0.0000 | +0.1000 +0.1000 | +0.2000 ± 0.0000 | 0.5000 |" in page
    assert page in capsys.readouterr().out
    assert (tmp_path / "precision.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "precision.json").read_text())["courses"]["nudged"]["rate"]) == 2


def test_trainings_differ_in_one_thing():
    study = read_study(["source=books"])
    lines = {way: training(study, way, 1) for way in WAYS}
    for line in lines.values():
        compose_config(line)  # options that exist
    usual, narrow, nudged = (set(lines[way]) for way in ("float32", "bfloat16", "nudged"))
    assert narrow - usual == {"compute.precision=bfloat16", "out=runs/precision/bfloat16-1"}
    rate = next(one for one in nudged - usual if one.startswith("optim.lr="))
    assert 0 < float(rate.removeprefix("optim.lr=")) / precision.LR - 1 < 2e-7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "source must be given"),
        (["source=a", "seeds=1"], "seeds must be at least 2, got 1"),
        (["source=a", "last=400"], "last must be at most updates=300, got 400"),
        (["source=a", "sedes=3"], "options are"),
    ],
)
def test_what_cannot_be_asked_is_said(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err

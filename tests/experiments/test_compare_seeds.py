"""Several seeds of a comparison in one page, from committed runs whose losses are moved by known amounts."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from rltok_rl.experiments.commands import report
from rltok_rl.experiments.reports import seeds_page as seeds
from rltok_rl.experiments.reports.seeds_page import entropy_at_shares, seeds_page, write_seeds_page
from rltok_rl.experiments.runs.folder import read_run

from ..layout import ROOT

RESULTS = ROOT / "experiments" / "results" / "compare"
KEPT = (
    "config.yaml",
    "summary.json",
    "evaluation.json",
    "model.json",
    "environment.json",
    "metrics.csv",
    "samples.jsonl",
)
MOVED = {"learned": (-0.05, -0.06, -0.04), "uniform": (0.0, 0.01, -0.01), "spacebyte": (-0.045, -0.06, -0.04)}
"""Bits per byte of each seed, relative to the committed evenly spaced run."""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three seeds of three systems."""
    base = json.loads((RESULTS / "uniform" / "evaluation.json").read_text())
    for system, moves in MOVED.items():
        for seed, move in enumerate(moves):
            run = tmp_path / "three" / str(seed) / system
            run.mkdir(parents=True)
            for name in KEPT:
                shutil.copy(RESULTS / system / name, run / name)
            config = (run / "config.yaml").read_text()
            (run / "config.yaml").write_text(re.sub(r"\nseed: \d+", f"\nseed: {seed}", config))
            evaluation = json.loads((run / "evaluation.json").read_text())
            nats = [n + move * math.log(2) * c for n, c in zip(base["nats"], base["counts"], strict=True)]
            loss = base["corpus_bits_per_byte"] + move
            summary = json.loads((run / "summary.json").read_text())
            (run / "summary.json").write_text(json.dumps({**summary, "tried_flops": 0.0}))
            (run / "evaluation.json").write_text(json.dumps({**evaluation, "nats": nats, "corpus_bits_per_byte": loss}))
    return tmp_path / "three"


@pytest.fixture
def no_figure(monkeypatch):
    """Skip the figure, which takes longer than the page."""
    monkeypatch.setattr(seeds, "draw_loss_against_flops", lambda *_, **__: None)


def cells(page: str, system: str) -> list[str]:
    (row,) = [line for line in page.splitlines() if re.match(rf"\| {system}( \*)? \|", line)]
    return [cell.strip() for cell in row.split("|")[1:-1]]


def test_means_and_paired_differences_are_those_of_the_seeds(folder):
    page = write_seeds_page(folder).read_text()
    base = json.loads((RESULTS / "uniform" / "evaluation.json").read_text())["corpus_bits_per_byte"]
    learned = cells(page, "learned")
    assert learned[3] == f"**{base - 0.05:.3f} ± 0.010**"
    assert learned[4] == ", ".join(f"{base + move:.3f}" for move in MOVED["learned"])
    assert learned[5] == "-0.050 [-0.100, -0.000]"  # differences -0.05, -0.07, -0.03; 4.303 x 0.02 / sqrt(3)
    assert learned[6] == "-0.050 [-0.050, -0.050]"  # every document was moved by the same amount
    assert cells(page, "spacebyte")[3].startswith("**") and not cells(page, "uniform")[3].startswith("**")
    assert "learned minus spacebyte: -0.002" in page and "they cannot be told apart" in page
    assert learned[2] == "10.5 TFLOPs"
    assert (folder / "compare-seeds.png").stat().st_size > 9000


def test_nothing_is_bold_at_unequal_budgets(folder, no_figure):
    for seed in range(3):
        path = folder / str(seed) / "learned" / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tried_flops": 4.3e12}))
    page = write_seeds_page(folder).read_text()
    assert cells(page, "learned")[2] == "14.8 TFLOPs (29 % trials)"  # trials are part of the total
    assert not any(cells(page, system)[3].startswith("**") for system in MOVED)


def test_systems_of_fewer_seeds_are_paired_by_those_they_share(folder, no_figure):
    shutil.rmtree(folder / "1" / "spacebyte")
    shutil.rmtree(folder / "2" / "spacebyte")
    page = write_seeds_page(folder).read_text()
    assert cells(page, "spacebyte")[5:7] == ["-0.045", "-0.045 [-0.045, -0.045]"]  # of seed 0 alone


def test_command_writes_the_page_from_its_json(folder, no_figure, capsys):
    assert report.main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "compare-seeds.md")
    content = json.loads((folder / "compare-seeds.json").read_text())
    assert seeds_page(content) == (folder / "compare-seeds.md").read_text()


def test_a_seed_comes_once(folder, no_figure):
    shutil.copytree(folder / "0", folder / "again")
    with pytest.raises(ValueError, match="seed 0 of 'learned' must be there once, got it twice"):
        write_seeds_page(folder)


def test_entropy_at_shares_of_a_run():
    run = read_run(RESULTS / "learned")
    early, *_, late = entropy_at_shares(run)
    assert early > late == pytest.approx(run.final_mean("entropy"))
    assert entropy_at_shares(read_run(RESULTS / "uniform")) is None

"""Several seeds of a comparison in one page, from committed runs whose losses are moved by known amounts."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from rltok_rl.experiments.commands import report
from rltok_rl.experiments.reports import seeds_page
from rltok_rl.experiments.reports.seeds_page import entropy_at_shares, write_seeds_page
from rltok_rl.experiments.runs.folder import read_run

from .results import RESULTS, copy_run, rewrite

MOVED = {"learned": (-0.05, -0.06, -0.04), "uniform": (0.0, 0.01, -0.01), "spacebyte": (-0.045, -0.06, -0.04)}
"""Bits per byte of each seed, relative to the committed evenly spaced run."""
BASE = json.loads((RESULTS / "compare/uniform/evaluation.json").read_text())


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three seeds of three systems."""
    for system, moves in MOVED.items():
        for seed, move in enumerate(moves):
            run = copy_run(f"compare/{system}", tmp_path / "three" / str(seed) / system, "metrics.csv", "samples.jsonl")
            config = (run / "config.yaml").read_text()
            (run / "config.yaml").write_text(re.sub(r"\nseed: \d+", f"\nseed: {seed}", config))
            nats = [n + move * math.log(2) * c for n, c in zip(BASE["nats"], BASE["counts"], strict=True)]
            rewrite(run / "evaluation.json", nats=nats, corpus_bits_per_byte=BASE["corpus_bits_per_byte"] + move)
            rewrite(run / "summary.json", tried_flops=0.0)
    return tmp_path / "three"


@pytest.fixture
def no_figure(monkeypatch):
    monkeypatch.setattr(seeds_page, "draw_loss_against_flops", lambda *_, **__: None)


def cells(page: Path, system: str) -> list[str]:
    (row,) = [line for line in page.read_text().splitlines() if re.match(rf"\| {system}( \*)? \|", line)]
    return [cell.strip() for cell in row.split("|")[1:-1]]


def test_means_and_paired_differences_are_those_of_the_seeds(folder, capsys):
    assert report.main([str(folder)]) == 0
    page = folder / "compare-seeds.md"
    assert capsys.readouterr().out.strip() == str(page) and (folder / "compare-seeds.png").stat().st_size > 2_500
    learned, loss = cells(page, "learned"), BASE["corpus_bits_per_byte"]
    assert learned[2] == "10.5 TFLOPs" and learned[3] == f"**{loss - 0.05:.3f} ± 0.010**"
    assert learned[4] == ", ".join(f"{loss + move:.3f}" for move in MOVED["learned"])
    assert learned[5] == "-0.050 [-0.100, -0.000]"  # differences -0.05, -0.07, -0.03; 4.303 x 0.02 / sqrt(3)
    assert learned[6] == "-0.050 [-0.050, -0.050]"  # every document was moved by the same amount
    assert cells(page, "spacebyte")[3].startswith("**") and not cells(page, "uniform")[3].startswith("**")
    text = page.read_text()
    assert "learned minus spacebyte: -0.002" in text and "they do not differ significantly" in text
    # The page needs nothing but its JSON.
    assert seeds_page.seeds_page(json.loads((folder / "compare-seeds.json").read_text())) == text


def test_names_of_folders_open_no_tag_in_the_pages(folder, no_figure):
    for seed in range(3):
        (folder / str(seed) / "learned").rename(folder / str(seed) / "<img src=x>")
    assert report.main([str(folder)]) == report.main([str(folder / "0")]) == 0
    for page in (folder / "compare-seeds.md", folder / "0" / "compare.md"):
        assert "<img" not in page.read_text() and "&lt;img src=x>" in page.read_text()


def test_page_names_the_options_that_learned_policies_do_not_share(folder, no_figure):
    for seed in range(3):
        learned, other = (folder / str(seed) / system for system in ("learned", "spacebyte"))
        text = (learned / "config.yaml").read_text()
        (other / "config.yaml").write_text(text.replace("gamma: 0.9\n", "gamma: 0.5\n"))
        shutil.copy(learned / "model.json", other / "model.json")
        rewrite(other / "model.json", window=4)
    page = write_seeds_page(folder).read_text()
    assert "- learned: `estimator.gamma=0.9 model.overrides.window=8`" in page
    assert "- spacebyte: `estimator.gamma=0.5 model.overrides.window=4`" in page
    assert "- uniform:" not in page, "it has no learned policy"
    assert "window" not in page.split("| system")[0] and "target_rate 0.2" in page.split("| system")[0]


def test_nothing_is_bold_at_unequal_budgets(folder, no_figure):
    for seed in range(3):
        rewrite(folder / str(seed) / "learned" / "summary.json", tried_flops=4.3e12)
    page = write_seeds_page(folder)
    assert cells(page, "learned")[2] == "14.8 TFLOPs (29 % trials)"  # trials are part of the total
    assert not any(cells(page, system)[3].startswith("**") for system in MOVED)


def test_systems_are_paired_by_the_seeds_they_share_and_no_seed_comes_twice(folder, no_figure):
    for seed in "12":
        shutil.rmtree(folder / seed / "spacebyte")
    # Of seed 0 alone.
    assert cells(write_seeds_page(folder), "spacebyte")[5:7] == ["-0.045", "-0.045 [-0.045, -0.045]"]
    shutil.copytree(folder / "0", folder / "again")
    with pytest.raises(ValueError, match="seed 0 of 'learned' must be there once, got it twice"):
        write_seeds_page(folder)


def test_entropy_at_shares_of_a_run():
    run = read_run(RESULTS / "compare/learned")
    early, *_, late = entropy_at_shares(run)
    assert early > late == pytest.approx(run.final_mean("entropy"))
    assert entropy_at_shares(read_run(RESULTS / "compare/uniform")) is None

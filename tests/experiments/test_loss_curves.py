"""Loss against FLOPs of several runs as a table."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments import train
from rltok_rl.experiments.reports import run_report as report
from rltok_rl.experiments.reports.loss_curves import COLUMNS, FILE, loss_curves
from rltok_rl.experiments.reports.markdown import with_unit
from rltok_rl.experiments.runs.folder import read_run

from .configured import QUICK, configured
from .killed import killed_at

SMALL = [*QUICK, "snapshots.num_bytes=64", "compute.threads=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train.run(configured(*SMALL, f"out={folder}"), "the command")
    return folder


@pytest.fixture
def older(run, tmp_path) -> Path:
    """As versions wrote it that noted no padding."""
    folder = tmp_path / "older"
    folder.mkdir()
    (folder / "config.yaml").write_text((run / "config.yaml").read_text())
    rows = list(csv.DictReader((run / "metrics.csv").read_text().splitlines()))
    kept = [{k: v for k, v in row.items() if k != "padded_flops"} for row in rows]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, kept[0])
        writer.writeheader()
        writer.writerows(kept)
    return folder


def test_every_update_and_every_look_is_a_line(run, older, tmp_path):
    page = (run / "report.md").read_text()
    report.write_comparison([run, older], tmp_path / "both")
    lines = list(csv.DictReader((tmp_path / "both" / FILE).read_text().splitlines()))
    assert tuple(lines[0]) == COLUMNS
    looks = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    assert f"| FLOPs, padding of tokens included | {with_unit(summary['padded_flops'], 'FLOPs')} |" in page
    mine = [line for line in lines if line["run"] == "whole"]
    trained = [line for line in mine if line["text"] == "training"]
    held = [line for line in mine if line["text"] == "held out"]
    assert [int(line["update"]) for line in trained] == [1, 2, 3, 4] and len(held) == len(looks)
    for last in (trained[-1], held[-1]):
        assert float(last["flops"]) == summary["flops"] and float(last["padded_flops"]) == summary["padded_flops"]
        assert float(last["padded_flops"]) > float(last["flops"]) and int(last["bytes"]) == 512
    assert float(held[-1]["bits_per_byte"]) == summary["held_out_bits_per_byte"]
    assert trained[0]["standard_error"] == "" and held[0]["flops"] == "0.0"
    assert [float(line["standard_error"]) for line in held] == [look["held_out_standard_error"] for look in looks]
    old = [line for line in lines if line["run"] == "older"]
    assert len(old) == 4 and {line["padded_flops"] for line in old} == {""}
    assert [line["flops"] for line in old] == [line["flops"] for line in trained]


def test_runs_without_figures_have_no_lines(run, tmp_path):
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.load(run / "config.yaml")))
    assert loss_curves({"nothing": read_run(tmp_path)}) == []


def test_a_run_of_an_older_version_goes_on_with_the_columns_that_it_has(run, tmp_path):
    config = configured(*SMALL, "checkpoint_every=2", "resume=true", f"out={tmp_path}/run")
    with killed_at(3):
        train.run(config, "")
    table = tmp_path / "run" / "metrics.csv"
    table.write_text(without_the_last_column(table.read_text()))
    train.run(config, "")
    assert table.read_text().replace("\r\n", "\n") == without_the_last_column((run / "metrics.csv").read_text())


def without_the_last_column(text: str) -> str:
    return "".join(line.rpartition(",")[0] + "\n" for line in text.splitlines())

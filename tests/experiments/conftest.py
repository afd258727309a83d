"""Shared fixtures: a small model, commands, and finished runs that are trained once and only read."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter, save_segmenter
from rltok_rl.experiments.compare import train_systems
from rltok_rl.experiments.reports.run_report import write_report
from rltok_rl.experiments.runs import build
from rltok_rl.experiments.runs.run import run

from rltok_rl import UNet, preset

from .configured import QUICK, configured

COMPARE = [
    "experiment=compare",
    "estimator=near_flips",
    "baseline=none",
    "data=python-docs",
    "data.num_rows=4",
    "data.num_steps=64",
    "model.overrides.width=16",
    "optim.total_bytes=1_280",
    "optim.warm_up_bytes=256",
    "compare.windows=20",
    "compare.apart=false",
    "snapshots.count=2",
    "snapshots.batches=1",
    "snapshots.num_bytes=64",
    "checkpoint_every=2",
]
"""A comparison whose systems train for a second each."""
COMMAND = "rltok train 'out=runs/${seed}'"
"""The command that the run folders below record."""


@pytest.fixture(scope="module")
def model() -> UNet:
    torch.manual_seed(0)
    return UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> str:
    return str(model.save_pretrained(tmp_path_factory.mktemp("models") / "tiny"))


def save_ruled(folder: Path, model: UNet, name: str, **options) -> Path:
    """Save a model with a segmenter."""
    path = model.save_pretrained(folder)
    save_segmenter(path, make_segmenter(name, model, **options), model, name=name, options=options)
    return path


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_bytes("To be, or not to be,\nthat is the question: é €".encode())
    return str(path)


@pytest.fixture
def stdin(monkeypatch):
    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give


@pytest.fixture
def output(capsys):
    """Run a command that succeeds; return what it prints."""

    def run_command(command, *arguments) -> str:
        capsys.readouterr()
        assert command.main([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    return run_command


@pytest.fixture
def metrics_of(output):
    """Run a command with ``--json``; return what it prints, which must be JSON without NaN."""
    wrong = {"parse_constant": lambda name: pytest.fail(f"{name} is no JSON")}
    return lambda command, *arguments: json.loads(output(command, *arguments, "--json"), **wrong)


@pytest.fixture
def refused(capsys):
    """Run a command that refuses its arguments; return its message."""

    def run_command(command, *arguments) -> str:
        with pytest.raises(SystemExit) as ended:
            command.main([str(argument) for argument in arguments])
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run_command


@pytest.fixture(scope="session")
def learned_run(tmp_path_factory) -> Path:
    """Eight updates of a learned policy: five snapshots, two checkpoints, an alarm, a report. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "learned"
    options = ["optim.total_bytes=1024", "snapshots.num_bytes=120", "model.overrides.target_rate=0.2"]
    options += ["checkpoint_every=4", "estimator.gamma=0.5"]
    make = build.Alarms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "Alarms", lambda **limits: make(**limits, patience=2, least_entropy=9.0))
        run(configured(*QUICK, *options, f"out={folder}"), COMMAND, report=write_report)
    return folder


@pytest.fixture(scope="session")
def uniform_run(tmp_path_factory) -> Path:
    """Four updates with evenly spaced boundaries, without a report. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "uniform"
    run(configured(*QUICK, "actor=uniform", "snapshots.batches=1", f"out={folder}"), COMMAND)
    return folder


@pytest.fixture(scope="session")
def gumbel_run(tmp_path_factory) -> Path:
    """Four updates with a trained segmenter, without a report. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "gumbel"
    options = ["segmenter=gumbel-round", "segmenter.options.hidden=32", "model.overrides.width=16"]
    run(configured(*QUICK, *options, "snapshots.batches=1", f"out={folder}"), COMMAND)
    return folder


@pytest.fixture(scope="session")
def compared(tmp_path_factory) -> Path:
    """A comparison of three systems, one of them an oracle. Read only."""
    out = tmp_path_factory.mktemp("compare") / "three"
    config = configured(*COMPARE, "compare.systems=[uniform,bpe,learned]", f"out={out}")
    config.compare.options = {"bpe": {"vocabulary": 300, "num_bytes": 20_000}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_systems, "write_report", lambda folder: folder / "report.md")  # slow, tested with runs
        train_systems.run(config, "the command")
    return out

"""Trainings as they are configured: every yaml file, the command, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from rltok_rl.experiments import train
from rltok_rl.experiments.config import GROUPS, TrainConfig

from ..layout import ROOT

CONF = ROOT / "experiments" / "conf"
FILES = sorted(p.relative_to(CONF).with_suffix("").as_posix() for p in CONF.rglob("*/*.yaml"))
QUICK = [
    "optim.total_bytes=512",
    "optim.warm_up_bytes=0",
    "data.num_rows=4",
    "data.num_steps=32",
    "data.source=python-docs",
]


def configured(*overrides: str) -> TrainConfig:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        made = OmegaConf.to_object(compose("train", list(overrides)))
    assert isinstance(made, TrainConfig)
    return made


@pytest.mark.parametrize("file", FILES)
def test_every_file_makes_a_trainer(file):
    """Composed and built; the paper's sizes are composed alone, they take memory."""
    group, name = file.split("/")
    overrides = [f"+{group}={name}"] if group == "experiment" else [f"{group}={name}"]
    if group == "experiment":
        overrides = [f"experiment={name}"]
    config = configured(*overrides, *QUICK, "compute.device=cpu")
    if "paper-" in config.model.preset:
        return
    trainer, held = train.make_trainer(config)
    assert trainer.bytes_per_update == 4 * 32 and held.lengths.sum() > 1000
    figures = trainer.update()
    assert all(torch.isfinite(torch.tensor(value)) for value in figures.values())
    assert set(train.NOTED) <= set(figures)


def test_groups_are_the_schemas():
    folders = {p.name for p in CONF.iterdir() if p.is_dir()}
    assert folders == {*GROUPS, "experiment"}


def test_an_experiment_says_what_it_changes():
    plain, changed = configured(), configured("experiment=no-discount")
    assert (plain.estimator.gamma, changed.estimator.gamma) == (0.95, 1.0)
    assert changed.estimator.name == "batch_centred"
    assert configured("experiment=one-lag").model.overrides["num_lags"] == 1


def test_keys_that_do_not_exist_are_refused():
    with pytest.raises(ConfigCompositionException, match="lrr"):
        configured("optim.lrr=1")
    with pytest.raises(ConfigCompositionException, match="not_there"):
        configured("estimator=not_there")


def test_a_run_writes_its_folder_and_is_not_overwritten(tmp_path, capsys):
    config = configured(*QUICK, f"out={tmp_path}/run")
    summary = train.run(config, "the command")
    out = tmp_path / "run"
    assert json.loads((out / "summary.json").read_text()) == summary
    assert summary["updates"] == 4 and summary["command"] == "the command"
    assert 4 < summary["held_out_bits_per_byte"] < 9
    lines = (out / "metrics.csv").read_text().splitlines()
    assert len(lines) == 5 and lines[0].startswith("update,bytes,loss,bits_per_byte")
    assert (out / "curves.png").stat().st_size > 10_000 and "|" in (out / "sample.txt").read_text()
    again = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.load(out / "config.yaml")))
    assert again == config
    assert "held_out_bits_per_byte" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match="holds another run; resume it, or choose another folder"):
        train.run(config, "the command")


def test_the_command_runs(tmp_path):
    command = [sys.executable, "-m", "rltok_rl.experiments.train", *QUICK, f"out={tmp_path}/run", "compute.threads=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "100%" in done.stderr and str(tmp_path / "run" / "curves.png") in done.stdout


def test_text_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"data.source must be one of \['python-code', 'python-docs'\] or a file"
    ):
        train.read_text(str(tmp_path / "none.txt"))
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"abc\xff\xfe")
    with pytest.raises(ValueError, match="data.source must be UTF-8 text"):
        train.read_text(str(broken))
    with pytest.raises(ValueError, match="documents must hold|documents must have at least"):
        train.split(b"", 0.1)
    with pytest.raises(ValueError, match="data.held_out must lie strictly between 0 and 1, got 1.5"):
        train.split(b"abc", 1.5)
    assert Path(train.__file__).name == "train.py"

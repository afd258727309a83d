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

from rltok_rl.models import UNet
from rltok_rl.training.checkpoint import load_checkpoint

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
    trained = UNet.from_pretrained(out)
    _, state = load_checkpoint(out / "checkpoints")
    assert all(torch.equal(weight, state["model"][name]) for name, weight in trained.state_dict().items())
    assert (out / "figures" / "curves.png").stat().st_size > 10_000 and "|" in (out / "sample.txt").read_text()
    again = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.load(out / "config.yaml")))
    assert again == config
    assert "held_out_bits_per_byte" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match="holds another run; resume it, or choose another folder"):
        train.run(config, "the command")


def test_the_command_runs(tmp_path):
    command = [sys.executable, "-m", "rltok_rl.experiments.train", *QUICK, f"out={tmp_path}/run", "compute.threads=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "100%" in done.stderr and str(tmp_path / "run" / "report.md") in done.stdout


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


def metrics(folder: Path) -> str:
    return (folder / "metrics.csv").read_text()


LONGER = [*QUICK, "optim.total_bytes=5_120", "checkpoint_every=3", "compute.threads=1", "resume=true"]


def test_killed_without_warning_and_resumed_is_uninterrupted(tmp_path):
    """SIGKILL at ten random moments, resumed each time: the figures of all 40 updates to the last bit."""
    import os
    import random
    import signal
    import time

    def start(folder: Path) -> subprocess.Popen:
        command = [sys.executable, "-m", "rltok_rl.experiments.train", *LONGER, f"out={folder}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})

    dice = random.Random(1)
    for _ in range(10):
        with start(tmp_path / "killed") as process:
            begun = time.perf_counter()
            while not (tmp_path / "killed" / "metrics.csv").exists() and process.poll() is None:
                time.sleep(0.02)
            time.sleep(dice.random() * (2.0 if time.perf_counter() - begun > 1 else 6.0))
            process.send_signal(signal.SIGKILL)
    with start(tmp_path / "killed") as process:
        assert process.wait(timeout=200) == 0
    with start(tmp_path / "whole") as process:
        assert process.wait(timeout=200) == 0
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert len(metrics(tmp_path / "whole").splitlines()) == 41


def test_asked_to_stop_it_saves_and_goes_on_later(tmp_path, monkeypatch):
    """SIGTERM after the fifth update, as a scheduler sends it."""
    import os
    import signal

    config = configured(*LONGER, f"out={tmp_path}/run")
    add = train.MetricsTable.add

    def add_and_stop(self, update, *rest):
        add(self, update, *rest)
        if update == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(train.MetricsTable, "add", add_and_stop)
    assert train.run(config, "") == {"updates": 5, "bytes": 5 * 128}
    monkeypatch.setattr(train.MetricsTable, "add", add)
    assert train.run(config, "")["updates"] == 40
    whole = configured(*LONGER, f"out={tmp_path}/whole")
    train.run(whole, "")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_another_configuration_is_not_resumed(tmp_path):
    train.run(configured(*QUICK, f"out={tmp_path}/run"), "")
    with pytest.raises(
        ValueError, match="run with another configuration .seed: 0 there, 7 here.; choose another folder"
    ):
        train.run(configured(*QUICK, f"out={tmp_path}/run", "resume=true", "seed=7"), "")


def test_rows_have_to_fit_texts_and_processes():
    with pytest.raises(
        ValueError, match="data.num_rows must be a multiple of estimator.rows_per_text, 4, in each of 1"
    ):
        train.make_trainer(configured(*QUICK, "estimator.rows_per_text=4", "data.num_rows=6"))
    with pytest.raises(ValueError, match=r"strategy must be one of \['none', 'ddp', 'fsdp'\], got 'zero'"):
        train.make_trainer(configured(*QUICK, "compute.strategy=zero"))


def test_a_run_goes_on_under_another_strategy(tmp_path):
    train.run(configured(*QUICK, f"out={tmp_path}/run"), "")
    assert train.run(configured(*QUICK, f"out={tmp_path}/run", "resume=true", "compute=cpus"), "")["updates"] == 4

"""Loggers by name: what they log, what is refused, and how they resume."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
from torchrl.record.loggers import CSVLogger
from torchrl.record.loggers import wandb as torchrl_wandb

from rltok_rl.training import loggers
from rltok_rl.training.loggers import Logging, LogTarget, check_logger, register_logger, run_id


class Recording(CSVLogger):
    """A logger of TorchRL that remembers."""

    def __init__(self, target, **options):
        self.target, self.options, self.seen = target, options, []
        super().__init__(target.run_name, str(target.folder))
        self.experiment = SimpleNamespace(close=lambda: self.seen.append("closed"))

    def log_scalar(self, name, value, step=None, **_):
        self.seen.append((name, value, step))


def target(folder, **options) -> LogTarget:
    return LogTarget(folder=folder, run_name="mine", **options)


def test_metrics_arrive_by_group_and_update(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "_MAKERS", dict(loggers._MAKERS))
    created = []
    register_logger("recording", lambda target, **options: created.append(Recording(target, **options)) or created[-1])
    options = {"colour": "red"}
    with pytest.raises(KeyError), Logging("recording", target(tmp_path, resume_after=2), **options) as logging:
        logging.add("train", {"loss": 2.0, "rate": 0.2}, update=3)
        logging.add("held_out", {"rate": 0.25}, update=3)
        raise KeyError  # closed all the same
    (logger,) = created
    assert logger.seen == [("train/loss", 2.0, 3), ("train/rate", 0.2, 3), ("held_out/rate", 0.25, 3), "closed"]
    assert logger.options == options and logger.target.resume_after == 2


def test_unknown_loggers_missing_packages_and_options_of_csv_are_refused(tmp_path, monkeypatch):
    check_logger("csv")
    with pytest.raises(ValueError, match=r"must be one of \['csv', 'tensorboard', 'wandb'\], got 'mlflow'"):
        check_logger("mlflow")
    with pytest.raises(ValueError, match="logger.options must be empty for logger.name 'csv', got .*colour"):
        Logging("csv", target(tmp_path), colour="red")
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    for name in ("tensorboard", "wandb"):
        with pytest.raises(ImportError, match=f"logger.name '{name}' needs the package {name}: pip install {name}"):
            check_logger(name)


def test_wandb_keeps_its_run_and_its_steps(tmp_path, monkeypatch):
    assert len(run_id(tmp_path / "new.txt", keep=True)) == 12  # of a run that began with another logger
    started, logged, configured = [], [], []
    run = SimpleNamespace(
        id="x",
        config=SimpleNamespace(update=lambda config, **_: configured.extend(config)),
        log=lambda payload, step=None: logged.append((payload, step)),
        finish=lambda: logged.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: started.append(options) or run))
    monkeypatch.setattr(torchrl_wandb, "_has_wandb", True)
    monkeypatch.setattr(loggers, "check_logger", lambda _: None)
    for resume_after in (None, 7, 0):
        with Logging("wandb", target(tmp_path, project="p", config={"seed": 1}, resume_after=resume_after)) as logging:
            logging.add("train", {"loss": 1.5}, update=8)
    with Logging("wandb", target(tmp_path), tags=["a"], project="q"):
        pass
    assert logged[:2] == [({"train/loss": 1.5}, 8), "finished"]
    assert "env" not in configured, "TorchRL's record of the machine has folder names"
    first, second, third, new = started
    assert first["id"] == second["id"] == third["id"] != new["id"] and len(new["id"]) == 12
    assert (first["project"], first["config"], first["name"], first["resume"]) == ("p", {"seed": 1}, "mine", "allow")
    assert (new["project"], new["tags"]) == ("q", ["a"])


def test_tensorboard_drops_what_comes_again(tmp_path, monkeypatch):
    """Updates after the one that is kept, and the evaluation before the first."""
    made: list[dict] = []
    writer = SimpleNamespace(log_dir="", close=lambda: made.append("closed"))
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", lambda **options: made.append(options) or writer)
    for after, purge in ((None, None), (0, 0), (7, 8)):
        with Logging("tensorboard", target(tmp_path, resume_after=after)):
            pass
        assert made[-2:] == [{"log_dir": str(tmp_path / "tensorboard"), "purge_step": purge}, "closed"]

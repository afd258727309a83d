"""Loggers by name: what they log, what is refused, and how they resume."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest
from torchrl.record.loggers import Logger
from torchrl.record.loggers import wandb as torchrl_wandb

from rltok_rl.training import loggers
from rltok_rl.training.loggers import Logging, LogTarget, check_logger, logger_names, register_logger, run_id


class Recording(Logger):
    """A logger of TorchRL that remembers."""

    def __init__(self, target, **options):
        self.target, self.options, self.seen, self.closed = target, options, [], False
        super().__init__(exp_name=target.run_name, log_dir=str(target.folder))

    def _create_experiment(self):
        return types.SimpleNamespace(close=lambda: setattr(self, "closed", True))

    def log_scalar(self, name, value, step=None, **_):
        self.seen.append((name, value, step))

    def log_video(self, *_, **__): ...

    def log_hparams(self, *_): ...

    def log_histogram(self, *_, **__): ...

    def __repr__(self):
        return "Recording()"


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setattr(loggers, "_MAKERS", dict(loggers._MAKERS))
    made = []
    register_logger("recording", lambda target, **options: made.append(Recording(target, **options)) or made[-1])
    return made


def target(folder, **options) -> LogTarget:
    return LogTarget(folder=folder, run_name="mine", **options)


def test_metrics_arrive_by_group_and_update(recording, tmp_path):
    options = {"colour": "red"}
    with pytest.raises(KeyError), Logging("recording", target(tmp_path, resume_after=2), **options) as logging:
        logging.add("train", {"loss": 2.0, "rate": 0.2}, update=3)
        logging.add("held_out", {"rate": 0.25}, update=3)
        raise KeyError  # closed all the same
    (logger,) = recording
    assert logger.seen == [("train/loss", 2.0, 3), ("train/rate", 0.2, 3), ("held_out/rate", 0.25, 3)]
    assert logger.options == options and logger.target.resume_after == 2 and logger.closed


def test_unknown_loggers_missing_packages_and_options_of_csv_are_refused(tmp_path, monkeypatch):
    check_logger("csv")
    with pytest.raises(ValueError, match=r"must be one of \['csv', 'tensorboard', 'wandb'\], got 'mlflow'"):
        check_logger("mlflow")
    with pytest.raises(ValueError, match="logger.options must be empty for logger.name 'csv', got .*colour"):
        Logging("csv", target(tmp_path), colour="red")
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    for name in ("tensorboard", "wandb"):
        assert name in logger_names()
        with pytest.raises(ImportError, match=f"logger.name '{name}' needs the package {name}: pip install {name}"):
            check_logger(name)


@pytest.mark.parametrize(("resume_after", "purge"), [(None, None), (0, 0), (7, 8)])
def test_tensorboard_drops_metrics_that_come_again(resume_after, purge, tmp_path, monkeypatch):
    """Metrics of updates after the checkpoint are purged, in the run's folder."""
    written = []

    class SummaryWriter:
        def __init__(self, log_dir, purge_step):
            self.log_dir = log_dir
            written.append((log_dir, purge_step))

        def add_scalar(self, name, value, global_step):
            written.append((name, value, global_step))

        def close(self):
            written.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    monkeypatch.setattr(loggers, "check_logger", lambda _: None)
    with Logging("tensorboard", target(tmp_path, resume_after=resume_after)) as logging:
        logging.add("train", {"loss": 1.5}, update=8)
    assert written == [(str(tmp_path / "tensorboard"), purge), ("train/loss", 1.5, 8), "closed"]


def test_wandb_keeps_its_run_and_its_steps(tmp_path, monkeypatch):
    started, logged = [], []

    class Run:
        id = "x"
        config = types.SimpleNamespace(update=lambda *_, **__: None)

        def log(self, payload, step=None):
            logged.append((payload, step))

        def finish(self):
            logged.append("finished")

    def init(**options):
        started.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    monkeypatch.setattr(torchrl_wandb, "_has_wandb", True)
    monkeypatch.setattr(loggers, "check_logger", lambda _: None)
    for resume_after in (None, 7, 0):
        with Logging("wandb", target(tmp_path, project="p", config={"seed": 1}, resume_after=resume_after)) as logging:
            logging.add("train", {"loss": 1.5}, update=8)
    with Logging("wandb", target(tmp_path), tags=["a"], project="q"):
        pass
    assert logged[:2] == [({"train/loss": 1.5}, 8), "finished"]
    first, second, third, new = started
    assert first["id"] == second["id"] == third["id"] != new["id"]
    assert (first["project"], first["config"], first["name"], first["resume"]) == ("p", {"seed": 1}, "mine", "allow")
    assert (new["project"], new["tags"]) == ("q", ["a"])


def test_a_resumed_run_keeps_its_identifier(tmp_path):
    path = tmp_path / "id.txt"
    first = run_id(path, keep=True)
    assert len(first) == 12 and run_id(path, keep=True) == first != run_id(path, keep=False)

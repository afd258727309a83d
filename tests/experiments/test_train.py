"""Trainings as they are configured: every yaml file, the command, what it refuses."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.experiments import train
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs import build, run
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.runs.resume import check_same_run
from rltok_rl.experiments.studies import soak
from safetensors import SafetensorError

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.training import loggers
from rltok_rl.training.atomic_files import claim_folder
from rltok_rl.training.checkpoint import load_checkpoint
from rltok_rl.training.metrics import read_lines
from rltok_rl.training.parallel import Processes, Refused
from rltok_rl.training.progress import MetricsTable

from ..forked import Forked, run_forked
from ..layout import ROOT
from ..training.test_loggers import Recording
from .configured import QUICK, configured
from .killed import killed_at


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch):
    """Drawing a run's page takes longer than these trainings; the command draws it, in a process of its own."""
    monkeypatch.setattr(train, "write_report", lambda out: out / "report.md")


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
    assert "|" in (out / "sample.txt").read_text()
    again = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.load(out / "config.yaml")))
    assert again == config
    before = read_lines(out / "samples.jsonl")[0]["held_out_bits_per_byte"]
    line, page = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"held-out text: {before:.2f} -> {summary['held_out_bits_per_byte']:.2f} bits per byte (early"
    )
    assert line.endswith(f"{summary['held_out_rate']:.3f} boundaries per byte") and page == f"report: {out}/report.md"
    with pytest.raises(FileExistsError, match="holds a run, which is finished; choose another folder"):
        train.run(config, "the command")


def test_the_command_runs(tmp_path):
    command = [sys.executable, "-m", "rltok_rl.experiments.train", *QUICK, f"out={tmp_path}/run", "compute.threads=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "100%" in done.stderr and f"report: {tmp_path}/run/report.md" in done.stdout
    assert (tmp_path / "run" / "figures" / "curves.png").stat().st_size > 10_000
    left = {path.name for path in (tmp_path / "run").iterdir()}
    told = {name for name in left if f"`{name}" in (ROOT / "docs" / "runs.md").read_text()}
    assert left == told, "docs/runs.md has a row for every file of a run"


SAME = ("model=tiny", "+model.overrides.boundary_scale=1.0", "+model.overrides.target_rate=0.3")
"""The model of these tests, as options."""


def test_a_training_begins_with_the_weights_that_it_is_given(tmp_path):
    torch.manual_seed(5)
    model = UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3))
    folder = str(model.save_pretrained(tmp_path / "trained"))

    def first_loss(out: str, weights: str | None) -> float:
        config = configured(*QUICK, *SAME, f"out={tmp_path}/{out}")
        config.model.weights = weights
        trainer, _ = make_trainer(config)
        if weights == folder:
            assert all(torch.equal(one, trainer.model.state_dict()[name]) for name, one in model.state_dict().items())
        assert trainer.model.training
        train.run(config, "the command")
        return float(table(tmp_path / out)[0]["bits_per_byte"])

    given, fresh = first_loss("given", folder), first_loss("fresh", None)
    assert given != fresh
    later = first_loss("on", str(tmp_path / "given"))  # the folder of a run is a model, too
    assert later < given - 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["model=tiny"], r"of another configuration \(target_rate: 0.3 there, 0.2 here; boundary_scale: 1.0 there"),
        (["model=tiny", SAME[1]], r"of another configuration \(target_rate: 0.3 there, 0.2 here\)"),
        ([*SAME, "+model.overrides.width=32"], "do not fit another width: their shapes depend on it"),
        (["model=small"], "of another configuration .width: 64 there"),
    ],
)
def test_weights_of_another_model_are_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(configured(*QUICK, *options, f"model.weights={folder}"))
    with pytest.raises(FileNotFoundError, match="source must be a folder of save_pretrained"):
        make_trainer(configured(*QUICK, "model.weights=no/such/folder"))


def test_what_is_replaced_may_differ_from_the_weights(folder):
    options = ("model=tiny", "+model.overrides.boundary_scale=0.5", "+model.overrides.target_rate=0.1")
    trainer, _ = make_trainer(configured(*QUICK, *options, f"model.weights={folder}"))
    assert trainer.model.config.target_rate == 0.1


def metrics(folder: Path) -> str:
    return (folder / "metrics.csv").read_text() + (folder / "samples.jsonl").read_text()


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def updates(folder: Path) -> int:
    return len((folder / "metrics.csv").read_text().splitlines()) - 1


LONGER = [*QUICK, "optim.total_bytes=1_280", "checkpoint_every=3", "compute.threads=1", "resume=true"]


def start(folder: Path, updates: int) -> Forked:
    """As :func:`soak.start`, with everything imported: most of its kills would come while modules load."""
    options = [*soak.OPTIONS, f"optim.total_bytes={updates * 128}", f"out={folder}"]
    return Forked("rltok_rl.experiments.train", options, err=folder.parent / f"{folder.name}.log")


def test_killed_without_warning_and_resumed_is_uninterrupted(tmp_path, monkeypatch):
    """SIGKILL at ten random moments, resumed each time: the figures of all 120 updates to the last bit."""
    monkeypatch.setattr(soak, "start", start)
    assert soak.kill_often(tmp_path / "killed", kills=10, updates=120, dice=random.Random(1)) == 10
    with soak.start(tmp_path / "whole", 120) as process:
        assert process.wait(timeout=200) == 0
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert updates(tmp_path / "whole") == 120


def test_asked_to_stop_it_saves_and_goes_on_later(tmp_path, monkeypatch, capfd):
    """SIGTERM after the fifth update, as a scheduler sends it."""
    import os
    import signal

    config = configured(*LONGER, f"out={tmp_path}/run")
    add = MetricsTable.add

    def add_and_stop(self, update, *rest):
        add(self, update, *rest)
        if update == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MetricsTable, "add", add_and_stop)
    assert train.run(config, "") == {"updates": 5, "bytes": 5 * 128, "stopped": signal.SIGTERM}
    said = capfd.readouterr().err
    assert "SIGTERM: stopping when what is under way is done and saved; again ends at once" in said
    assert UNet.from_pretrained(tmp_path / "run").config.width == 64  # the model so far can be looked at
    monkeypatch.setattr(MetricsTable, "add", add)
    assert train.run(config, "")["updates"] == 10
    whole = configured(*LONGER, f"out={tmp_path}/whole")
    train.run(whole, "")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_one_that_was_stopped_ends_with_the_status_of_its_signal(tmp_path, monkeypatch):
    """So that `rltok train && rltok eval` does not go on, nor a multirun to its next job."""
    config = configured(*QUICK, f"out={tmp_path}/run")
    monkeypatch.setattr(train, "run", lambda *_: {"updates": 1, "bytes": 1, "stopped": 2})
    with pytest.raises(SystemExit) as ended:
        train._run_or_refuse(config, "", Processes())
    assert ended.value.code == 130


def test_what_is_refused_leaves_no_folder(tmp_path):
    done = run_forked("rltok_rl.experiments.train", *QUICK, "loss.objective=none", "out=runs/a", cwd=tmp_path)
    assert done.returncode == 1 and "rltok train: " in done.stderr and not (tmp_path / "runs" / "a").exists()


@pytest.mark.parametrize("where", ["rltok_rl.training.progress.csv.DictWriter", "rltok_rl.models.pretrained.save_file"])
def test_a_full_disk_ends_a_run_in_one_line_that_names_the_folder(tmp_path, monkeypatch, where):
    """While a table grows, and as the model is saved."""

    def full(*_, **__):
        raise OSError(28, "No space left on device") if "csv" in where else SafetensorError("No space left on device")

    monkeypatch.setattr(where, full)
    config = configured(*QUICK, f"out={tmp_path}/run")
    with pytest.raises(Refused, match="^rltok train: .*No space left on device") as refused:
        train._run_or_refuse(config, "", Processes())
    assert f"{tmp_path}/run" in str(refused.value) and "\n" not in str(refused.value)
    monkeypatch.undo()
    again = configured(*QUICK, f"out={tmp_path}/run", "resume=true")
    assert train.run(again, "")["updates"] == 4  # nothing is left half written


def test_two_runs_do_not_share_a_folder(tmp_path):
    """Side by side, resuming or not: the second one is refused, and the first one's files are its own."""
    config = configured(*LONGER, f"out={tmp_path}/run")
    with claim_folder(tmp_path / "run"), pytest.raises(BlockingIOError, match="in use by a run that is under way"):
        train.run(config, "")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_sample_longer_than_held_out_texts_is_refused_before_the_folder_is_written(tmp_path):
    (tmp_path / "some.jsonl").write_text(
        "\n".join(json.dumps({"text": f"{n} to be or not to be " * 3}) for n in range(40))
    )
    files = [f"data.source={tmp_path}/some.jsonl", f"data.cache={tmp_path}/cache", "data.held_out=0.3"]
    with pytest.raises(ValueError, match="snapshots.num_bytes=240 is more than held-out texts have: documents must"):
        train.run(configured(*QUICK, *files, f"out={tmp_path}/run"), "")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_another_configuration_is_not_resumed(tmp_path):
    train.run(configured(*QUICK, f"out={tmp_path}/run"), "")
    before = metrics(tmp_path / "run")
    for option, said in [
        ("seed=7", "seed: 0 there, 7 here"),
        ("model.overrides.window=9", "model.overrides.window: 8 there, 9 here"),
        ("compute.micro_batches=2", "compute.micro_batches: 1 there, 2 here"),
        ("snapshots.count=3", "snapshots.count: . there, 3 here"),
        ("optim.lr=1e-4", r"optim.lr: .* here\); choose another folder, or train its model on .*model.weights=.*run"),
    ]:
        with pytest.raises(ValueError, match=f"is of a run with another configuration .{said}"):
            train.run(configured(*QUICK, f"out={tmp_path}/run", "resume=true", option), "")
    assert metrics(tmp_path / "run") == before
    other = configured(*QUICK, f"out={tmp_path}/run", "resume=true")
    other.compute.device = "cuda:1"
    with pytest.raises(ValueError, match="compute.device: 'cpu' there, 'cuda' here"):
        check_same_run(other, tmp_path / "run" / "config.yaml")


@pytest.mark.parametrize(
    "options",
    [
        ["compute.recompute=layers", "compute.threads=2"],
        ["compute.likelihood_chunk=7"],
        ["compute.tokens=packed"],
        ["compute.tokens=packed", "compute.token_room=3.0"],
    ],
    ids="/".join,
)
def test_a_run_goes_on_with_other_options_of_speed_and_memory(tmp_path, options):
    threads = torch.get_num_threads()
    whole, config = (
        configured(*LONGER, f"out={tmp_path}/whole"),
        configured(*LONGER[:-2], *LONGER[-1:], *options, f"out={tmp_path}/run"),
    )
    train.run(whole, "")
    shutil.copytree(tmp_path / "whole", tmp_path / "run", ignore=lambda *_: ["summary.json", "report.md", "model"])
    newest = max((tmp_path / "run" / "checkpoints").glob("update-*"))
    shutil.rmtree(newest)  # as one that was killed after the checkpoint before
    try:
        assert train.run(config, "")["updates"] == 10
    finally:
        torch.set_num_threads(threads)
    for name in ("loss", "bits_per_byte", "rate", "grad_norm"):
        mine, other = ([row[name] for row in table(tmp_path / run)] for run in ("run", "whole"))
        assert [float(x) for x in mine] == pytest.approx([float(x) for x in other], rel=1e-3, abs=1e-5)


def test_a_folder_that_holds_a_run_says_how_that_one_stands(tmp_path):
    train.run(configured(*QUICK, f"out={tmp_path}/run"), "")
    with pytest.raises(FileExistsError, match="out=.*run holds a run, which is finished; choose another folder"):
        train.run(configured(*QUICK, f"out={tmp_path}/run"), "")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(FileExistsError, match="which was stopped: resume=true goes on with it"):
        train.run(configured(*QUICK, f"out={tmp_path}/run"), "")


def test_texts_that_changed_under_their_name_are_not_gone_on_with(tmp_path, monkeypatch):
    """A byte of one file, its length and path as they were; the cache has a place of its own, or is named."""
    monkeypatch.chdir(tmp_path)
    book, text = Path("book.txt"), local_prose(20_000)
    book.write_bytes(text)
    options = [*QUICK[:-1], "data=files", "data.source=book.txt", "resume=true", "checkpoint_every=2"]
    train.run(configured(*options, "out=run"), "")
    first = load_checkpoint(Path("run/checkpoints"))[1]["trained_on"]
    train.run(configured(*options, "out=named", "data.cache=cache"), "")
    assert load_checkpoint(Path("named/checkpoints"))[1]["trained_on"] == first
    before = metrics(Path("run"))
    book.write_bytes(text[:-1] + b"?")
    message = (
        r"run was trained on other texts than data.source='book.txt' has now \(sha256 (\w{64}) there, (\w{64}) here"
    )
    with pytest.raises(ValueError, match=message) as refused:
        train.run(configured(*options, "out=run"), "")
    there, here = re.search(message, str(refused.value)).groups()
    assert there == first != here
    with pytest.raises(FileExistsError, match="data.cache cannot be used for data.source='book.txt': .* there, "):
        train.run(configured(*options, "out=named", "data.cache=cache"), "")
    train.run(configured(*options, "out=other"), "")  # a new run takes them as they are
    assert load_checkpoint(Path("other/checkpoints"))[1]["trained_on"] == here
    book.write_bytes(text)
    assert train.run(configured(*options, "out=run"), "")["updates"] == 4
    assert metrics(Path("run")) == before


def test_a_logger_hears_every_update_once_over_a_resumption(tmp_path, monkeypatch):
    """By name in the configuration; after a kill, it is told from where figures come again."""
    made = []
    monkeypatch.setattr(loggers, "_MAKERS", dict(loggers._MAKERS))
    loggers.register_logger("recording", lambda target, **options: made.append(Recording(target)) or made[-1])
    options = [*LONGER, f"out={tmp_path}/run", "logger.name=recording"]
    with killed_at(5):
        train.run(configured(*options), "")
    train.run(configured(*options), "")
    first, second = made
    assert (first.target.resume_after, second.target.resume_after) == (None, 3) and first.closed and second.closed

    def steps(logger, name):
        return [step for seen, _, step in logger.seen if seen == name]

    assert steps(first, "train/loss") == [1, 2, 3, 4] and steps(second, "train/loss") == [4, 5, 6, 7, 8, 9, 10]
    assert steps(first, "held_out/bits_per_byte") == [0, 1, 2] and steps(second, "held_out/bits_per_byte") == [5, 10]
    values = {step: value for name, value, step in second.seen if name == "train/loss"}
    assert values == {int(row["update"]): float(row["loss"]) for row in table(tmp_path / "run")[3:]}


def test_a_logger_whose_package_is_missing_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    monkeypatch.setattr(run, "make_trainer", lambda *_: pytest.fail("a trainer was made"))
    with pytest.raises(ImportError, match="needs the package tensorboard: pip install tensorboard"):
        train.run(configured(*QUICK, f"out={tmp_path}/run", "logger=tensorboard"), "")
    assert not (tmp_path / "run").exists()


def test_alarms_are_heard(tmp_path, monkeypatch, capsys):
    """Once each, with the update and what to try; over a resumption as without one."""
    make = build.Alarms
    monkeypatch.setattr(build, "Alarms", lambda **options: make(**options, patience=4, least_entropy=9.0))
    options = [*LONGER]
    train.run(configured(*options, f"out={tmp_path}/whole"), "")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
    assert len(said) == 1 and said[0].startswith("warning: update 4: the policy has stopped exploring")
    assert "add an entropy bonus" in said[0]
    add = MetricsTable.add

    def add_and_fail(self, update, *rest):
        if update == 4 and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            raise KeyError("killed")
        add(self, update, *rest)

    monkeypatch.setattr(MetricsTable, "add", add_and_fail)
    with pytest.raises(KeyError, match="killed"):
        train.run(configured(*options, f"out={tmp_path}/run"), "")
    train.run(configured(*options, f"out={tmp_path}/run"), "")
    assert (tmp_path / "run" / "alarms.log").read_text() == (tmp_path / "whole" / "alarms.log").read_text()


def test_alarms_count_batches_not_epochs(tmp_path, monkeypatch, capsys):
    """Further epochs of the policy over a batch neither hurry a warning nor wipe it away."""
    make = build.Alarms
    monkeypatch.setattr(build, "Alarms", lambda **options: make(**options, patience=3, least_entropy=9.0))
    train.run(configured(*QUICK, "loss=ppo", f"out={tmp_path}/run"), "")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
    assert len(said) == 1 and said[0].startswith("warning: update 3: the policy has stopped exploring")


def test_where_each_start_ran_is_kept(tmp_path, monkeypatch):
    config = configured(*LONGER, f"out={tmp_path}/run")
    monkeypatch.setattr(build.Trainer, "done", property(lambda self: self.updates >= 6))
    train.run(config, "one")
    monkeypatch.undo()
    summary = train.run(config, "two")
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert [(s["command"], s["from_update"], s["to_update"]) for s in starts] == [("one", 0, 6), ("two", 6, 10)]
    seconds = sum(s["seconds"] for s in starts)
    assert summary["bytes_per_second"] == pytest.approx(1280 / seconds)
    assert summary["threads"] == 1 and summary["peak_memory"] > 50e6


def test_rows_have_to_fit_texts_and_processes():
    with pytest.raises(ValueError, match="data.num_rows must be a multiple of baseline.rows_per_text, 4, in each of 1"):
        make_trainer(configured(*QUICK, "baseline.rows_per_text=4", "data.num_rows=6"))
    with pytest.raises(ValueError, match=r"strategy must be one of \['none', 'ddp', 'fsdp'\], got 'zero'"):
        make_trainer(configured(*QUICK, "compute.strategy=zero"))


def test_a_run_goes_on_under_another_strategy(tmp_path):
    train.run(configured(*QUICK, f"out={tmp_path}/run"), "")
    assert train.run(configured(*QUICK, f"out={tmp_path}/run", "resume=true", "compute=cpus"), "")["updates"] == 4

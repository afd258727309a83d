"""Runs: the files they write, initial weights, refusals before anything is written, exit statuses."""

from __future__ import annotations

import importlib.util
import json
import math
import shlex

import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.experiments import train
from rltok_rl.experiments.commands.overrides import allow_new, typed
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs import run as runs
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.runs.run import run
from safetensors import SafetensorError

from rltok_rl.data.disk import claim_folder
from rltok_rl.models import UNet
from rltok_rl.training.checkpoint import load_checkpoint
from rltok_rl.training.distributed import Processes, Refused
from rltok_rl.training.metrics import read_lines, read_table

from ..each import each
from ..forked import run_forked
from ..layout import ROOT
from .configured import QUICK, configured

SAME = ("model=tiny", "+model.overrides.boundary_scale=1.0", "+model.overrides.target_rate=0.3")
"""Options of the model that tests share."""


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch):
    """Skip figures, which take longer than these runs."""
    monkeypatch.setattr(train, "write_report", lambda out: out / "report.md")


def test_run_writes_its_folder(tmp_path, capsys):
    out = tmp_path / "run"
    config = configured(*QUICK, f"out={out}")
    summary = train.run(config, "the command")
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
    losses = f"{before:.2f} -> {summary['held_out_bits_per_byte']:.2f}"
    assert line.startswith(f"held-out text: {losses} bits per byte (early")
    assert line.endswith(f"{summary['held_out_rate']:.3f} boundaries per byte") and page == f"report: {out}/report.md"


def test_a_warm_start_as_long_as_the_run_is_told(tmp_path, capsys):
    for size, told in ((1_000_000, True), (128, False)):
        config = configured(*QUICK, f"actor.warm_start_bytes={size}", f"out={tmp_path / str(size)}")
        train.run(config, "the command")
        warning = f"actor.warm_start_bytes must be less than optim.total_bytes={config.optim.total_bytes}, got {size}"
        assert (warning in capsys.readouterr().err) == told


def test_relative_return_in_metrics(tmp_path):
    """Updates that a snapshot follows have its relative return and error in ``metrics.csv``, the others ``nan``.

    Snapshots pay the run's price.
    """
    out = tmp_path / "run"
    part = "optim.total_bytes=390"  # three updates and a part: a fourth
    train.run(configured(*QUICK, part, "snapshots.count=2", "estimator.price=0.5", f"out={out}"), "the command")
    history = read_table(out / "metrics.csv")
    taken = {int(snapshot["update"]): snapshot for snapshot in read_lines(out / "samples.jsonl")}
    assert [*taken] == [0, 2, 4] and [*history["update"]] == [1, 2, 3, 4]
    for one in taken.values():
        nats = math.log(2) * (one["held_out_early_bits_per_byte"] - one["held_out_bits_per_byte"])
        assert one["held_out_reward"] == pytest.approx(nats - 0.5 * one["held_out_rate"], abs=1e-5)
    for name in ("held_out_relative_return", "held_out_relative_return_standard_error"):
        for update, value in zip(history["update"], history[name], strict=True):
            assert value == taken[update][name] if update in taken else math.isnan(value)


def test_command_runs(tmp_path):
    done = run_forked("rltok_rl.experiments.train", *QUICK, f"out={tmp_path}/run", "compute.threads=1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "no recipe; closest: tuned, except " in done.stderr, "every run says which recipe it follows"
    assert "100%" in done.stderr and f"report: {tmp_path}/run/report.md" in done.stdout
    assert (tmp_path / "run" / "figures" / "curves.png").stat().st_size > 2_500
    documented = (ROOT / "docs" / "runs.md").read_text()
    undocumented = [path.name for path in (tmp_path / "run").iterdir() if f"`{path.name}" not in documented]
    assert undocumented == [], "docs/runs.md has a row for every file"


def test_initial_weights(model, folder, tmp_path):
    trainer, _ = make_trainer(configured(*QUICK, *SAME, f"model.weights={folder}"))
    assert all(torch.equal(one, trainer.model.state_dict()[name]) for name, one in model.state_dict().items())
    assert trainer.model.training

    def first_loss(name: str, *options: str) -> float:
        run(configured(*QUICK, *SAME, "snapshots.batches=1", f"out={tmp_path}/{name}", *options), "")
        return read_table(tmp_path / name / "metrics.csv")["bits_per_byte"][0]

    fresh = first_loss("fresh")  # the folder of a run is a model, too
    assert first_loss("continued", f"model.weights={tmp_path}/fresh") < fresh - 0.05


def test_weights_of_another_model_are_refused(folder):
    for options, message in (
        (["model=tiny"], r"of another configuration \(target_rate: 0.3 there, 0.2 here; boundary_scale: 1.0 there"),
        (["model=tiny", SAME[1]], r"of another configuration \(target_rate: 0.3 there, 0.2 here\)"),
        ([*SAME, "+model.overrides.width=32"], "do not fit another width: their shapes depend on it"),
        (["model=small"], "of another configuration .width: 64 there"),
        (["model.weights=no/such/folder"], "source must be a folder of save_pretrained"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            make_trainer(configured(*QUICK, f"model.weights={folder}", *options))
    options = ("model=tiny", "+model.overrides.boundary_scale=0.5", "+model.overrides.target_rate=0.1")
    trainer, _ = make_trainer(configured(*QUICK, *options, f"model.weights={folder}"))
    assert trainer.model.config.target_rate == 0.1  # no weight's shape depends on it


def test_refusals_come_before_the_folder_is_written(tmp_path, monkeypatch):
    (tmp_path / "some.jsonl").write_text("\n".join(json.dumps({"text": f"{n} to be or not " * 5}) for n in range(40)))
    files = [f"data.source={tmp_path}/some.jsonl", f"data.cache={tmp_path}/cache", "data.held_out=0.3"]
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="snapshots.num_bytes=240 is more than held-out texts have: documents must"):
        run(configured(*QUICK, *files, f"out={out}"), "")
    with claim_folder(out), pytest.raises(BlockingIOError, match="in use by another run"):
        run(configured(*QUICK, "resume=true", f"out={out}"), "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    monkeypatch.setattr(runs, "make_trainer", lambda *_: pytest.fail("a trainer was made"))
    with pytest.raises(ImportError, match="needs the package tensorboard: pip install tensorboard"):
        run(configured(*QUICK, f"out={out}", "logger=tensorboard"), "")
    assert not (out / "config.yaml").exists()


def test_refused_command_leaves_no_folder(tmp_path):
    done = run_forked("rltok_rl.experiments.train", *QUICK, "loss.objective=none", "out=runs/a", cwd=tmp_path)
    assert done.returncode == 1 and "rltok train: " in done.stderr and not (tmp_path / "runs" / "a").exists()


def test_stopped_run_exits_with_the_status_of_its_signal(tmp_path, monkeypatch):
    """So that `rltok train && rltok eval` stops, and a multirun before its next job."""
    monkeypatch.setattr(train, "run", lambda *_: {"updates": 1, "bytes": 1, "stopped": 2})
    with pytest.raises(SystemExit) as ended:
        train._run_or_refuse(configured(*QUICK, f"out={tmp_path}/run"), "", Processes())
    assert ended.value.code == 130


@each(
    failure=[
        ("rltok_rl.training.metrics.csv.DictWriter", OSError(28, "No space left on device")),
        ("rltok_rl.models.weights.save_file", SafetensorError("No space left on device")),
    ]
)
def test_full_disk_ends_a_run_in_one_line_that_names_the_folder(tmp_path, failure):
    """While a table grows, and as the model is saved."""
    where, error = failure
    out = tmp_path / where

    def full(*_, **__):
        raise error

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Refused) as refused:
        patch.setattr(where, full)
        train._run_or_refuse(configured(*QUICK, f"out={out}"), "", Processes())
    message = str(refused.value)
    assert message.startswith("rltok train: ") and "No space left on device" in message and "\n" not in message
    assert str(out) in message
    assert run(configured(*QUICK, f"out={out}", "resume=true"), "")["updates"] == 4  # nothing is half written


def test_rows_have_to_fit_texts_and_strategies_exist():
    for options, message in (
        (["baseline.rows_per_text=4", "data.num_rows=6"], "multiple of baseline.rows_per_text, 4, in each of 1"),
        (["compute.strategy=zero"], r"strategy must be one of \['none', 'ddp', 'fsdp'\], got 'zero'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(configured(*QUICK, *options))


def test_recorded_command_can_be_pasted():
    """A shell reads it as the words that Hydra got."""
    for words in (
        ["seed=1", "model.overrides.window=9"],
        ["--multirun", "out=runs/${baseline.name}-${seed}", "data.source=my texts/it's.txt"],
        ["++estimator.options.span=4", "+experiment=recall"],
    ):
        command = typed(["rltok train", *allow_new(words)])
        assert command.startswith("rltok train ")
        assert allow_new(shlex.split(command)[2:]) == allow_new(words)
    assert typed(["/somewhere/train.py", "seed=1"]) == "python -m rltok_rl.experiments.train seed=1"
    assert typed(["train.py"], 2) == "torchrun --nproc-per-node 2 -m rltok_rl.experiments.train"

"""Resuming: an interrupted run has the metrics of an uninterrupted one; a finished one stays as it is."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rltok_rl.experiments.cli import main
from rltok_rl.experiments.commands.check import find_problems
from rltok_rl.experiments.reports.run_report import trained_table
from rltok_rl.experiments.runs import build, record
from rltok_rl.experiments.runs import run as runs
from rltok_rl.experiments.runs.folder import read_run
from rltok_rl.experiments.runs.record import HELD_OUT, LOGS
from rltok_rl.experiments.runs.resume import check_same_run
from rltok_rl.experiments.runs.run import run
from rltok_rl.experiments.runs.saved_options import read_options
from rltok_rl.experiments.studies import soak
from safetensors.torch import load
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rltok_rl.data import CacheError, local_prose
from rltok_rl.models import UNet
from rltok_rl.training import Trainer
from rltok_rl.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from rltok_rl.training.metrics import MetricsTable
from rltok_rl.training.snapshots import Snapshots

from ..each import each
from ..forked import Forked
from ..states import same
from .configured import QUICK, configured
from .killed import killed_at

UNRESUMED = [*QUICK, "optim.total_bytes=1_280", "checkpoint_every=3", "compute.threads=1"]
LONGER = [*UNRESUMED, "resume=true"]
"""Ten updates."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Ten uninterrupted updates with an alarm at the fourth. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        early_alarms(patch, patience=4)
        run(configured(*LONGER, f"out={folder}"), "one")
    return folder


def early_alarms(patch: pytest.MonkeyPatch, *, patience: int) -> None:
    make = build.Alarms
    patch.setattr(build, "Alarms", lambda **limits: make(**limits, patience=patience, least_entropy=9.0))


def metrics(folder: Path) -> str:
    return (folder / "metrics.csv").read_text() + (folder / "samples.jsonl").read_text()


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def copied(folder: Path, target: Path, *ignored: str) -> Path:
    return Path(shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*ignored)))


def start(folder: Path, updates: int) -> Forked:
    """As :func:`soak.start`, with everything imported: most of its kills would come while modules load."""
    options = [*soak.OPTIONS, f"optim.total_bytes={updates * 128}", f"out={folder}"]
    return Forked("rltok_rl.experiments.train", options, err=folder.parent / f"{folder.name}.log")


def test_killed_without_warning_and_resumed_is_uninterrupted(tmp_path, monkeypatch):
    """SIGKILL at three random moments, resumed each time: equal metrics of all 30 updates to the last bit."""
    monkeypatch.setattr(soak, "start", start)
    assert soak.kill_often(tmp_path / "killed", kills=3, updates=30, dice=random.Random(1)) == 3
    with soak.start(tmp_path / "whole", 30) as process:
        assert process.wait(timeout=200) == 0
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole") and len(table(tmp_path / "whole")) == 30


def test_stopped_run_saves_and_resumes_later(whole, tmp_path, monkeypatch, capfd):
    """SIGTERM after the fifth update, as a scheduler sends it; alarms and environments continue."""
    config = configured(*LONGER, f"out={tmp_path}/run")
    early_alarms(monkeypatch, patience=4)
    add = MetricsTable.add

    def add_and_stop(self, update, *rest):
        add(self, update, *rest)
        if update == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsTable, "add", add_and_stop)
        assert run(config, "one") == {"updates": 5, "bytes": 5 * 128, "stopped": signal.SIGTERM}
    errors = capfd.readouterr().err
    assert "SIGTERM: stopping after this step and a save; again ends at once" in errors
    assert UNet.from_pretrained(tmp_path / "run").config.width == 64  # the model so far is saved
    summary = run(config, "two")
    assert summary["updates"] == 10 and metrics(tmp_path / "run") == metrics(whole)
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert [(s["command"], s["from_update"], s["to_update"]) for s in starts] == [("one", 0, 5), ("two", 5, 10)]
    assert summary["bytes_per_second"] == pytest.approx(1280 / sum(s["seconds"] for s in starts))
    assert summary["threads"] == 1 and summary["peak_memory"] > 50e6


def test_cpu_seconds_are_those_of_training_over_all_starts(tmp_path, monkeypatch):
    """Evaluations, checkpoints and what precedes training are left out, and updates after the last checkpoint."""
    now = [0.0]

    def spend(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def spending(*arguments: Any, **options: Any) -> Any:
            now[0] += seconds
            return function(*arguments, **options)

        return spending

    monkeypatch.setattr(time, "process_time", lambda: now[0])
    monkeypatch.setattr(runs, "make_trainer", spend(1000, runs.make_trainer))
    monkeypatch.setattr(record, "save_checkpoint", spend(100, record.save_checkpoint))
    monkeypatch.setattr(Snapshots, "take", spend(10, Snapshots.take))
    monkeypatch.setattr(MetricsTable, "add", spend(1, MetricsTable.add))
    config = configured(*LONGER, f"out={tmp_path}/run")
    with killed_at(5):  # after the checkpoint at the third update
        run(config, "")
    run(config, "")
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert [start["cpu_seconds"] for start in starts] == [3, 7]


def alarms_of(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]


def test_alarms_go_off_once_over_a_kill(whole, tmp_path, monkeypatch, capsys):
    early_alarms(monkeypatch, patience=4)
    config = configured(*LONGER, f"out={tmp_path}/run")
    with killed_at(4):  # the line is written, its alarm is not
        run(config, "")
    run(config, "")
    assert (tmp_path / "run" / "alarms.log").read_text() == (whole / "alarms.log").read_text()
    (warning,) = alarms_of(capsys)
    assert warning.startswith("warning: update 4: the policy has stopped exploring") and "entropy bonus" in warning


def test_alarms_count_batches_not_epochs(tmp_path, monkeypatch, capsys):
    """Further epochs of the policy over a batch neither hurry a warning nor reset it."""
    early_alarms(monkeypatch, patience=3)
    run(configured(*QUICK, "loss=ppo", f"out={tmp_path}/run"), "")
    (warning,) = alarms_of(capsys)
    assert warning.startswith("warning: update 3: the policy has stopped exploring")


@each(
    options=[
        ("compute.recompute=layers", "compute.threads=2", "compute=cpus"),
        ("compute.likelihood_chunk=7", "compute.tokens=packed"),
        ("compute.tokens=packed", "compute.token_room=3.0"),
    ]
)
def test_speed_and_memory_options_may_change(whole, tmp_path, options):
    threads = torch.get_num_threads()
    folder = copied(whole, tmp_path / str(hash(options)), "summary.json", "model", "update-00000010")
    try:
        assert run(configured(*QUICK, *LONGER[-4:-2], "resume=true", *options, f"out={folder}"), "")["updates"] == 10
    finally:
        torch.set_num_threads(threads)
    for name in ("loss", "bits_per_byte", "rate", "grad_norm"):
        mine, other = ([float(row[name]) for row in table(path)] for path in (folder, whole))
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-5), name


def test_another_configuration_is_not_resumed(learned_run):
    options = ["optim.total_bytes=1024", "snapshots.num_bytes=120", "model.overrides.target_rate=0.2"]
    options += ["checkpoint_every=4", "estimator.gamma=0.5", f"out={learned_run}", "resume=true"]
    path = learned_run / "config.yaml"
    check_same_run(configured(*options[:-1], *QUICK[1:]), path)
    for option, difference in (
        ("seed=7", "seed: 0 there, 7 here"),
        ("model.overrides.window=9", "model.overrides.window: 8 there, 9 here"),
        ("compute.micro_batches=2", "compute.micro_batches: 1 there, 2 here"),
        ("snapshots.count=3", "snapshots.count: . there, 3 here"),
        ("optim.lr=1e-4", r"optim.lr: .* here\); choose .*, or continue training from its model: model.weights=.*"),
    ):
        with pytest.raises(ValueError, match=f"is of a run with another configuration .{difference}"):
            run(configured(*QUICK, *options, option), "")
    other = configured(*QUICK, *options)
    other.compute.device = "cuda:1"
    with pytest.raises(ValueError, match="compute.device: 'cpu' there, 'cuda' here"):
        check_same_run(other, path)


@each(
    case=[
        (
            lambda state: state["model"].pop("embedding.weight"),
            "cannot be resumed: model .*embedding.weight is missing",
            True,
        ),
        (lambda state: state["model"].clear(), "cannot be resumed: model .*", True),
        (lambda state: state.pop("optimizer"), "cannot be resumed: .* got one without 'optimizer'", True),
        (
            lambda state: state["optimizer"]["state"].pop(5),
            r"cannot be resumed: optimizer .* \[5\] have lost their moments",
            True,
        ),
        (lambda state: state["loss"].pop("coeff_policy"), 'cannot be resumed: loss .*"coeff_policy"', False),
        (lambda state: state["loss"].clear(), "cannot be resumed: loss .*it is empty", True),
        (lambda state: state.update(boundaries=None), "cannot be resumed: boundaries of the state", True),
        (
            lambda state: state["optimizer"]["state"][5].pop("exp_avg"),
            r"cannot be resumed: optimizer .*parameter 5 has the moments \['step', 'exp_avg_sq'\]",
            True,
        ),
        (
            lambda state: state["optimizer"]["state"][5].update(exp_avg=torch.zeros(2)),
            "cannot be resumed: optimizer .*exp_avg of parameter 5 must be",
            True,
        ),
        (
            lambda state: (
                state["optimizer"]["state"].clear(),
                state["optimizer"].update(without_moments=[*range(99)]),
            ),
            "cannot be resumed: optimizer .*no parameter has moments after 10 updates",
            True,
        ),
        (
            lambda state: state["optimizer"].pop("without_moments"),
            "cannot be resumed: optimizer .*without_moments",
            True,
        ),
        (lambda state: state["random"].pop("numpy"), "cannot be resumed: random .*numpy", True),
        (lambda state: state["random"].update(python=[3]), "cannot be resumed: random of the state", True),
        (lambda state: state.update(texts=torch.zeros(0)), "cannot be resumed: texts .*generator is empty", True),
        (lambda state: state.update(texts={"generator": None}), "cannot be resumed: texts .*source", True),
        (lambda state: state.update(segmenter=[1]), "cannot be resumed: segmenter of the state", True),
        *(
            (lambda state, part=part: state.pop(part), f"cannot be resumed: .* got one without '{part}'", True)
            for part in (
                *("model", "loss", "texts", "boundaries", "random", "updates", "bytes_done", "segmenter", "alarms"),
                *("flops_done", "flops_beside", "token_room"),
            )
        ),
        (
            lambda state: state.update(bytes_done=5),
            "bytes_done .* must be 1,280 after 10 updates of 128 bytes, got 5",
            False,
        ),
        (lambda state: state.update(updates=9), "must hold the state after update 10, got updates=9", True),
    ]
)
def test_checkpoint_that_does_not_fit_is_named(case, whole, tmp_path):
    """By ``rltok check`` too, unless only the trainer knows what is missing."""
    change, words, found = case
    folder = copied(whole, tmp_path / str(hash(words)), "summary.json", "model")
    state = load_checkpoint(folder / "checkpoints")[1]
    change(state)
    path = save_checkpoint(folder / "checkpoints", 10, state, files=LOGS)
    problems = find_problems(folder)
    assert len(problems) == found and all(re.match(f"{path} {words}", problem) for problem in problems)
    before = files(folder)
    with pytest.raises(ValueError, match=words) as refused:
        run(configured(*LONGER, f"out={folder}"), "")
    assert str(refused.value).startswith(str(path)) and "\n" not in str(refused.value)
    assert files(folder) == before | {".lock": b""}


def test_checkpoint_without_its_segmenter_is_named(gumbel_run, tmp_path):
    options = [*QUICK, "segmenter=gumbel-round", "segmenter.options.hidden=32", "model.overrides.width=16"]
    options += ["snapshots.batches=1", "resume=true"]
    for number, (change, words, found) in enumerate(
        (
            (lambda state: state.update(segmenter=None), "segmenter", True),
            (lambda state: state["segmenter"].popitem(), "segmenter of the state .*state must hold", False),
        )
    ):
        folder = copied(gumbel_run, tmp_path / str(number), "summary.json", "model")
        update, state = load_checkpoint(folder / "checkpoints")
        change(state)
        path = save_checkpoint(folder / "checkpoints", update, state, files=LOGS)
        assert [bool(re.match(f"{path} cannot be resumed: .*segmenter", x)) for x in find_problems(folder)] == [
            True
        ] * found
        with pytest.raises(ValueError, match=f"^{path} cannot be resumed: .*{words}"):
            run(configured(*options, f"out={folder}"), "")


def test_state_of_a_list_is_refused(whole, tmp_path):
    folder = copied(whole, tmp_path / "run")
    save_checkpoint(folder / "checkpoints", 10, [1], files=LOGS)
    with pytest.raises(
        CheckpointError, match="update-00000010 cannot be read .TypeError: its state must be a dict, got l"
    ):
        run(configured(*LONGER, f"out={folder}"), "")


def test_folder_with_a_run_is_refused_with_its_state(whole, tmp_path):
    folder = copied(whole, tmp_path / "run", "model", "checkpoints")
    config = configured(*UNRESUMED, f"out={folder}")
    with pytest.raises(FileExistsError, match="out=.*run holds a run, which is finished; choose another folder"):
        run(config, "")
    (folder / "summary.json").unlink()
    with pytest.raises(FileExistsError, match="which was stopped: resume=true resumes it"):
        run(config, "")


def test_a_run_that_failed_before_its_first_update_is_replaced(tmp_path, monkeypatch):
    """As while an estimator is being written, whose options change."""
    config = configured(*UNRESUMED, f"out={tmp_path}/run")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(config, "")
    assert (tmp_path / "run" / "samples.jsonl").exists() and not (tmp_path / "run" / "metrics.csv").exists()
    other = configured(*UNRESUMED, "estimator.gamma=0.5", f"out={tmp_path}/run")
    assert "stopped" not in run(other, "")
    assert read_options(tmp_path / "run" / "config.yaml").estimator.gamma == 0.5


def test_changed_texts_are_not_resumed(tmp_path, monkeypatch, capsys):
    """A byte of one file, its length and path unchanged; the cache has a default folder, or a name."""
    monkeypatch.chdir(tmp_path)
    book, text = Path("book.txt"), local_prose(20_000)
    book.write_bytes(text)
    options = [*QUICK[:-1], "data=files", "data.source=book.txt", "resume=true", "checkpoint_every=2"]
    run(configured(*options, "out=run"), "")
    first = load_checkpoint(Path("run/checkpoints"))[1]["trained_on"]
    run(configured(*options, "out=named", "data.cache=cache"), "")
    assert load_checkpoint(Path("named/checkpoints"))[1]["trained_on"] == first
    before = metrics(Path("run"))
    book.write_bytes(text[:-1] + b"?")
    message = r"trained on other texts than data.source='book.txt' has now \(sha256 (\w{64}) there, (\w{64}) here"
    with pytest.raises(ValueError, match=message) as refused:
        run(configured(*options, "out=run"), "")
    there, here = re.search(message, str(refused.value)).groups()
    assert there == first != here
    with pytest.raises(FileExistsError, match="data.cache cannot be used for data.source='book.txt': .* there, "):
        run(configured(*options, "out=named", "data.cache=cache"), "")
    run(configured(*options, "out=other"), "")  # a new run takes them as they are
    assert load_checkpoint(Path("other/checkpoints"))[1]["trained_on"] == here
    book.write_bytes(text)
    assert run(configured(*options, "out=run"), "")["updates"] == 4 and metrics(Path("run")) == before
    book.write_bytes(text[:-1] + b"?")  # a new cache, whose hashes are right
    with pytest.raises(SystemExit):
        main(["eval", "run"])
    assert "run was trained on other texts than data.source='book.txt' has now" in capsys.readouterr().err
    book.write_bytes(text)
    cached = Path("cache/bytes.bin")
    cached.write_bytes(cached.read_bytes().replace(b"the", b"tha"))
    for out in ("named", "new"):
        with pytest.raises(CacheError, match=r"^cache/bytes\.bin is not what was written \(its checksum differs\)"):
            run(configured(*options, f"out={out}", "data.cache=cache"), "")


def test_tensorboard_has_every_metric_once_over_a_kill(tmp_path):
    out = tmp_path / "run"

    def events() -> dict[str, dict[int, float]]:
        reader = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})  # 0: keep all of them
        reader.Reload()
        scalars = {name: reader.Scalars(name) for name in reader.Tags()["scalars"]}
        assert all(len({event.step for event in points}) == len(points) for points in scalars.values())
        return {name: {event.step: event.value for event in points} for name, points in scalars.items()}

    config = configured(*LONGER, "logger=tensorboard", f"out={out}")
    with killed_at(5):
        run(config, "")
    assert max(events()["train/loss"]) == 4, "updates 4 and 5 come again after the checkpoint of update 3"
    run(config, "")
    expected: dict[str, dict[int, float]] = {}
    lines = [(f"train/{name}", row) for row in table(out) for name in set(row) - {"update", "bytes", *HELD_OUT}]
    for line in map(json.loads, (out / "samples.jsonl").read_text().splitlines()):
        lines += [(name, line) for name in line if name.startswith("held_out_")]
    for name, line in lines:
        shown = name.replace("held_out_", "held_out/")
        expected.setdefault(shown, {})[int(line["update"])] = float(line[name.removeprefix("train/")])
    logged = events()
    assert set(logged) == set(expected) and {"train/loss", "held_out/bits_per_byte"} <= set(logged)
    assert sorted(logged["train/loss"]) == [*range(1, 11)]
    for name, values in expected.items():
        assert set(logged[name]) == set(values), name
        for step, value in values.items():
            np.testing.assert_equal(np.float32(logged[name][step]), np.float32(value))  # nan is nan


def test_finished_run_keeps_every_file(uniform_run, tmp_path, monkeypatch, capsys):
    """The peak memory of its summary is not that of a process which only read a checkpoint."""
    folder = copied(uniform_run, tmp_path / "mine")
    config = configured(*QUICK, "actor=uniform", "snapshots.batches=1", f"out={folder}", "resume=true")
    monkeypatch.setattr(runs, "peak_memory", lambda *_: {"peak_memory": 1})

    def write_report(folder: Path) -> Path:
        return Path(shutil.copy(folder / "sample.txt", folder / "report.md"))

    write_report(folder)
    before = files(folder)
    summary = run(config, "another", report=write_report)
    assert files(folder) == before
    assert summary == json.loads(before["summary.json"]) and summary["peak_memory"] > 50e6
    printed = capsys.readouterr()
    assert f"{folder} is finished, after update 4: nothing to do" in printed.err and printed.out == ""
    shutil.rmtree(folder / "model")
    for name in ("sample.txt", "report.md"):
        (folder / name).unlink()
    run(config, "another", report=write_report)
    assert "wrote model, sample.txt, report.md, which were missing or changed" in capsys.readouterr().err
    after, weights = files(folder), "model/model.safetensors"
    assert same(*(dict(sorted(load(content.pop(weights)).items())) for content in (after, before)))
    assert after == before
    (folder / "summary.json").unlink()  # killed after its last checkpoint: its end has to be written again
    command = json.loads(before["summary.json"])["command"]
    assert run(config, f"{command} resume=true")["command"] == command
    starts = json.loads((folder / "environment.json").read_text())
    assert [start["command"] for start in starts] == [command, f"{command} resume=true"]
    page = trained_table(read_run(folder))
    assert f"\n{command}\n" in page and "resume=true" not in page
    (folder / "samples.jsonl").unlink()
    (folder / "sample.txt").unlink()
    assert run(config, command)["updates"] == json.loads(before["summary.json"])["updates"]
    assert [row["update"] for row in read_run(folder).snapshots] == [json.loads(before["summary.json"])["updates"]]
    assert (folder / "sample.txt").read_bytes() == before["sample.txt"]

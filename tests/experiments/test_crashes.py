"""Power cuts: whatever a run's folder has lost of what was not flushed, the run resumes to the same files."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rltok_rl.experiments.cli import main
from rltok_rl.experiments.commands.check import find_problems
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs import record, resume
from rltok_rl.experiments.runs import run as runs
from rltok_rl.experiments.runs.record import LOGS
from rltok_rl.experiments.runs.resume import last_state
from safetensors.torch import load_file

from rltok_rl.models import UNet, preset
from rltok_rl.training.checkpoint import (
    CheckpointError,
    list_leftovers,
    load_checkpoint,
    random_states,
    save_checkpoint,
)
from rltok_rl.training.distributed import Processes
from rltok_rl.training.environment import read_starts
from rltok_rl.training.metrics import MetricsTable, UpdateLog, UpdateMetrics
from rltok_rl.training.options import LoopOptions

from ..each import each
from ..tools.crashes import Recorder, Tree, crashes
from .configured import QUICK, configured

UPDATES = 5
OPTIONS = [*QUICK, f"optim.total_bytes={UPDATES * 128}", "checkpoint_every=2", "snapshots.count=2", "resume=true"]
MOMENTS = {"step": torch.ones(()), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
OTHER_PARTS = {
    "optimizer": {"state": {0: MOMENTS}, "param_groups": [{"params": [0]}], "without_moments": []},
    **{"loss": {"coeff": torch.ones(())}, "texts": torch.get_rng_state(), "boundaries": torch.get_rng_state()},
    **{"random": random_states(torch.device("cpu")), "alarms": {}, "segmenter": None},
    **{"flops_done": 0.0, "flops_beside": {"padded": 0.0, "tried": 0.0}, "token_room": {"grown": [], "notes": []}},
}
TEXTS = SimpleNamespace(
    held_out=SimpleNamespace(check_length=lambda length: None), language=None, sha256="0", described="a text"
)
SNAPSHOT = {"text": "ab", "boundaries": "10", "probabilities": [1.0, 0.5]}
SNAPSHOT |= {f"held_out_{name}": 1.0 for name in ("bits_per_byte", "early_bits_per_byte", "rate")}


class Stepper(SimpleNamespace):
    """A trainer whose state is a number: everything but the training itself is that of a run."""

    def __init__(self, model: UNet, killed_after: int | None = None) -> None:
        costs = dict.fromkeys(("flops_done", "padded_flops_done", "tried_flops_done", "total_flops_done"), 1.0)
        speed, options = SimpleNamespace(name=None, peak=None), LoopOptions(total_bytes=128 * UPDATES)
        parts = {"processes": Processes(), "segmenter": None, "actor": None, "policy": None, "speed": speed}
        super().__init__(**parts, **costs, model=model, options=options, bytes_per_update=128, expected_bytes=1)
        self.updates, self.killed_after = 0, killed_after

    bytes_done = property(lambda self: 128 * self.updates)
    fraction_done = property(lambda self: self.updates / UPDATES)
    done = property(lambda self: self.updates == UPDATES)

    def state_dict(self) -> dict:
        parts = {"model": self.model.state_dict(), "updates": self.updates, "bytes_done": self.bytes_done}
        return {**OTHER_PARTS, **parts, "x": torch.full((3,), float(self.updates))}

    def load_state_dict(self, state: dict) -> None:
        self.updates = state["updates"]
        assert (state["x"] == self.updates).all()

    def run(self, after_update, *, fetch_when) -> None:
        while not self.done:
            self.updates += 1
            warnings = ["a problem"] if self.updates in (2, 5) else []
            self.last_update = UpdateMetrics(self.updates, self.bytes_done, {"loss": 1 / self.updates}, warnings)
            if after_update(self.last_update.metrics):
                return
            if self.updates == self.killed_after:
                raise KeyError("killed")


@pytest.fixture(scope="module")
def model() -> UNet:
    return UNet(preset("tiny", width=16, num_token_layers=1))


@pytest.fixture
def train(model, monkeypatch):
    """Train, or resume, in a folder."""
    monkeypatch.setattr(record.Snapshots, "take", lambda self, model: dict(SNAPSHOT))
    monkeypatch.setattr(record, "environment", lambda **entry: {"command": entry["command"]})
    monkeypatch.setattr(os, "fsync", lambda handle: None)

    def train(folder: Path, *overrides: str, **options) -> None:
        config = configured(*OPTIONS, *overrides, f"out={folder}")
        runs._train(config, "train", Stepper(model, **options), TEXTS, None)

    return train


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that a finished run's files say, but its starts."""
    assert load_checkpoint(folder / "checkpoints")[1]["updates"] == UPDATES
    assert (folder / "summary.json").exists() and find_problems(folder) == []
    weights = {name: tensor.tolist() for name, tensor in load_file(folder / "model" / "model.safetensors").items()}
    return {**{name: (folder / name).read_bytes() for name in (*LOGS, "config.yaml", "sample.txt")}, "weights": weights}


def write(folder: Path, tree: Tree) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path, content in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            (folder / path).mkdir(exist_ok=True)
        else:
            (folder / path).write_bytes(content)


def alike(tree: Tree) -> int:
    """A number that is equal for folders that differ in the content of leftovers alone."""
    return hash(frozenset((path, None if "partial" in path or "going-" in path else c) for path, c in tree.items()))


def begin(folder: Path, config: TrainConfig) -> dict[str, bytes]:
    """Resume up to the first update, as a run does; returns its logs, without empty ones."""
    resuming, _, state = last_state(config, TEXTS)
    update = 0 if state is None else state["updates"]
    assert state is None or (state["x"] == update).all()
    logs = (MetricsTable(folder / LOGS[0], resume_after=update if resuming else None),)
    logs += tuple(UpdateLog(folder / name, resume_after=update if resuming else None) for name in LOGS[1:])
    read_starts(folder / "environment.json")
    kept = {log.path.name: log.path.read_bytes() for log in logs if log.path.exists()}
    save_checkpoint(folder / "checkpoints", update + 1, {}, files=LOGS)
    assert list_leftovers(folder / "checkpoints") == []
    return {"update": update, **kept}


@pytest.fixture
def trained(train, tmp_path) -> Path:
    """The folder of a finished run."""
    train(tmp_path / "trained")
    return tmp_path / "trained"


@pytest.fixture
def recorded(train, tmp_path) -> tuple[Recorder, Path, dict, dict[str, bytes]]:
    """The operations of a run that is killed after update 3, resumed and finished; its folder and its files."""
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = Recorder(folder)
    with recorder.recording():
        with pytest.raises(KeyError, match="killed"):
            train(folder, killed_after=3)
        train(folder)
    final = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return recorder, folder, outcome(folder), final


@each(flushed=[True, False])
def test_every_crash_resumes_to_the_same_files(flushed, recorded, train, monkeypatch):
    """All folders are resumed up to the next checkpoint, some to the end. Without flushes, the replay finds losses."""
    recorder, folder, whole, final = recorded
    config = configured(*OPTIONS, f"out={folder}")
    operations = [operation for operation in recorder.operations if flushed or operation[0] != "flush"]
    seen: set[int] = set()
    losses: list[str] = []
    began: dict[int, dict[str, Any]] = {}
    for tree in crashes(operations, recorder.folders, dice=random.Random(0)):
        if (key := alike(tree)) in seen:
            continue
        seen.add(key)
        write(folder, tree)
        if flushed and len(seen) % 50 == 0:
            train(folder)
            assert outcome(folder) == whole
            continue
        try:
            if "summary.json" in tree:  # the model is not written again
                assert all(tree.get(name) == final[name] for name in final if name.startswith("model/"))
            with monkeypatch.context() as patch:  # reading options takes longer than all the rest
                patch.setattr(resume, "check_same_run", lambda _, path: check_equal(path, final["config.yaml"]))
                start = begin(folder, config)
            assert began.setdefault(start["update"], start) == start
        except (AssertionError, OSError, ValueError, CheckpointError) as error:
            losses.append(f"{type(error).__name__}: {error}, of {[*tree]}")
            if not flushed:
                return
    assert flushed and not losses, losses[:9]
    assert set(began) == {0, 2, 4, 5} and len(seen) > 400


def check_equal(path: Path, content: bytes) -> None:
    assert path.read_bytes() == content


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


DAMAGES = {  # by file, the warning, and the update that the run is resumed after
    "checkpoints/update-00000005/state.json": ("state.json is damaged", 4),
    "metrics.csv": ("metrics.csv has lost 20 of the", 4),
}


@each(file=DAMAGES)
def test_damage_after_a_checkpoint_is_repaired(file, train, tmp_path, capfd):
    folder, (warning, update) = tmp_path / Path(file).name, DAMAGES[file]
    train(folder)
    whole = outcome(folder)
    tear(folder / file)
    capfd.readouterr()
    assert main(["check", str(folder)]) == 1 and warning in capfd.readouterr().out
    train(folder)
    errors = capfd.readouterr().err
    assert f"{warning}" in errors and f"resuming {folder} after update {update}" in errors
    assert outcome(folder) == whole and main(["check", str(folder)]) == 0


def test_damage_that_cannot_be_repaired_is_named(train, tmp_path, capfd):
    folder = tmp_path / "run"
    train(folder)
    (folder / "metrics.csv").unlink()
    (folder / "model" / "model.safetensors").write_bytes(b"")
    (folder / "checkpoints" / "going-update-00000002").mkdir()
    assert main(["check", str(folder)]) == 1
    found = capfd.readouterr().out
    for words in ("metrics.csv has lost", "model cannot be read", "going-update-00000002 was left by a process"):
        assert words in found
    train(folder)
    assert "no checkpoint is from before the lost lines" in capfd.readouterr().err
    for path in (folder / "checkpoints").iterdir():
        tear(path / "tensors.safetensors")
    with pytest.raises(
        CheckpointError, match="update-00000005.* is damaged .*update-00000004.* is damaged .*; restore"
    ):
        train(folder)
    (folder / "environment.json").write_text("[")
    assert main(["check", str(folder), str(tmp_path)]) == 1
    found = capfd.readouterr().out
    assert "environment.json cannot be read" in found and "is not the folder of a run" in found


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@each(damage=[Path.unlink, tear, flip])
def test_damaged_weights_of_a_finished_run_are_written_again(damage, train, tmp_path, capfd):
    folder = tmp_path / "run"
    train(folder)
    whole = outcome(folder)
    damage(folder / "model" / "model.safetensors")
    assert main(["check", str(folder)]) == 1 and "model" in capfd.readouterr().out
    train(folder)
    assert "wrote model, which was missing or changed" in capfd.readouterr().err and outcome(folder) == whole


def test_config_that_cannot_be_resumed_and_files_half_written_are_found(train, tmp_path, capfd):
    folder = tmp_path / "run"
    train(folder)
    files = [folder / f".{name}.0a1b2c.partial" for name in ("report.md", "summary.json")]
    partial = [*files, folder / "model" / ".partial"]
    for path in files:
        path.touch()
    partial[-1].mkdir()
    assert find_problems(folder) == [f"{path} was left by a process that was killed" for path in partial]
    train(folder)
    assert not any(path.exists() for path in files)
    partial[-1].rmdir()
    (folder / "environment.json").unlink()
    assert find_problems(folder) == [f"{folder / 'environment.json'} is missing"]
    (folder / "config.yaml").write_text("")
    assert find_problems(folder) == [f"{folder / 'config.yaml'} must name model.preset"]


def test_a_summary_that_is_not_one_is_written_again(train, trained, tmp_path, capfd):
    summary = json.loads((trained / "summary.json").read_text())
    for number, wrong in enumerate(({"files": None}, {"files": [1]}, {"updates": "x"}, {"updates": 3}, {"flops": 0})):
        folder = Path(shutil.copytree(trained, tmp_path / f"run {number}"))
        (folder / "summary.json").write_text(json.dumps({**summary, **wrong}))
        train(folder)
        name, words = folder / "summary.json", "must be .*; it is written again"
        assert re.search(f"warning: {[*wrong][0]} of {name} {words}", capfd.readouterr().err)
        assert find_problems(folder) == []


@each(content=['{"update": Infinity}\n', 100_000 * "[" + "\n"])
def test_logs_that_are_not_lines_of_updates_are_named(content, train, trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / f"run {len(content)}"))
    (folder / "samples.jsonl").write_text(content)
    assert any(str(folder / "samples.jsonl") in problem for problem in find_problems(folder))
    with pytest.raises(ValueError, match=f"{folder / 'samples.jsonl'} must hold"):
        train(folder)
    (folder / "summary.json").unlink()
    with pytest.raises(ValueError, match=f"{folder / 'samples.jsonl'} must hold"):
        train(folder)


CHANGES = {
    "config.yaml": lambda text: text.replace("seed: 0", "seed: 7"),
    "environment.json": lambda text: text + " ",
    "metrics.csv": lambda text: text + "31,",
    "alarms.log": lambda text: text + '{"update": 3, "warning": "none"}\n',
    "sample.txt": lambda text: None,
    "summary.json": lambda text: re.sub('"held_out_bits_per_byte": .*', '"held_out_bits_per_byte": 2.0,', text),
    "model/segmenter.json": lambda text: '{"format": 1, "name": "uniform", "options": {}}',
    f"checkpoints/update-{UPDATES:08d}/manifest.json": lambda text: re.sub(
        r'"files": .*', '"files": {}}', text, flags=re.S
    ),
}
"""What a finished run held at its end, and what somebody made of it; None deletes it."""


@each(name=CHANGES)
def test_changes_of_a_finished_run_are_found(name, trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / name.replace("/", " ")))
    assert find_problems(folder) == []
    path, before = folder / name, (folder / name).read_bytes().decode() if (folder / name).exists() else ""
    after = CHANGES[name](before)
    assert after != before
    path.unlink(missing_ok=True) if after is None else path.write_bytes(after.encode())
    problems = find_problems(folder)
    assert len(problems) == 1 and problems[0].startswith(f"{path} "), problems


PLACES = (
    "checkpoints",
    "checkpoints/update-00000004",
    "checkpoints/update-000000099",
    "model",
    "model/.partial",
    "figures",
    "figures/curves.png",
)
PLACES += ("tensorboard", "wandb", "wandb-id.txt", "report.md", *LOGS)


@each(place=PLACES)
def test_resuming_writes_to_no_file_outside_the_folder(place, train, trained, tmp_path):
    """Links to a folder or a file that is not empty, and to nothing."""
    other = tmp_path / "other" / place.replace("/", " ")
    folder = Path(shutil.copytree(trained, tmp_path / f"run {other.name}"))
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    if path.suffix:
        path.touch()
    else:
        (path / "going-update-00000001").mkdir(parents=True)
    other.parent.mkdir(exist_ok=True)
    path.rename(other)
    path.symlink_to(other)
    before = tree(folder), tree(other.parent)
    with pytest.raises(ValueError, match=f"{path} must be a (file|folder), got a link"):
        train(folder)
    assert (tree(folder), tree(other.parent)) == before
    path.unlink()
    path.symlink_to(tmp_path / "new")
    with pytest.raises(ValueError, match="got a link"):
        train(folder)
    (folder / "config.yaml").unlink()  # nothing to resume
    with pytest.raises(ValueError, match="got a link"):
        train(folder)
    assert not (tmp_path / "new").exists()


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_places_that_hold_something_else_are_found(train, trained, tmp_path):
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    os.mkfifo(folder / "model" / "pipe")
    assert find_problems(folder) == [
        f"{folder / 'model'} cannot be read: {folder / 'model' / 'pipe'} must be a file, "
        "got a link or something else; remove it, or replace it by a copy"
    ]
    (folder / "model" / "pipe").unlink()
    (folder / "model" / "added").touch()
    assert find_problems(folder) == [f"{folder / 'model' / 'added'} was added after the end of the run; remove it"]
    (folder / "model" / "added").unlink()
    (folder / "checkpoints" / "update-notes").touch()
    train(folder)
    path = folder / "checkpoints" / "update-00000099"
    path.touch()
    assert len(find_problems(folder)) == 1
    with pytest.raises(ValueError, match=f"^{path} must be a folder, got a link or something else"):
        train(folder)


def test_a_checkpoint_that_has_recorded_no_logs_is_passed_over(train, trained, tmp_path, capfd):
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    manifest = folder / "checkpoints" / f"update-{UPDATES:08d}" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "files": {}}))
    train(folder)
    err = capfd.readouterr().err
    assert f"warning: {manifest} must record {[*LOGS]}, got []" in err and "after update 4" in err
    config = {"config.yaml": (folder / "config.yaml").read_bytes()}  # names another folder
    assert outcome(folder) == outcome(trained) | config


def test_checkpoints_by_minutes(train, tmp_path):
    with pytest.raises(KeyError, match="killed"):
        train(tmp_path / "run", "checkpoint_minutes=1e-9", "checkpoint_every=100", killed_after=3)
    assert load_checkpoint(tmp_path / "run" / "checkpoints")[0] == 3


def test_runs_that_lack_a_file_say_so_before_anything_is_lost(train, trained, tmp_path, capfd):
    """Without checkpoints a finished run stays, an unfinished one begins again with a warning; a cut file is named."""
    finished, unfinished, cut = (tmp_path / name for name in ("finished", "unfinished", "cut"))
    for folder in (finished, unfinished, cut):
        shutil.copytree(trained, folder)
    shutil.rmtree(finished / "checkpoints")
    with pytest.raises(FileNotFoundError, match="is finished and has no checkpoints"):
        train(finished)
    assert (finished / "metrics.csv").exists()
    shutil.rmtree(unfinished / "checkpoints")
    (unfinished / "summary.json").unlink()
    (unfinished / "environment.json").write_text("{")
    train(unfinished)
    err = capfd.readouterr().err
    assert f"{unfinished} has no checkpoint: it begins again" in err and "environment.json must be JSON" in err
    assert outcome(unfinished) == outcome(trained) | {"config.yaml": (unfinished / "config.yaml").read_bytes()}
    config = cut / "config.yaml"
    config.write_text(config.read_text()[: config.read_text().index("snapshots:")])
    lacks = "lacks .*'snapshots.batches'.*: it was cut"
    assert any(re.search(lacks, problem) for problem in find_problems(cut))
    shutil.rmtree(cut / "checkpoints" / f"update-{UPDATES:08d}")
    assert any("the last of a finished run, is missing" in problem for problem in find_problems(cut))
    config.unlink()
    with pytest.raises(FileNotFoundError, match="must hold config.yaml beside metrics.csv"):
        train(cut)

"""A finished run that is resumed is left as it is; a command that is noted can be pasted."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from rltok_rl.experiments import train
from rltok_rl.experiments.commands.overrides import allow_new, typed
from rltok_rl.experiments.reports import run_report as report
from rltok_rl.experiments.runs import finish as finished
from rltok_rl.experiments.runs.folder import read_run
from safetensors.torch import load

from .configured import QUICK, configured

TYPED = "rltok train 'out=runs/${seed}'"


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch):
    """Pages are drawn elsewhere; here it counts who writes them."""

    def write(out: Path) -> Path:
        (out / "report.md").write_text("the page")
        return out / "report.md"

    monkeypatch.setattr(train, "write_report", write)
    monkeypatch.setattr(finished, "write_report", write)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train, "write_report", lambda out: out / "report.md")
        train.run(configured(*QUICK, f"out={folder}"), TYPED)
    (folder / "report.md").write_text("the page")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_finished_run_that_is_resumed_keeps_every_file(done, monkeypatch, capsys):
    """Its peak memory became that of a process which had read a checkpoint."""
    before = files(done)
    monkeypatch.setattr(train, "peak_memory", lambda *_: {"peak_memory": 1})
    summary = train.run(configured(*QUICK, f"out={done}", "resume=true"), f"{TYPED} resume=true")
    assert files(done) == before
    assert summary == json.loads(before["summary.json"]) and summary["peak_memory"] > 50e6
    said = capsys.readouterr()
    assert f"{done} is finished, after update 4: nothing to do" in said.err and said.out == ""


def test_what_a_finished_run_lacks_is_written_as_it_was(done, tmp_path, capsys):
    folder = Path(shutil.copytree(done, tmp_path / "mine"))
    before = files(folder)
    shutil.rmtree(folder / "model")
    (folder / "sample.txt").unlink()
    (folder / "report.md").unlink()
    config = configured(*QUICK, f"out={folder}", "resume=true")
    train.run(config, TYPED)
    after, weights = files(folder), "model/model.safetensors"
    first, second = (load(one.pop(weights)) for one in (before, after))  # its header has no order of its own
    assert after == before
    assert set(first) == set(second) and all(torch.equal(x, second[name]) for name, x in first.items())
    assert "wrote model, sample.txt, report.md, which it lacked" in capsys.readouterr().err
    (folder / "summary.json").unlink()
    assert train.run(config, "another")["updates"] == 4  # killed after its last checkpoint: it has an end to write
    assert (folder / "summary.json").is_file()


def test_the_command_of_a_run_is_that_of_its_first_start(done, tmp_path):
    folder = Path(shutil.copytree(done, tmp_path / "mine"))
    (folder / "summary.json").unlink()
    config = configured(*QUICK, f"out={folder}", "resume=true")
    assert train.run(config, f"{TYPED} resume=true")["command"] == TYPED
    starts = json.loads((folder / "environment.json").read_text())
    assert [one["command"] for one in starts] == [TYPED, f"{TYPED} resume=true"]
    page = report._trained(read_run(folder))
    assert f"\n{TYPED}\n" in page and "resume=true" not in page


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1", "model.overrides.window=9"],
        ["--multirun", "out=runs/${baseline.name}-${seed}", "data.source=my texts/it's.txt"],
        ["++estimator.options.span=4", "+experiment=recall"],
    ],
)
def test_a_noted_command_can_be_pasted(words):
    """As a shell reads it, it is what Hydra was given."""
    noted = typed(["rltok train", *allow_new(words)])
    assert noted.startswith("rltok train ")
    assert allow_new(shlex.split(noted)[2:]) == allow_new(words)
    assert typed(["/somewhere/train.py", "seed=1"]) == "python -m rltok_rl.experiments.train seed=1"
    assert typed(["train.py"], 2) == "torchrun --nproc-per-node 2 -m rltok_rl.experiments.train"

"""A run's environment and starts, without names of folders."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rltok_rl.training.environment import Starts, bytes_per_second, environment, git_state, peak_memory, without_folders

from ..test_project_text import machine_paths


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path) -> Path:
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "code.py").write_text("1\n")
    (tmp_path / "checkout" / ".gitignore").write_text("venv/\n")
    git(tmp_path / "checkout", "init", "-q")
    git(tmp_path / "checkout", "add", ".")
    git(tmp_path / "checkout", "commit", "-qm", "one")
    return folder


def test_an_environment_names_versions_and_no_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere/ada")
    found = environment(command=f"train out={Path.cwd()}/runs/x data.source=/somewhere/ada/text", num_processes=3)
    assert found["packages"]["torch"].split(".")[0].isdigit() and found["python"].count(".") == 2
    assert found["command"] == "train out=./runs/x data.source=~/text"
    assert found["num_processes"] == 3 and found["threads"] >= 1 and found["device"] == "cpu"
    text = json.dumps(found)
    assert not machine_paths(text) and str(Path.cwd()) not in text and "ada" not in text


def test_the_revision_is_that_of_the_checkout(checkout):
    revision = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout) == {"revision": revision, "dirty": False}
    (checkout / "code.py").write_text("2\n")
    assert git_state(checkout) == {"revision": revision, "dirty": True}


def test_no_revision_where_there_is_no_checkout(checkout, tmp_path, monkeypatch):
    """Neither outside of one, nor in one that does not hold the package, nor without git."""
    (tmp_path / "elsewhere").mkdir()
    assert git_state(tmp_path / "elsewhere") is None
    installed = checkout.parent / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "code.py").write_text("1\n")
    assert git_state(installed) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(checkout) is None


def test_only_whole_names_of_folders_are_shortened(monkeypatch):
    monkeypatch.setenv("HOME", "/h")
    assert without_folders("out=/h/runs /hall/x") == "out=~/runs /hall/x"
    monkeypatch.setenv("HOME", "/")
    assert without_folders("out=/tmp/x") == "out=/tmp/x"


def test_peak_memory_counts_bytes():
    found = peak_memory()["peak_memory"]
    assert 50e6 < found < 1e12  # torch alone has more than 50 MB; kilobytes would be below


def test_starts_are_kept_and_timed(tmp_path):
    path = tmp_path / "environment.json"
    first = Starts(path)
    first.begin({"command": "a"}, update=0, bytes_done=0)
    assert bytes_per_second(Starts(path, resuming=True).entries) is None
    first.reach(5, 500, 2.0)
    second = Starts(path, resuming=True)
    second.begin({"command": "b"}, update=5, bytes_done=500)
    second.reach(8, 800, 1.0)
    entries = json.loads(path.read_text())
    assert [(e["command"], e["from_update"], e["to_update"]) for e in entries] == [("a", 0, 5), ("b", 5, 8)]
    assert bytes_per_second(entries) == 800 / 3
    assert Starts(path).entries == []

"""A run's environment and starts, without names of folders."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import rltok_rl.training.environment as module
from rltok_rl.fused import fused
from rltok_rl.training.environment import (
    CpuClock,
    Starts,
    bytes_per_second,
    cpu_seconds,
    environment,
    git_state,
    machine,
    peak_memory,
    without_folders,
)

from ..test_project_text import machine_paths


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_environment_names_versions_and_no_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere/lovelace")
    entry = environment(command=f"train out={Path.cwd()}/runs/x data.source=/somewhere/lovelace/text", num_processes=3)
    assert entry["packages"]["torch"].split(".")[0].isdigit() and entry["python"].count(".") == 2
    assert entry["command"] == "train out=./runs/x data.source=~/text"
    assert entry["num_processes"] == 3 and entry["device"] == "cpu"
    assert entry["threads"] == torch.get_num_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    assert entry["cpu_capability"] == capability and f" ({capability}), " in machine("cpu")
    assert f", {torch.get_num_threads()} threads; torch {torch.__version__}, Python 3." in machine("cpu")
    with fused(False):
        assert environment()["fused"] == "off"
    text = json.dumps(entry)
    assert not machine_paths(text) and str(Path.cwd()) not in text and "lovelace" not in text


def test_gpus_are_named_and_their_memory_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"NVIDIA X{device or ''}")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: {"cuda:1": 7}[device])
    entry, alone = environment(device="cuda:1"), environment()
    assert (entry["gpu"], entry["device"], alone["num_processes"]) == ("NVIDIA Xcuda:1", "cuda", 1)
    assert "gpu" not in alone and "NVIDIA" not in machine("cpu")
    for device in ("cuda", "cuda:1", torch.device("cuda:1")):
        assert f" threads, NVIDIA X{device}; torch " in machine(device)
    assert peak_memory("cuda:1")["peak_gpu_memory"] == 7 and "peak_gpu_memory" not in peak_memory()


def test_revision_is_that_of_the_checkout(tmp_path, monkeypatch):
    """There is none outside of a checkout, in a folder that git ignores, or without git."""
    checkout = tmp_path / "checkout"
    package, installed, elsewhere = checkout / "package", checkout / "venv" / "package", tmp_path / "elsewhere"
    for folder in (package, installed, elsewhere):
        folder.mkdir(parents=True)
        (folder / "code.py").write_text("1\n")
    (checkout / ".gitignore").write_text("venv/\n")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        git(checkout, *arguments)
    revision = git(checkout, "rev-parse", "HEAD")
    with monkeypatch.context() as patch:
        patch.chdir(checkout)
        assert environment()["git"] == git_state(Path(module.__file__).parent)
    assert git_state(package) == {"revision": revision, "dirty": False}
    (package / "code.py").write_text("2\n")
    assert git_state(package) == {"revision": revision, "dirty": True}
    assert git_state(elsewhere) is None and git_state(installed) is None
    with monkeypatch.context() as patch:
        run = subprocess.run

        def slow(command, **options):
            if "status" in command:
                raise subprocess.TimeoutExpired(command, 10)
            return run(command, **options)

        patch.setattr(subprocess, "run", slow)
        assert git_state(package) == {"revision": revision, "dirty": None}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(package) is None


def test_only_whole_names_of_folders_are_shortened(monkeypatch):
    monkeypatch.setenv("HOME", "/h")
    assert without_folders("out=/h/runs /hall/x") == "out=~/runs /hall/x"
    monkeypatch.setattr(Path, "cwd", lambda: Path("/h/here"))
    assert without_folders("out=/h/here/runs /h/x") == "out=./runs ~/x"  # the working folder first
    monkeypatch.setenv("HOME", "/")
    assert without_folders("out=/tmp/x") == "out=/tmp/x"


def test_peak_memory_counts_bytes():
    assert 50e6 < peak_memory()["peak_memory"] < 1e12  # torch alone has more than 50 MB; kilobytes would be below


def test_cpu_clock_leaves_out_what_is_paused(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(module.time, "process_time", lambda: now[0])
    clock = CpuClock()
    now[0] += 1.0
    with pytest.raises(KeyError), clock.paused():
        now[0] += 10.0
        raise KeyError
    now[0] += 0.5
    assert clock.seconds == 1.5


def test_starts_are_kept_and_timed(tmp_path):
    path = tmp_path / "environment.json"
    first = Starts(path)
    first.begin({"command": "a"}, update=0, bytes_done=0)
    assert bytes_per_second(Starts(path, resuming=True).entries) is None
    inode = path.stat().st_ino
    first.reach(5, 500, 1.9996, 3.5)
    assert path.stat().st_ino != inode, "a kill leaves the old file or the new one"
    second = Starts(path, resuming=True)
    second.begin({"command": "b"}, update=5, bytes_done=500)
    second.reach(8, 800, 0.5, 0.25)
    entries = json.loads(path.read_text())
    assert [(e["command"], e["from_update"], e["to_update"]) for e in entries] == [("a", 0, 5), ("b", 5, 8)]
    assert [(e["from_bytes"], e["to_bytes"], e["seconds"]) for e in entries] == [(0, 500, 2.0), (500, 800, 0.5)]
    assert cpu_seconds(entries) == cpu_seconds(Starts(path, resuming=True).entries) == 3.75
    del entries[0]["cpu_seconds"]  # of an earlier version
    assert cpu_seconds(entries) is None and cpu_seconds([]) is None
    assert bytes_per_second(entries) == 800 / 2.5 and Starts(path).entries == []

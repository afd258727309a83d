"""Checkpoints, atomic files and signals: what comes back, which damage is named, what a kill leaves."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from rltok_rl.data.disk import claim_folder, replace_text
from rltok_rl.training.checkpoint import (
    CheckpointError,
    find_damage,
    find_lost,
    list_checkpoints,
    load_checkpoint,
    random_states,
    recorded_files,
    save_checkpoint,
    seed_everything,
    set_random_states,
)
from rltok_rl.training.signals import StopRequest

from ..each import each
from ..forked import CONTEXT
from ..states import same

FILES = ("tensors.safetensors", "state.json", "manifest.json")


def varied():
    """Everything that states are made of."""
    shared = torch.arange(12.0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "bfloat16": torch.randn(5).bfloat16(),
        "double": torch.randn(2).double(),
        "bool": torch.tensor([True, False]),
        "nothing": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "view": shared[2:5],
        "transposed": shared.view(3, 4).T,
        "shared": [shared, shared],
        "rng": torch.get_rng_state(),
        "optimizer": optimizer.state_dict(),
        "model": dict(model.state_dict()),
        "plain": {"int": 3, "big": 2**80, "float": 0.1 + 0.2, "text": "é\n", "none": None, "yes": True},
        "nan": float("nan"),
        "infinite": float("-inf"),
        7: ("tuple", [1, [2, ()]], {}),
    }


def test_states_come_back_to_the_last_bit(tmp_path):
    state = varied()
    path = save_checkpoint(tmp_path / "deep" / "folder", 12, state)
    update, loaded = load_checkpoint(path)
    assert update == 12 and same(loaded, state)
    for key, value in (("double", state["double"] + 1e-15), ("scalar", 2.5), ("plain", {}), (7, ["tuple"])):
        assert not same({**state, key: value}, loaded)
    assert load_checkpoint(tmp_path / "deep" / "folder")[0] == 12
    assert {p.name for p in path.iterdir()} == {*FILES}


def test_newest_two_are_kept(tmp_path):
    assert load_checkpoint(save_checkpoint(tmp_path, 0, {})) == (0, {})
    for update in (5, 10, 100):
        save_checkpoint(tmp_path, update, {"update": update})
    assert [p.name for p in list_checkpoints(tmp_path)] == ["update-00000010", "update-00000100"]
    assert load_checkpoint(tmp_path) == (100, {"update": 100})
    save_checkpoint(tmp_path, 100, {"update": "again"})
    assert load_checkpoint(tmp_path)[1] == {"update": "again"}
    assert json.loads((tmp_path / "update-00000100" / "manifest.json").read_text())["files"] == {}
    for update in (100, 110):
        save_checkpoint(tmp_path, update, {"update": update})
    assert [load_checkpoint(path)[1] for path in list_checkpoints(tmp_path)] == [{"update": 100}, {"update": 110}]


@each(
    file=FILES,
    spoil=[None, lambda content: content[: len(content) // 2], lambda content: content[:40] + b"?" + content[41:]],
)
def test_damage_is_named_and_the_previous_checkpoint_offered(tmp_path, file, spoil):
    good = save_checkpoint(tmp_path, 1, varied())
    path = save_checkpoint(tmp_path, 2, varied()) / file
    content = path.read_bytes()
    path.unlink()
    if spoil:
        path.write_bytes(spoil(content))
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    altered_sum = file == "manifest.json" and spoil and len(spoil(content)) == len(content)  # its file is blamed
    assert (file in str(caught.value) or altered_sum) and str(good) in str(caught.value)
    assert caught.value.previous == good and load_checkpoint(good)[0] == 1
    assert f"; remove {path.parent} to resume without it; {good} is older and intact" in str(caught.value)
    shutil.rmtree(good)
    with pytest.raises(CheckpointError, match="; there is no older one$") as caught:
        load_checkpoint(tmp_path)
    assert "remove" not in str(caught.value)


def test_the_newest_intact_checkpoint_is_offered(tmp_path):
    """Of those before the one that is read, whatever lies after it."""
    for update in (3, 20, 100, 1000):
        path = save_checkpoint(tmp_path / f"alone {update}", update, {"update": update})
        path.rename(tmp_path / path.name)
    paths = list_checkpoints(tmp_path)
    for damaged, read, offered in (((3,), 3, 2), ((3, 2), 3, 1), ((1, 2), 2, 0), ((0,), 0, None), ((0, 1), 1, None)):
        texts = {n: (paths[n] / "state.json").read_text() for n in damaged}
        for n in damaged:
            (paths[n] / "state.json").write_text("{")
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(paths[read])
        assert caught.value.previous == (None if offered is None else paths[offered])
        for n, text in texts.items():
            (paths[n] / "state.json").write_text(text)
    renamed = paths[3].rename(tmp_path / "update-00002000")
    assert find_damage(renamed) == f"{renamed / 'manifest.json'} belongs to update 1000"
    assert find_damage(paths[2]) is None
    shutil.rmtree(paths[2])
    save_checkpoint(tmp_path / "list", 100, [1]).rename(paths[2])
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        load_checkpoint(paths[2])
    assert caught.value.previous == paths[1]


def test_foreign_folders_are_ignored_and_leftovers_removed(tmp_path):
    foreign = {"update-notes", "update-00000009-copy", "update-00000009.bak", "going-update-notes", ".update-x.partial"}
    for name in (*foreign, "going-update-00000001", ".update-00000003.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / "going-update-00000002").symlink_to(tmp_path / "update-notes")
    (tmp_path / "going-update-00000003").write_text("no folder")
    (tmp_path / "update-99999999.json").write_text("{}")
    (tmp_path / "update-300000000").write_text("no folder")
    foreign |= {"update-99999999.json", "update-300000000"}
    save_checkpoint(tmp_path, 99_999_999, {})
    assert {path.name for path in tmp_path.iterdir()} == {*foreign, "update-99999999"}
    save_checkpoint(tmp_path, 100_000_000, {})  # a digit more, which sorts before it as text
    assert load_checkpoint(tmp_path)[0] == 100_000_000
    save_checkpoint(tmp_path, 5, {})  # of a run that has fallen back: later ones are none of its own
    assert [path.name for path in list_checkpoints(tmp_path)] == ["update-00000005"]


@each(
    change=[
        {"format": float("inf")},
        {"format": True},
        {"format": -7},
        {"files": {"log": {"bytes": -5, "sha256": ""}}},
        {"files": {"log": {"bytes": 1.5, "sha256": ""}}},
    ]
)
def test_manifests_of_other_types_are_damage(tmp_path, change):
    path = save_checkpoint(tmp_path, 1, {})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | change))
    assert "manifest.json cannot be read: " in str(find_damage(path))


def test_pipes_in_place_of_files_and_states_without_end_are_damage(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path, 1, varied())
    size = (path / "state.json").stat().st_size
    for most, damage in ((size, None), (size - 1, f"{path / 'state.json'} must have at most {size - 1:,} bytes")):
        monkeypatch.setattr("rltok_rl.training.checkpoint.MOST_STATE", most)
        assert find_damage(path) == damage or damage is not None and find_damage(path).startswith(damage)
    (path / "tensors.safetensors").unlink()
    os.mkfifo(path / "tensors.safetensors")
    assert "tensors.safetensors is missing" in str(find_damage(path))


def test_other_files_are_recorded_and_other_formats_refused(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "checkpoints"
    log.write_text("one\n")
    path = save_checkpoint(folder, 1, {}, files=("log", "absent"))
    log.write_text("one\ntwo\n")
    assert find_lost(path) == {} and recorded_files(path)[log][0] == 4
    for text, problem in (
        ("one", "log has lost 1 of the 4 bytes that it had at update-00000001"),
        ("ONE\n", "changed"),
    ):
        log.write_text(text)
        assert problem in find_lost(path)[log]
    manifest = json.loads((path / "manifest.json").read_text())
    outside = {**manifest, "files": {"../log": {"bytes": 0, "sha256": ""}}}  # resuming would cut it
    (path / "manifest.json").write_text(json.dumps(outside))
    assert "cannot be read" in find_damage(path)
    (tmp_path / "folder").mkdir()
    inside = {**manifest, "files": {"folder": {"bytes": 0, "sha256": ""}}}
    (path / "manifest.json").write_text(json.dumps(inside))
    assert "cannot be read" in find_damage(path)
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(ValueError, match="manifest.json must have a format of at most 1, got 2: a later version"):
        load_checkpoint(folder)
    (path / "manifest.json").write_text(json.dumps({name: manifest[name] for name in ("update", "sha256")}))
    assert find_damage(path).endswith("cannot be read: it must hold 'format', got none")


def test_full_disk_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    save_checkpoint(tmp_path, 1, {"a": 1})
    monkeypatch.setattr("rltok_rl.training.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match="could not be written: .*No space left .* is older and intact"):
        save_checkpoint(tmp_path, 2, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["update-00000001"]
    assert load_checkpoint(tmp_path) == (1, {"a": 1})


def test_misuse_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        load_checkpoint(tmp_path)
    for wrong, kind in (({1}, "set"), (np.float64(1.0), "float64"), (signal.SIGINT, "Signals")):  # numbers of others
        with pytest.raises(TypeError, match=rf"state\['a'\]\[1\] must be made of tensors, .* got {kind}"):
            save_checkpoint(tmp_path, 1, {"a": [0, wrong]})
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save_checkpoint(tmp_path / "file", 1, {})


def test_checkpoint_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A kill does not show it, a power cut would: files are flushed before the rename, the folder's entries after."""
    folder, log = tmp_path / "checkpoints", tmp_path / "log"
    final = folder / "update-00000001"
    log.write_text("one\n")
    flushed = set()  # (inode, whether the checkpoint had its name by then)
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.add((os.fstat(handle).st_ino, final.exists())))
    assert save_checkpoint(folder, 1, varied(), files=("log",)) == final
    assert {(path.stat().st_ino, False) for path in (final, *final.iterdir(), log, tmp_path)} <= flushed
    assert (folder.stat().st_ino, True) in flushed
    flushed.clear()
    save_checkpoint(folder, 1, {})  # the one before it loses its name, on disk, before its files go
    assert (folder.stat().st_ino, False) in flushed


def test_replaced_file_is_on_disk_before_and_after_it_has_its_name(tmp_path, monkeypatch):
    path, flushed = tmp_path / "config.yaml", set()
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.add((os.fstat(handle).st_ino, path.exists())))
    replace_text(path, "new")
    assert flushed == {(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)}


def write_on(folder: Path, reports: Connection) -> None:
    for update in range(1, 10**6):
        save_checkpoint(folder, update, {"x": torch.full((20_000,), float(update)), "update": update})
        reports.send(update)


def test_newest_checkpoint_is_intact_after_a_kill_at_any_moment(tmp_path):
    dice = random.Random(0)
    for _ in range(10):
        reports, theirs = CONTEXT.Pipe(duplex=False)
        writer = CONTEXT.Process(target=write_on, args=(tmp_path, theirs))
        writer.start()
        theirs.close()
        reported = reports.recv()  # it is writing
        time.sleep(0.05 * dice.random())
        writer.kill()
        writer.join()
        with reports, contextlib.suppress(EOFError):
            while True:
                reported = reports.recv()
        update, state = load_checkpoint(tmp_path)
        assert update >= reported and state["update"] == update and (state["x"] == update).all()


def test_first_signal_is_recorded_and_the_second_ends_at_once():
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop and stop.name == "SIGTERM"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes may ignore it
    try:
        with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.name == "SIGINT"
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.name == "SIGTERM"
    finally:
        signal.signal(signal.SIGINT, before)


@each(name=["SIGHUP", "SIGUSR1", "SIGXCPU"])
def test_warnings_of_schedulers_may_repeat(name, monkeypatch):
    number, gone = getattr(signal, name), []

    def no_terminal(*_):
        raise OSError(5, "Input/output error")

    before = signal.signal(number, signal.SIG_DFL)
    try:
        with monkeypatch.context() as patch, StopRequest(say=True) as stop:
            patch.setattr(os, "write", no_terminal)
            patch.setattr(os, "dup2", lambda _, handle: gone.append(handle))
            for _ in range(3):
                os.kill(os.getpid(), number)
            assert stop.name == name and gone == [1, 2]
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.name == name, "only a second SIGTERM ends at once"
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # nohup
        with StopRequest() as stop:
            os.kill(os.getpid(), number)
        assert not stop
    finally:
        signal.signal(number, before)


@each(say=[False, True])
def test_signals_are_announced_once_on_standard_error(say, capfd):
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        with StopRequest(**({"say": True} if say else {})):
            for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
                os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGUSR1, before)
    announced = ("SIGUSR1: stopping after this step and a save", "SIGTERM: stopping after this step and a save; again ")
    out, err = capfd.readouterr()
    assert out == "" and (err == "") is not say
    assert not say or err == f"\n{announced[0]}\n\n{announced[1]}ends at once\n"


def draw() -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
    return [torch.rand(()).item(), *map(float, numbers)]


def test_a_seed_determines_the_numbers_of_all_libraries():
    drawn = []
    for seed in (3, 3, 4):
        seed_everything(seed)
        drawn.append(draw())
    first, same_seed, other = drawn
    assert first == same_seed and all(a != b for a, b in zip(first, other, strict=True))
    for other_seed in (3 + 2**16, 3 + 2**31, 2**32 - 1, 2**40 + 5):  # NumPy takes 32 bits of them
        seed_everything(other_seed)
        assert all(a != b for a, b in zip(first, draw(), strict=True)), other_seed


def test_random_states_survive_a_checkpoint(tmp_path):
    draw()
    save_checkpoint(tmp_path, 1, {"random": random_states(torch.device("cpu"))})
    expected = draw()
    draw()
    set_random_states(load_checkpoint(tmp_path)[1]["random"], torch.device("cpu"))
    assert draw() == expected


HOLD = "import sys, time; from pathlib import Path; from rltok_rl.data.disk import claim_folder\n"
HOLD += "with claim_folder(Path(sys.argv[1])):\n    print('mine', flush=True); time.sleep(60)"


def test_folder_is_locked_until_its_process_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(BlockingIOError, match="is in use by another run"), claim_folder(tmp_path):
            pass
        other.kill()
        other.wait()
    for _ in range(2):
        with claim_folder(tmp_path):
            pass
    (tmp_path / "file").touch()
    named = f"a folder cannot be made there .*{tmp_path / 'file' / 'run'}"
    with pytest.raises(NotADirectoryError, match=named), claim_folder(tmp_path / "file" / "run"):
        pass


@each(make=[lambda path: path.symlink_to(path.parent / "new"), os.mkfifo])
def test_folder_with_another_lock_is_refused(make, tmp_path):
    make(tmp_path / ".lock")
    with pytest.raises(ValueError, match=".lock must be a file, got a link or something else"), claim_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    (tmp_path / ".lock").unlink()


def test_file_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    replace_text(path, "old")

    def fill_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill_disk)
    with pytest.raises(OSError, match="No space left"):
        replace_text(path, "new and longer")
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


def test_file_that_two_writers_replace_at_the_same_time_has_one_of_their_texts(tmp_path, monkeypatch):
    path, fsync = tmp_path / "config.yaml", os.fsync

    def interrupted(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        assert [file.suffix for file in tmp_path.iterdir()] == [".partial"]
        replace_text(path, "second")

    monkeypatch.setattr(os, "fsync", interrupted)
    replace_text(path, "first")
    assert path.read_text() == "first" and [*tmp_path.iterdir()] == [path]

"""Checkpoints, atomic files and signals: what comes back, which damage is named, what a kill leaves."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from rltok_rl.training.atomic_files import claim_folder, replace_text
from rltok_rl.training.checkpoint import CheckpointError, list_checkpoints, load_checkpoint, save_checkpoint
from rltok_rl.training.randomness import random_states, set_random_states
from rltok_rl.training.signals import StopRequest

from ..forked import CONTEXT
from ..states import same


def varied():
    """Everything that states are made of."""
    shared = torch.arange(12.0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "float": torch.randn(3, 4),
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
    for key, value in (("float", state["float"] + 1e-7), ("scalar", 2.5), ("plain", {}), (7, ["tuple"])):
        assert not same({**state, key: value}, loaded)
    assert load_checkpoint(tmp_path / "deep" / "folder")[0] == 12
    assert sorted(p.name for p in path.iterdir()) == ["manifest.json", "state.json", "tensors.safetensors"]


def test_the_newest_are_kept(tmp_path):
    for update in (5, 10, 100):
        save_checkpoint(tmp_path, update, {"update": update}, keep=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["update-00000010", "update-00000100"]
    assert load_checkpoint(tmp_path) == (100, {"update": 100})
    save_checkpoint(tmp_path, 100, {"update": "again"})
    assert load_checkpoint(tmp_path)[1] == {"update": "again"}


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])


@pytest.mark.parametrize("how", ["truncated", "altered", "missing"])
def test_damage_is_named_and_the_previous_checkpoint_offered(tmp_path, how):
    good = save_checkpoint(tmp_path, 1, varied())
    for name in ("tensors.safetensors", "state.json", "manifest.json"):
        damage(save_checkpoint(tmp_path, 2, varied()) / name, how)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(tmp_path)
        if (name, how) != ("manifest.json", "altered"):  # an altered checksum is blamed on its file
            assert name in str(caught.value)
        assert str(good) in str(caught.value) and caught.value.previous == good
        assert load_checkpoint(caught.value.previous)[0] == 1


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"a": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rltok_rl.training.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match="could not be written: .*No space left .* is older and intact"):
        save_checkpoint(tmp_path, 2, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["update-00000001"]
    assert load_checkpoint(tmp_path) == (1, {"a": 1})


def test_misuse_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        load_checkpoint(tmp_path)
    with pytest.raises(TypeError, match=r"state\['a'\]\[1\] must be made of tensors, .* got set"):
        save_checkpoint(tmp_path, 1, {"a": [0, {1}]})
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        save_checkpoint(tmp_path, 1, {}, keep=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save_checkpoint(tmp_path / "file", 1, {})


def test_a_checkpoint_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A kill does not show it, a power cut would: files are flushed before the rename, the folder's entries after."""
    final = tmp_path / "update-00000001"
    flushed = set()  # (inode, whether the checkpoint had its name by then)
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.add((os.fstat(handle).st_ino, final.exists())))
    assert save_checkpoint(tmp_path, 1, varied()) == final
    assert {(path.stat().st_ino, False) for path in (final, *final.iterdir())} <= flushed
    assert (tmp_path.stat().st_ino, True) in flushed


def write_on(folder: Path, reports: Connection) -> None:
    for update in range(1, 10**6):
        save_checkpoint(folder, update, {"x": torch.full((20_000,), float(update)), "update": update})
        reports.send(update)


def test_killed_at_any_moment_the_newest_is_intact(tmp_path):
    """Ten kills: the newest checkpoint can be read, and is at least as new as the last reported one."""
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


def test_the_first_signal_is_recorded_and_the_second_ends_at_once():
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
    finally:
        signal.signal(signal.SIGINT, before)


def draw() -> list[float]:
    return [
        torch.rand(()).item(),
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
    ]


def test_random_states_survive_a_checkpoint(tmp_path):
    draw()
    save_checkpoint(tmp_path, 1, {"random": random_states(torch.device("cpu"))})
    expected = draw()
    draw()
    set_random_states(load_checkpoint(tmp_path)[1]["random"], torch.device("cpu"))
    assert draw() == expected


def test_a_generator_that_is_not_there_is_left_alone():
    expected = random_states(torch.device("cpu"))["torch"]
    set_random_states({"python": random.getstate()}, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), expected)


HOLD = "import sys, time; from pathlib import Path; from rltok_rl.training.atomic_files import claim_folder\n"
HOLD += "with claim_folder(Path(sys.argv[1])):\n    print('mine', flush=True); time.sleep(60)"


def test_a_folder_is_locked_until_its_process_ends(tmp_path):
    """However it ends: SIGKILL leaves nothing to clean up."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(BlockingIOError, match="is in use by another run"), claim_folder(tmp_path):
            pass
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    for _ in range(2):
        with claim_folder(tmp_path):
            pass


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    replace_text(path, "old")

    def write_some(self: Path, text: str) -> None:
        with self.open("w") as file:
            file.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_some)
    with pytest.raises(OSError, match="No space left"):
        replace_text(path, "new and longer")
    assert path.read_text() == "old"

"""Checkpoints: what comes back, what is noticed, what a kill leaves."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from rltok_rl.training.checkpoint import CheckpointError, list_checkpoints, load_checkpoint, same, save_checkpoint
from rltok_rl.training.signals import StopRequest

from ..forked import CONTEXT


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


def test_what_is_saved_comes_back_to_the_last_bit(tmp_path):
    state = varied()
    path = save_checkpoint(tmp_path / "deep" / "folder", 12, state)
    update, found = load_checkpoint(path)
    assert update == 12 and same(found, state)
    assert load_checkpoint(tmp_path / "deep" / "folder")[0] == 12
    assert sorted(p.name for p in path.iterdir()) == ["manifest.json", "state.json", "tensors.safetensors"]


def test_same_tells_states_apart():
    state = varied()
    for key, value in (("float", state["float"] + 1e-7), ("scalar", 2.5), ("plain", {}), (7, ["tuple"])):
        assert not same({**state, key: value}, state)


def test_the_newest_are_kept(tmp_path):
    for update in (5, 10, 100):
        save_checkpoint(tmp_path, update, {"update": update}, keep=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["update-00000010", "update-00000100"]
    assert load_checkpoint(tmp_path) == (100, {"update": 100})
    save_checkpoint(tmp_path, 100, {"update": "again"})
    assert load_checkpoint(tmp_path)[1] == {"update": "again"}


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("how", ["truncated", "altered", "missing"])
def test_damage_is_named_and_the_previous_one_offered(tmp_path, name, how):
    good = save_checkpoint(tmp_path, 1, varied())
    file = save_checkpoint(tmp_path, 2, varied()) / name
    content = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    if (name, how) != ("manifest.json", "altered"):  # an altered checksum is blamed on the file that it is of
        assert name in str(caught.value)
    assert str(good) in str(caught.value) and caught.value.previous == good
    assert load_checkpoint(caught.value.previous)[0] == 1


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"a": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rltok_rl.training.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match="could not be written: .*No space left .* is older and whole"):
        save_checkpoint(tmp_path, 2, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["update-00000001"]
    assert load_checkpoint(tmp_path) == (1, {"a": 1})


def test_other_misuse_is_refused(tmp_path):
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
    assert {(path.stat().st_ino, False) for path in final.iterdir()} <= flushed
    assert (tmp_path.stat().st_ino, True) in flushed


def write_on(folder: Path, reports: Connection) -> None:
    for update in range(1, 10**6):
        save_checkpoint(folder, update, {"x": torch.full((20_000,), float(update)), "update": update})
        reports.send(update)


def test_killed_at_any_moment_the_newest_is_whole(tmp_path):
    """Ten kills without warning: what is there can be read, and is at least as new as what was reported."""
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


def test_a_signal_is_a_wish_and_the_second_one_an_order():
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

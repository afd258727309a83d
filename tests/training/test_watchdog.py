"""A rank that hangs is named and ends the job; slow work does not."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException

from rltok_rl.data.disk import flush
from rltok_rl.training import metrics, watchdog
from rltok_rl.training.distributed import Processes
from rltok_rl.training.watchdog import Watchdog

from ..each import each
from .processes import spawn

SECONDS = 1.5
ALL_REDUCE = "torch/distributed/distributed_c10d.py all_reduce, line 1"
MEET = "rltok_rl/training/distributed.py meet, line 1"


def hang(processes: Processes, folder: Path) -> None:
    if processes.main:
        for _ in range(150):  # packets of a slow download
            time.sleep(SECONDS / 100)
    processes.meet()
    if not processes.main:
        code = compile(f"import time\ntime.sleep({1.5 * SECONDS})", "torch/_inductor/compile_fx.py", "exec")
        exec(code, {})
    processes.any(False)
    (folder / f"healthy {processes.rank}").touch()
    if not processes.main:
        time.sleep(100)
    processes.any(False)


def test_slow_work_goes_on_and_a_hanging_rank_ends_the_job(tmp_path):
    with pytest.raises(ProcessExitedException):
        spawn(hang, tmp_path, hang_seconds=SECONDS)
    assert {path.name for path in tmp_path.glob("healthy *")} == {"healthy 0", "healthy 1"}
    (line,) = [line for line in (tmp_path / "errors 0").read_text().splitlines() if "hangs" in line]
    assert line.startswith(f"rltok train: rank 1 of 2 hangs: for {SECONDS:g} seconds it has computed nothing, in ")
    assert f"{Path(__file__).name} hang, line" in line


def stop(processes: Processes, folder: Path) -> None:
    """Rank 0 hangs while it prepares."""
    processes.meet()
    (folder / f"healthy {processes.rank}").touch()
    if processes.main:
        threading.Event().wait()
    processes.meet()


def test_rank_that_hangs_while_others_meet_ends_the_job(tmp_path):
    with pytest.raises(ProcessExitedException):
        spawn(stop, tmp_path, hang_seconds=SECONDS)
    assert {path.name for path in tmp_path.glob("healthy *")} == {"healthy 0", "healthy 1"}
    (line,) = [line for line in (tmp_path / "errors 1").read_text().splitlines() if "hangs" in line]
    assert line.startswith(f"rltok train: rank 0 of 2 hangs: for {SECONDS:g} seconds it has computed nothing, in ")
    assert f"{Path(__file__).name} stop, line" in line


def test_stopped_rank_is_killed_if_the_same_process_started_it(monkeypatch, capsys):
    """Torchrun would wait for it for another half minute."""
    store, codes, recorded = dist.HashStore(), [], []
    dog = Watchdog(store, 0, 2, SECONDS)
    monkeypatch.setattr(watchdog.os, "_exit", codes.append)
    handler = SimpleNamespace(record_exception=lambda error: recorded.append(str(error)))
    monkeypatch.setattr(watchdog, "get_error_handler", lambda: handler)
    with subprocess.Popen(["sleep", "60"]) as rank:
        rank.send_signal(signal.SIGSTOP)
        mine = store.get("process 0").decode()
        assert mine.endswith(f" {os.getpid()}") and watchdog._starter() in mine
        for starter, dead in (("another machine", 1), (watchdog._starter(), None), (watchdog._starter(), 1)):
            assert rank.poll() is None
            store.set("process 1", f"{starter} {rank.pid}")
            dog._dead = dead
            dog.end("rank 1 of 2 hangs")
        assert rank.wait(10) == -signal.SIGKILL
        dog.end("rank 1 of 2 hangs")  # it has ended
        dog.end("")  # another rank has the verdict
    assert codes == [1] * 5 and recorded == ["rank 1 of 2 hangs"] * 4
    assert capsys.readouterr() == ("", "rltok train: rank 1 of 2 hangs\n" * 4)


def test_threads_move_if_they_began_ended_or_ran(monkeypatch):
    """Those of process groups, and the one that watches, do not count."""
    mine, other = str(os.getpid()), "of gloo"
    times = {mine: 0, other: 0}
    monkeypatch.setattr(watchdog, "_nanoseconds", lambda: dict(times))
    monkeypatch.setattr(watchdog.threading, "get_native_id", lambda: "watchdog")
    dog = Watchdog(dist.HashStore(), 0, 1, 0.9)  # a heartbeat in 0.1 seconds, of which 2,000 ns are still
    moved = []
    for change in ({}, {}, {other: 10**9}, {mine: 1999}, {mine: 4001}, {"new": 0}, {"new": 0}, {"new": 2500}, None, {}):
        times = {mine: 4001, other: 10**9} if change is None else times | change
        moved.append(dog._any_thread_moves())
    assert moved == [True, False, False, False, True, True, False, True, True, False]
    times["watchdog"] = 1
    assert not dog._any_thread_moves()
    times = {}
    assert [dog._any_thread_moves() for _ in range(2)] == [True, True], "nothing to go by"


@each(frame=[ALL_REDUCE, "rltok_rl/training/distributed.py meet, line 1"])
def test_rank_without_a_sign_of_life_is_named(frame, monkeypatch):
    monkeypatch.setattr(watchdog, "_frames", lambda: ([frame], [frame]))
    dogs = [Watchdog(dist.HashStore(), 0, 2, SECONDS)]
    dogs += [Watchdog(dogs[0].store, 1, 2, SECONDS)]
    assert [dog.beat() for _ in range(30) for dog in dogs] == [None] * 60  # both wait for a third
    verdicts = [dogs[0].beat() for _ in range(20)]
    assert verdicts[:9] == [None] * 9 and verdicts[9], "nine heartbeats are missed after the last"
    (verdict,) = filter(None, verdicts)
    assert verdict.startswith("rank 1 of 2 hangs") and "has given no sign of life" in verdict
    assert (dogs[0]._dead, dogs[1]._dead) == (1, None)
    assert dogs[1].beat() == "", "it ends too if it lives"
    fresh = [Watchdog(store, rank, 2, SECONDS) for store in (dist.HashStore(),) for rank in (1, 0)]
    fresh[0].beat()
    assert [bool(fresh[1].beat()) for _ in range(10)] == [False] * 9 + [True], "this rank has waited as long, too"
    monkeypatch.undo()


@each(
    stack=[
        (["time.py sleep, line 1"], [], True),
        (
            ["a.py encode, line 1", "torch/distributed/fsdp/_fully_shard/_fully_shard.py wrapped_method, line 1"],
            [],
            True,
        ),
        (["socket.py recv, line 1"], ["site-packages/huggingface_hub/file_download.py get, line 1"], True),
        ([ALL_REDUCE], [], False),
        ([*["a.py f, line 1"] * 3, ALL_REDUCE], [], False),
        ([*["a.py f, line 1"] * 4, ALL_REDUCE], [], True),
        (["torch/_ops.py __call__, line 1", "torch/distributed/_functional_collectives.py wait, line 1"], [], False),
        (["rltok_rl/training/metrics.py fetch, line 1"], [], False),
        (["time.py sleep, line 1", "rltok_rl/training/distributed.py meet, line 1"], [], False),
        (["graph.py backward, line 1"], ["torch/_dynamo/convert_frame.py compile, line 1"], False),
    ]
)
def test_idle_is_who_neither_computes_nor_waits_nor_compiles(stack, monkeypatch):
    main, others, idle = stack
    monkeypatch.setattr(watchdog, "_frames", lambda: (main, main + others))
    process, thread = count(7), count()  # only the thread that watches computes
    monkeypatch.setattr(watchdog.time, "process_time", lambda: float(next(process)))
    monkeypatch.setattr(watchdog.time, "thread_time", lambda: float(next(thread)))
    monkeypatch.setattr(Watchdog, "_any_thread_moves", lambda self: False)
    dog = Watchdog(dist.HashStore(), 0, 1, SECONDS)
    for _ in range(3):
        dog.beat()
    _, for_beats, still = map(int, dog.store.get("0").split()[:3])
    assert (for_beats > 0) is idle and (still > 0) is (idle and others == []), "a library may wait for its own timeout"
    monkeypatch.undo()


@each(case=[("computes", None), ("receives data", 4), ("does nothing", 3)])
def test_idle_rank_hangs_in_a_collective_and_a_still_one_outside_too(case, monkeypatch):
    """Rank 1 is waited for in one and then outside; each wait of rank 0 counts from its beginning."""
    activity, hanging_stage = case
    seconds = count(step=1.0 if activity == "computes" else 0.0)
    monkeypatch.setattr(watchdog.time, "process_time", lambda: next(seconds))
    monkeypatch.setattr(Watchdog, "_any_thread_moves", lambda self: activity != "does nothing")
    store = dist.HashStore()
    dogs = [Watchdog(store, rank, 2, SECONDS) for rank in (0, 1)]
    verdicts = []
    for stage, (frame, beats) in enumerate(((ALL_REDUCE, 9), (MEET, 9), (ALL_REDUCE, 9), (MEET, 12), (ALL_REDUCE, 12))):
        for rank in (1, 0) * beats:
            stack = [frame] if rank == 0 else ["time.py sleep, line 1"]
            monkeypatch.setattr(watchdog, "_frames", lambda stack=stack: (stack, stack))
            verdicts += [(stage, verdict)] if (verdict := dogs[rank].beat()) else []
    assert [stage for stage, _ in verdicts] == ([] if hanging_stage is None else [hanging_stage])
    assert dogs[0]._dead is None, "it has heartbeats, and hears of the verdict"
    for _, verdict in verdicts:
        assert verdict.startswith("rank 1 of 2 hangs") and "has computed nothing, in time.py sleep" in verdict
    monkeypatch.undo()


def test_nobody_watches_after_the_block():
    processes = Processes(store=dist.HashStore(), hang_seconds=60.0)
    with processes:
        assert "watchdog" in [thread.name for thread in threading.enumerate()]
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_functions_in_the_stacks_exist():
    for module in ("torch._dynamo.convert_frame", "torch._inductor.compile_fx"):
        origin = find_spec(module).origin
        assert any(part in origin for part in watchdog._COMPILING), module
    parts = (*watchdog._COLLECTIVES[1:], watchdog._MEETING, watchdog._PATIENT[0])
    for function, part in zip((metrics.fetch, Processes.mean, Processes.meet, flush), parts, strict=True):
        path, name = function.__code__.co_filename, function.__code__.co_name
        assert part in f"{path} {name}"

"""The command under torchrun: one folder, the metrics of one process, and a process that is killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from rltok_rl.experiments import train
from rltok_rl.experiments.runs import record
from rltok_rl.experiments.runs.record import Recorder

from rltok_rl.objectives import JointLoss
from rltok_rl.training import distributed
from rltok_rl.training.checkpoint import list_checkpoints
from rltok_rl.training.distributed import TIMEOUT, Processes, fresh_store, init_processes
from rltok_rl.training.environment import CpuClock
from rltok_rl.training.sharding import check_parallel

from ..each import each
from ..experiments.configured import QUICK, configured
from ..forked import Forked
from .processes import make

UPDATES = 24
OPTIONS = [*QUICK[1:], f"optim.total_bytes={UPDATES * 128}", "checkpoint_every=4", "compute.threads=1"]


def launch(folder: Path, *options: str, restarts: int = 1) -> Forked:
    command = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts), "-m"]
    command += ["rltok_rl.experiments.train", "compute.strategy=ddp", *OPTIONS, f"out={folder}", *options]
    out, err = (folder.with_suffix(suffix) for suffix in (".out", ".err"))
    return Forked("tests.training.torchrun", command, out=out, err=err, daemon=False)


def finish(process: Forked, folder: Path, *, status: int = 0) -> tuple[str, str]:
    """Its output and errors, after it has ended."""
    try:
        process.wait(timeout=150)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    out, err = (folder.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
    assert process.returncode == status, err[-3000:]
    return out, err


def rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("run") / "ddp"
    return folder, *finish(launch(folder), folder)


def test_two_processes_write_the_folder_of_one(undisturbed, tmp_path):
    folder, out, err = undisturbed
    assert out.count("held-out text: ") == out.count("report: ") == 1 and err.count("100%") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["processes"] == 2 and summary["command"].startswith("torchrun --nproc-per-node 2 -m rltok_rl")
    alone = train.run(configured(*OPTIONS, f"out={tmp_path}/one"), "")
    assert summary["held_out_bits_per_byte"] == pytest.approx(alone["held_out_bits_per_byte"], rel=1e-3)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if "hydra" not in path.parts}
    assert files == {p.relative_to(tmp_path / "one").as_posix() for p in (tmp_path / "one").rglob("*")}
    one, two = rows(tmp_path / "one"), rows(folder)
    assert len(one) == len(two) == UPDATES
    for a, b in zip(one[:10], two, strict=False):  # rounding grows once a decision differs
        # Rows of tokens are as long as the longest of their process: two pad no more than one.
        assert b.pop("padded_flops") <= a.pop("padded_flops") * (1 + 1e-6)
        assert b == pytest.approx(a, rel=1e-4, abs=1e-5, nan_ok=True)  # `share` is that of languages


def test_killed_process_restarts_all(undisturbed, tmp_path):
    """SIGKILL of one process: all resume from the last checkpoint, to the same metrics bit for bit."""
    folder = tmp_path / "killed"
    process = launch(folder, "resume=true")
    try:
        while len(list_checkpoints(folder / "checkpoints")) < 2 and process.poll() is None:
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[1]), signal.SIGKILL)  # rank 1
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    _, err = finish(process, folder)
    assert "resuming" in err and "after update" in err
    assert (folder / "metrics.csv").read_text() == (undisturbed[0] / "metrics.csv").read_text()


@each(
    refusal=[
        ("optim.lrr=1", "rltok train: there is no option 'optim.lrr'; did you mean 'optim.lr'?"),
        ("data.source=none.txt", "rltok train: data.source must be one of"),  # noticed by rank 0 alone
    ]
)
def test_wrong_options_are_one_line_from_one_process(refusal, tmp_path):
    option, message = refusal
    folder = tmp_path / option[:4]
    _, err = finish(launch(folder, option, restarts=0), folder, status=1)
    # What remains is torchrun's own: a table of exit codes.
    lines = [line for line in err.splitlines() if line.startswith(("rltok train:", "process "))]
    assert len(lines) == 1 and lines[0].startswith(message)
    assert not any(f"/{package}/" in err for package in ("rltok_rl", "experiments", "envs"))  # no tracebacks of ours


def test_other_ranks_leave_the_message_to_rank_0(monkeypatch):
    """Torchrun ends all ranks when the first has failed: rank 1 waits, or rank 0 might not come to its message."""
    slept = []
    monkeypatch.setattr(distributed.time, "sleep", slept.append)
    monkeypatch.setattr(train.sys, "argv", ["rltok train", "optim.lrr=1"])
    for rank, status, waits in (("1", 1, 1), ("0", "rltok train: there is no option 'optim.lrr'", 0)):
        monkeypatch.setenv("RANK", rank)
        slept.clear()
        with pytest.raises(SystemExit) as exit_info:
            train.main()
        assert str(exit_info.value.code).startswith(str(status)) and len(slept) == waits
    monkeypatch.delenv("RANK")
    distributed.wait_for_main_error()
    assert distributed.is_main_rank() and slept == [], "alone, nobody has to wait"


COMPLETE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "0", "MASTER_PORT": "0"}


def test_incomplete_or_wrong_environments_are_refused(monkeypatch):
    for name in COMPLETE:
        monkeypatch.delenv(name, raising=False)
    assert init_processes().group is None and init_processes("meta").device == torch.device("meta")
    for variables, device, message in (
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            "cpu",
            r"without \['LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT'\]; start with",
        ),
        ({**COMPLETE, "RANK": "2"}, "cpu", "RANK must be less than WORLD_SIZE, got RANK=2 and WORLD_SIZE=2"),
        *(
            ({**COMPLETE, "RANK": value}, "cpu", f"RANK must be an integer of at least 0, got '{value}'")
            for value in ("two", "-1")
        ),
        ({**COMPLETE, "LOCAL_RANK": "x"}, "cpu", "LOCAL_RANK must be an integer of at least 0, got 'x'"),
        ({**COMPLETE, "LOCAL_RANK": "9999"}, "cuda", "--nproc-per-node must be at most|no CUDA"),
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RuntimeError, match=message):
            init_processes(device)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert init_processes().group is None and init_processes("meta").device == torch.device("meta")


def test_earlier_attempt_leaves_nothing_behind():
    """Words and answers of processes that are gone stay in the store; no rank takes them for new."""
    store = dist.HashStore()
    for key, value in (("hello 1", "gone"), ("answer gone", "old"), ("met old 1", "yes")):
        store.set(key, value)
    attempts = []
    for number in range(2):
        with ThreadPoolExecutor(3) as pool:
            met = [pool.submit(fresh_store, store, rank, 3) for rank in (2, 0, 1)]
            stores = [future.result(timeout=20) for future in met]
        stores[0].set("name", str(number))
        assert {one.get("name") for one in stores} == {str(number).encode()}
        attempts.append(stores)
    assert attempts[0][1].get("name") == b"0"  # the second attempt does not write into the store of the first
    for key, value in (("hello 2", "gone"), ("answer gone", "old")):
        store.set(key, value)
    soon = timedelta(milliseconds=50)
    with pytest.raises(RuntimeError, match=r"processes \[1, 2\] of 3 did not come within 0:00:00.05"):
        fresh_store(store, 0, 3, soon)
    with pytest.raises(RuntimeError, match="[Tt]imeout"):
        fresh_store(dist.HashStore(), 1, 2, soon)


def test_ranks_meet_outside_collectives(monkeypatch):
    """However long rank 0 takes: no collective has begun, so none times out."""
    store, done = dist.HashStore(), []
    main, other = (Processes(rank, 2, store=store) for rank in (0, 1))
    with ThreadPoolExecutor(1) as pool:
        for number in range(2):  # a second time too
            waiting = pool.submit(lambda: [other.meet(), done.append("met")])
            time.sleep(0.3)
            assert len(done) == number and not waiting.done()
            main.meet()
            waiting.result(timeout=20)
    assert len(done) == 2
    monkeypatch.setattr(distributed, "PREPARATION_TIMEOUT", 0 * TIMEOUT)
    with pytest.raises(RuntimeError, match=r"processes \[1\] of 2 were not ready within 0:00:00"):
        main.meet()


def test_ranks_wait_for_a_snapshot_outside_collectives():
    """Rank 0 evaluates alone."""
    store = dist.HashStore()
    main, other = (Processes(rank, 2, store=store) for rank in (0, 1))
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(1, 1)})
    recorder = SimpleNamespace(trainer=SimpleNamespace(model=model, processes=other), cpu=CpuClock())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Recorder.take_snapshot, recorder)
        time.sleep(0.3)
        assert not waiting.done() or waiting.result()
        main.meet()
        waiting.result(timeout=20)


def test_cpu_seconds_are_those_of_all_ranks(monkeypatch):
    monkeypatch.setattr(record, "save_checkpoint", lambda *_, **__: None)
    reached = []
    processes = SimpleNamespace(main=True, world_size=3, mean=lambda metrics: dict.fromkeys(metrics, 2.0), meet=list)
    recorder = SimpleNamespace(
        trainer=SimpleNamespace(state_dict=dict, processes=processes, updates=4, bytes_done=5),
        starts=SimpleNamespace(reach=lambda *values: reached.extend(values)),
        texts=SimpleNamespace(sha256=""),
        progress=SimpleNamespace(seconds=1.0),
        cpu=CpuClock(),
        out=Path(),
    )
    Recorder.save(recorder)
    assert reached == [4, 5, 1.0, 6.0]


def test_gpus_have_a_backend_for_tensors_on_the_cpu(monkeypatch):
    """NCCL refuses them."""
    asked = {}
    store = dist.HashStore()
    for name, value in COMPLETE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(dist, "rendezvous", lambda url: iter([(store, 0, 2)]))
    waited: list[tuple] = []
    monkeypatch.setattr(distributed, "fresh_store", lambda store, *rest: waited.append(rest) or store)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.update(backend=backend, **options))
    for device, backend in (("cuda", "cpu:gloo,cuda:nccl"), ("cpu", "gloo")):
        assert init_processes(device).store is not None
        assert asked["backend"] == backend and asked["timeout"] == TIMEOUT
        soon = timedelta(seconds=7)
        assert init_processes(device, timeout=soon, hang_seconds=3.0).hang_seconds == 3.0
        assert asked["timeout"] == waited[-1][-1] == soon
        assert (asked["rank"], asked["world_size"]) == waited[-1][:2] == (0, 2)
    monkeypatch.setenv("LOCAL_RANK", "1")  # of rank 0, as on a machine that torchrun has numbered in another order
    assert init_processes("cuda").device == chosen[-1] == torch.device("cuda", 1)
    assert init_processes("cpu").device == torch.device("cpu") and len(chosen) == 3
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RuntimeError, match="must be at most 2 here, got LOCAL_RANK=2"):
        init_processes("cuda")


def test_only_ranks_that_lost_another_wait_for_its_error(monkeypatch):
    """Torchrun prints the first error: that of the rank that failed, and not that of a lost connection."""
    slept, recorded = [], []
    monkeypatch.setattr(distributed.time, "sleep", slept.append)
    monkeypatch.setattr(
        distributed, "get_error_handler", lambda: SimpleNamespace(record_exception=lambda error: recorded.append(error))
    )
    for error, waits in (
        (RuntimeError("[../gloo/transport] Connection closed by peer"), True),
        (RuntimeError("NCCL communicator was aborted"), True),
        (RuntimeError("no room"), False),
        (ValueError("peer must be positive"), False),
    ):
        slept.clear()
        with pytest.raises(type(error)), Processes(1, 2, group=object()):
            raise error
        assert bool(slept) is waits and recorded[-1] is error


def test_statistics_of_one_rank_and_parts_that_are_not_sharded_are_refused():
    model, critic = make().model, make(estimator="critic_advantage").loss
    several = Processes(1, 2, group=object())
    loss, alone = (JointLoss.paper(target_rate=0.2, process_group=group) for group in (several.group, None))
    check_parallel(model, loss, None, "fsdp", several), check_parallel(model, alone, None, "none", Processes())
    loss.terms["policy"]._value_estimator.process_group = None
    for case, message in (
        ((loss, None, "ddp"), "process_group of ReturnEstimator in term 'policy' must be that of the processes"),
        ((alone, None, "ddp"), "process_group of LanguageModelLoss in term 'language_model' must be that of"),
        ((critic, None, "fsdp"), "must be 'ddp' with a critic, which is not sharded"),
        (
            (loss, model, "fsdp"),
            "must be 'none' or 'ddp' with a segmenter, which is not sharded, or a warm_start_rule, got 'fsdp'",
        ),
        ((loss, None, "none"), "strategy must be 'ddp' or 'fsdp' with 2 processes, got 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            check_parallel(model, *case, several)

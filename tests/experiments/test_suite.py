"""`rltok suite`: missing cells, failures, further seeds, workers, options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rltok_rl.experiments.studies import suite
from rltok_rl.experiments.studies.suite_entries import ESTIMATORS, FIXED, NOT_DEFAULT
from rltok_rl.experiments.studies.suite_options import SuiteOptions, read_suite_options, suite_entries

from ..each import refused
from .suite_cells import TINY, suite_cell


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    monkeypatch.setattr(suite, "EVALUATION_BYTES", 256)


def test_workers_end_with_a_killed_command(tmp_path):
    """Else they would train the cells that are queued, unseen."""
    (tmp_path / "sleepers.py").write_text(
        "import os, time\n"
        "from rltok_rl.experiments.studies.parallel_jobs import run_jobs\n"
        "def sleep(folder):\n"
        "    with open(os.path.join(folder, str(os.getpid())), 'w') as file:\n"
        "        file.write(os.environ['OMP_NUM_THREADS'])\n"
        "    time.sleep(600)\n"
        f"if __name__ == '__main__': run_jobs('test', sleep, [{str(tmp_path)!r}] * 4, total=4, workers=2)\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "8"}  # two times eight threads would slow both down
    arguments = [sys.executable, str(tmp_path / "sleepers.py")]
    command = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, env=environment)
    wait_for(lambda: [path.read_text() for path in tmp_path.glob("[0-9]*")] == ["1", "1"])
    command.kill()
    command.wait()
    workers = [int(path.name) for path in tmp_path.glob("[0-9]*")]
    wait_for(lambda: not any(map(alive, workers)))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may be kept until its new parent asks for its status."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_command_trains_missing_cells_and_reports_those_that_fail(tmp_path, capsys, monkeypatch):
    arguments = [*TINY, "entries=random", f"out={tmp_path}"]
    assert suite.main(arguments) == 0
    files = sorted(tmp_path.glob("cells/*.json"))
    assert len(files) == 2 * 3 and all(file.name.startswith("scratch2-") for file in files)
    before = [file.read_bytes() for file in files]
    cell = json.loads(before[0])
    assert cell["total_flops"] >= 3e8 and cell["looks"][-1]["total_flops"] == cell["total_flops"]
    page = (tmp_path / "suite.md").read_text()
    assert page.strip() in capsys.readouterr().out and f"`rltok suite {' '.join(arguments)}`" in page

    train = suite.train_cell

    def broken(job: suite.CellJob) -> dict[str, Any]:
        if job.cell.task == "delay":
            raise RuntimeError("broken on purpose")
        return train(job)

    monkeypatch.setattr(suite, "train_cell", broken)
    assert suite.main([*arguments, "entries=random,paper"]) == 1
    error = capsys.readouterr().err
    assert "2 of 8 cells to train, 1 at a time" in error and "failed: delay-1 paper seed 0: RuntimeError" in error
    assert "**Missing cells of this command: 1, of which 1 failed.**" in (tmp_path / "suite.md").read_text()
    monkeypatch.setattr(suite, "train_cell", None)
    assert suite.main(arguments) == 0, "nothing is missing"
    assert [file.read_bytes() for file in files] == before


def test_the_two_best_entries_have_more_seeds(tmp_path, capsys, monkeypatch):
    """By interquartile means of the first seeds."""
    shares = {"oracle": 0.9, "uniform": 0.5, "random": 0.4, "paper": 0.7, "ours": 0.8, "batch_mean@0.9": 0.6}
    trained: list[str] = []

    def train(job: suite.CellJob) -> str:
        trained.append(str(job))
        cell = suite_cell(job.cell.task, job.cell.entry, job.cell.seed, shares[job.cell.entry] + 0.01 * job.cell.seed)
        job.file.parent.mkdir(parents=True, exist_ok=True)
        job.file.write_text(json.dumps(cell))
        return ""

    monkeypatch.setattr(suite, "_train", train)
    first = [*TINY[:2], "seeds=2", "workers=1", "entries=random,paper,ours", "estimator=batch_mean", f"out={tmp_path}"]
    assert suite.main(first) == 0 and len(trained) == 2 * 2 * 6
    trained.clear()
    assert suite.main([*first, "best_seeds=4"]) == 0
    further = {tuple(name.split(" seed ")) for name in trained}
    assert further == {
        (f"{task}-1 {e}", seed) for task in ("delay", "switch") for e in ("paper", "ours") for seed in "23"
    }
    page = (tmp_path / "suite.md").read_text()
    assert "and 2 seeds." in page and " cells per core-hour" in page and "missing" not in page
    further = page.partition("## Further seeds")[2]
    assert "IQM, seeds 0 to 1 | seeds 2 to 3 | all |" in further and "`random`" not in further
    # Scores are relative to the mean of the references' first seeds: 0.505 and 0.905.
    assert (
        "| `ours` | 0.750 [0.738, 0.763] | 0.800 [0.788, 0.813] | 0.775 [0.738, 0.813] | 0.775 | 0.74, 0.81 |"
        in further
    )
    assert "`ours` minus `paper`: 0.25 ± 0.00" in further
    saved = json.loads((tmp_path / "suite.json").read_text())
    assert [*saved["further"]] == ["ours", "paper"] and len(saved["cells"]["data"]) == 24 + 8
    assert [saved["summary"][entry]["cells"] for entry in ("ours", "random")] == [4, 4], "equal seeds for all"
    trained.clear()
    assert suite.main([*first, "best_seeds=3", "best=3"]) == 0
    assert trained == [f"{task}-1 batch_mean@0.9 seed 2" for task in ("delay", "switch")]
    next(tmp_path.glob("cells/*delay-1-paper-1*")).unlink()
    monkeypatch.setattr(suite, "_train", None)
    capsys.readouterr()
    assert suite.main([*first, "best_seeds=4"]) == 1
    assert "further seeds wait for missing cells: 1" in capsys.readouterr().err
    monkeypatch.setattr(suite, "_train", train)
    assert suite.main([*first, "best_seeds=4"]) == 0
    trained.clear()
    assert suite.main([*first, "best_seeds=4"]) == 0 and not trained
    assert suite.main([*first, "best_seeds=2"]) == 2
    assert "best_seeds must be 0 or above seeds=2, got 2" in capsys.readouterr().err


def test_two_workers_write_what_one_writes(tmp_path, monkeypatch):
    monkeypatch.undo()  # workers import the module anew

    def train(workers: int) -> list[Any]:
        out = tmp_path / str(workers)
        options = [*TINY, "tasks=delay", "estimator=batch_mean", f"workers={workers}", f"out={out}"]
        assert suite.main(options) == 0
        cells = [json.loads(file.read_text()) for file in sorted(out.glob("cells/*"))]
        return [cell["final"] | {"shares": [look["share"] for look in cell["looks"]]} for cell in cells]

    assert train(1) == train(2)


def test_options_and_their_errors(tmp_path, capsys, monkeypatch):
    (tmp_path / "my_file.py").write_text("from rltok_rl.objectives import ReturnEstimator as Mine\n")
    monkeypatch.chdir(tmp_path)
    options = read_suite_options(["estimator=local_flips,my_file:Mine", "gamma=0.9,0.99"])
    entries = suite_entries(options)
    assert entries[:3] == ["oracle", "uniform", "local_flips@0.9"] and len(entries) == 6
    assert "my_file:Mine@0.99" in entries
    everything = suite_entries(SuiteOptions())
    assert (
        len(everything) == len(FIXED) + len(ESTIMATORS) - len(NOT_DEFAULT) + 1 and everything[-1] == "batch_mean@0.99"
    )
    read = read_suite_options
    chosen = suite.suite_jobs(read([*TINY, "entries=paper", "first_seed=100", "seeds=2"]))
    assert {job.cell.seed for job in chosen} == {job.config.seed for job in chosen} == {100, 101}
    refused(
        (lambda: read(["tasks=toy"]), ValueError, r"tasks must be among .*, got \['toy'\]"),
        (lambda: read(["budget=big"]), ValueError, r"budget must be one of \['small', 'full'\], got 'big'"),
        (lambda: read(["grades=5"]), ValueError, r"grades must be among \[1, 2, 3, 4\], got \[5\]"),
        (lambda: read(["estimator=paper", "gamma=0.8"]), ValueError, r"estimator must be among .*, got 'paper'"),
        (lambda: read(["entries=batch_mean"]), ValueError, "got 'batch_mean'; did you mean 'batch_mean@0.9'"),
        (lambda: read(["gamma=1.5"]), ValueError, r"gamma must lie in \[0, 1\], got '1.5'"),
        (lambda: read(["entries=paper", "gamma=0.5"]), ValueError, r"gamma belongs to estimator, got \[0.5\]"),
        (lambda: read(["seeds=0"]), ValueError, "seeds must be at least 1, got 0"),
        (lambda: read(["flops=0"]), ValueError, "flops must be positive, got 0"),
        (lambda: read(["sedes=1"]), ValueError, "options must be among .*, got 'sedes'; did you mean 'seeds'"),
        (lambda: read(["seeds=x"]), ValueError, "seeds has a value of the wrong type: Value 'x'"),
        (lambda: read(["tasks=dlay"]), ValueError, "did you mean 'delay'"),
        (lambda: read(["estimator=local_flip"]), ValueError, "did you mean 'local_flips'"),
        (lambda: read(["estimator=nope:Nope"]), ImportError, "there is no 'nope'"),
        (lambda: read(["entries=our"]), ValueError, "got 'our'; did you mean 'ours'"),
        *(
            (lambda text=text: read([f"overrides={text}"]), ValueError, f"to the suite.*got '{text.split('=')[0]}'")
            for text in ("estimator.gamma=1", "seed=7", "estimator=x", "loss=ppo", "loss.policy_epochs=3", "ablation=x")
        ),
    )
    assert suite.main(["seeds=0"]) == 2 and "rltok suite: seeds" in capsys.readouterr().err

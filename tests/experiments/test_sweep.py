"""``rltok sweep``: names, order and commands of runs, resuming, failures and mistakes; the suite tests its engine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from rltok_rl.experiments import sweep
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.run_config import TrainConfig

from ..each import refused

GRID = ["experiment=recall", "estimator=discounted_return", "estimator.gamma=0.9,0.99", "seeds=2", "workers=1"]


@pytest.fixture
def trained(monkeypatch) -> list[tuple[TrainConfig, str]]:
    """Replace training and the comparison; return the configurations and commands of all runs."""
    runs: list[tuple[TrainConfig, str]] = []

    def run(config: TrainConfig, command: str) -> dict[str, Any]:
        print("a line of the run")
        runs.append((config, command))
        if config.estimator.gamma == 0.99 and config.seed == 1 and len(runs) < 5:
            raise RuntimeError("broken on purpose")
        folder = Path(config.out)
        folder.mkdir(parents=True)
        OmegaConf.save(OmegaConf.structured(config), folder / "config.yaml")
        (folder / "summary.json").write_text(json.dumps({}))
        return {"held_out_bits_per_byte": 2.5}

    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # as in a new process
    monkeypatch.setattr(sweep, "run", run)
    monkeypatch.setattr(sweep, "write_comparison", lambda folders, out: [folder.name for folder in folders])
    return runs


def test_runs_are_trained_seed_by_seed_and_missing_ones_again(tmp_path, trained, capsys):
    arguments = [*GRID, f"out={tmp_path}"]
    assert sweep.main(arguments) == 1
    names = ["0.9-seed-0", "0.99-seed-0", "0.9-seed-1", "0.99-seed-1"]
    assert [Path(config.out).name for config, _ in trained] == names
    config, command = trained[1]
    assert (config.estimator.gamma, config.seed, config.compute.threads, config.resume) == (0.99, 0, 1, True)
    assert command.startswith("rltok train ") and command.endswith(f"estimator.gamma=0.99 seed=0 out={config.out}")
    out, error = capsys.readouterr()
    assert out == f"{sorted(names[:3])}\n" and "4 of 4 runs to train, 1 at a time" in error
    assert "0.9-seed-0: 2.500 bits per byte" in error
    assert "failed: 0.99-seed-1: RuntimeError: broken on purpose" in error
    assert sweep.main(arguments) == 0 and [config.out for config, _ in trained[4:]] == [str(tmp_path / names[3])]
    assert sweep.main([*arguments, "optim.lr=1e-3"]) == 2 and "another configuration" in capsys.readouterr().err


def test_a_stopped_run_ends_the_sweep(trained, tmp_path, monkeypatch):
    def run(config: TrainConfig, command: str) -> dict[str, Any]:
        trained.append((config, command))
        return {"updates": 4, "bytes": 1, "stopped": 2}

    monkeypatch.setattr(sweep, "run", run)
    with pytest.raises(SystemExit) as ended:
        sweep.main([*GRID, f"out={tmp_path}"])
    assert ended.value.code == 130 and len(trained) == 1


def test_no_queued_job_begins_after_one_was_stopped(tmp_path):
    """Workers have jobs in advance, which the pool cannot take back."""
    (tmp_path / "stopped.py").write_text(
        "import os\n"
        "from rltok_rl.experiments.studies.parallel_jobs import run_jobs\n"
        "def work(job):\n"
        "    open(os.path.join(os.environ['BEGUN'], str(job)), 'x').close()\n"
        "    raise SystemExit(130)\n"
        "if __name__ == '__main__': run_jobs('test', work, range(8), total=8, workers=2)\n"
    )
    begun = tmp_path / "begun"
    begun.mkdir()
    done = subprocess.run([sys.executable, tmp_path / "stopped.py"], env=os.environ | {"BEGUN": str(begun)})
    assert done.returncode == 130 and 1 <= len([*begun.iterdir()]) <= 2, "a job per worker at most"


def test_mistakes_are_named_before_anything_is_trained(trained, tmp_path):
    read = sweep.read_sweep
    refused(
        (lambda: read(["seeds=2"]), ValueError, "a sweep needs options of its runs"),
        (lambda: read(["seeds=0"]), ValueError, "seeds must be at least 1, got 0"),
        (lambda: read(["experiment=recall", "seed=0,1"]), ValueError, "seed must be left out"),
        (lambda: read(["experiment=recall", "sedes=2"]), ValueError, "sedes"),
        (lambda: read(["experiment=recall", "estimator.gamma=0.9,2"]), ValueError, "gamma"),
        (
            lambda: read(["experiment=books", "data.source=x/y,x_y"]),
            ValueError,
            "must differ in letters.* got runs x_y-seed-0 with data.source=x/y and data.source=x_y$",
        ),
        (lambda: read(["experiment=compare", f"data.source={__file__}"]), ValueError, "a sweep trains single runs"),
    )
    assert sweep.main(["seeds=0"]) == 2 and not trained
    assert [job.config.out for job in read(["experiment=recall", "out=x"])[1]] == ["x/seed-0"]


def test_any_name_is_a_folder_of_runs_and_their_commands(trained):
    wrong = []
    for out in ("a,b", "a=b", "a (1)", "it's", "über/a b"):
        _, (job,) = sweep.read_sweep(["experiment=recall", f"out={out}"])
        again = compose_config(shlex.split(job.command)[2:])
        if (job.config.out, again.out) != (f"{out}/seed-0", f"{out}/seed-0"):
            wrong.append((out, job.config.out, again.out))
    assert wrong == []

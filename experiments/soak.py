"""Kill a training without warning, again and again, and compare what it comes to with one that was left alone.

    python -m rltok_rl.experiments.soak --kills 100

Each kill is a SIGKILL at a random moment: while modules load, while an update runs, while a checkpoint is written. The
figures of every update have to be those of the undisturbed run, to the last bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OPTIONS = [
    "optim.warm_up_bytes=0",
    "data.num_rows=4",
    "data.num_steps=32",
    "data.source=python-docs",
    "checkpoint_every=3",
    "snapshots.count=2",
    "snapshots.batches=1",
    "compute.threads=1",
    "resume=true",
]
_BYTES = 4 * 32  # of an update


def start(folder: Path, updates: int) -> subprocess.Popen:
    """A small training in a process of its own.

    Args:
        folder: of the run.
        updates: in all.
    """
    options = [*OPTIONS, f"optim.total_bytes={updates * _BYTES}", f"out={folder}"]
    command = [sys.executable, "-m", "rltok_rl.experiments.train", *options]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def kill_often(folder: Path, *, kills: int, updates: int, dice: random.Random, say: bool = False) -> int:
    """Train, killed ``kills`` times; returns how many of the kills hit a training that was under way.

    Args:
        folder: of the run.
        kills: how often.
        updates: of the run.
        dice: for the moments.
        say: print each kill.
    """
    hits = 0
    table = folder / "metrics.csv"
    for number in range(kills):
        with start(folder, updates) as process:
            seen = table.stat().st_mtime_ns if table.exists() else 0
            # Half the kills come anywhere, the others soon after the first update, where files are written.
            if dice.random() < 0.5:
                time.sleep(8 * dice.random())
            else:
                while process.poll() is None and (table.stat().st_mtime_ns if table.exists() else 0) == seen:
                    time.sleep(0.01)
                time.sleep(0.5 * dice.random())
            hits += process.poll() is None
            process.send_signal(signal.SIGKILL)
        if say:
            lines = len(table.read_text().splitlines()) - 1 if table.exists() else 0
            print(f"  kill {number + 1} of {kills}, {lines} of {updates} updates written", flush=True)
    with start(folder, updates) as process:
        if process.wait():
            said = (folder.parent / f"{folder.name}.log").read_text()[-2000:]
            raise RuntimeError(f"the training could not go on: {said}")
    return hits


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 if the figures are the same."""
    parser = argparse.ArgumentParser(prog="python -m rltok_rl.experiments.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.kills < 1 or options.updates < 1:
        parser.error(f"--kills and --updates must be at least 1, got {options.kills} and {options.updates}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        root, dice = Path(folder), random.Random(options.seed)
        hits = kill_often(root / "killed", kills=options.kills, updates=options.updates, dice=dice, say=True)
        with start(root / "whole", options.updates) as process:
            process.wait()
        same = (root / "killed" / "metrics.csv").read_bytes() == (root / "whole" / "metrics.csv").read_bytes()
    verdict = "equal to the last bit" if same else "NOT equal"
    print(f"{options.kills} kills, {hits} of a training under way: figures are {verdict}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

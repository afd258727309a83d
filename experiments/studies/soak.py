"""Kill a run without warning, again and again, and compare its metrics with those of an undisturbed run.

    python -m rltok_rl.experiments.studies.soak --kills 100

Each kill is a SIGKILL at a random moment: while modules load, during an update, while a checkpoint is written. The
metrics of every update have to be equal to the last bit.
"""

from __future__ import annotations

import argparse
import math
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
_BYTES = 4 * 32  # per update


def start(folder: Path, updates: int) -> subprocess.Popen:
    """Start a small run of ``updates`` updates in a process."""
    options = [*OPTIONS, f"optim.total_bytes={updates * _BYTES}", f"out={folder}"]
    command = [sys.executable, "-m", "rltok_rl.experiments.train", *options]
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def kill_often(folder: Path, *, kills: int, updates: int, dice: random.Random, verbose: bool = False) -> int:
    """Train with ``kills`` kills; return how many hit an unfinished run, which should be all.

    Kills follow the progress of the run instead of the clock: each comes after its share of the ``updates`` (at least
    4 per kill) at the latest, so that updates are left for all later ones on a machine of any speed.
    """
    if kills < 1 or updates < 4 * kills:
        raise ValueError(f"kills must be at least 1 and updates at least 4 per kill, got {kills} and {updates}")
    hits, share, table = 0, updates // (kills + 1), folder / "metrics.csv"
    loading = 4.0  # seconds until the first update; a guess until the first measurement
    for number in range(kills):
        last = share * (number + 1)
        with start(folder, updates) as process:
            began, before = time.monotonic(), _modified(table)
            # Half of the kills come at any time, the others during updates, when files are written.
            anywhere, goal = dice.random() < 0.5, last
            end = began + 1.5 * loading * dice.random() if anywhere else math.inf
            updating = False
            while process.poll() is None and time.monotonic() < end and _updates(table) < goal:
                if not updating and _modified(table) != before:  # resuming has cut the table, or an update was written
                    updating, loading = True, time.monotonic() - began
                    if not anywhere:
                        goal = min(last, _updates(table) + dice.randint(1, share))
                time.sleep(0.01 * dice.random())
            hits += process.poll() is None and _updates(table) < updates
            process.send_signal(signal.SIGKILL)
        if verbose:
            print(f"  kill {number + 1} of {kills}, {_updates(table)} of {updates} updates written", flush=True)
    with start(folder, updates) as process:
        if process.wait():
            log = (folder.parent / f"{folder.name}.log").read_text()[-2000:]
            raise RuntimeError(f"the run must resume, got exit code {process.returncode}: {log}")
    return hits


def _modified(table: Path) -> int:
    """When a table was last written; 0 if there is none."""
    return table.stat().st_mtime_ns if table.exists() else 0


def _updates(table: Path) -> int:
    """Updates in a table, which may be written at this moment."""
    return max(0, table.read_bytes().count(b"\n") - 1) if table.exists() else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the test; return 0 if all kills hit an unfinished run and the metrics are equal."""
    parser = argparse.ArgumentParser(prog="python -m rltok_rl.experiments.studies.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--updates", type=int, help="of the run (default: 12 per kill)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    updates = 12 * options.kills if options.updates is None else options.updates
    if options.kills < 1 or updates < 4 * options.kills:
        parser.error(f"--kills must be at least 1 and --updates 4 per kill, got {options.kills} and {updates}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        root, dice = Path(folder), random.Random(options.seed)
        hits = kill_often(root / "killed", kills=options.kills, updates=updates, dice=dice, verbose=True)
        with start(root / "whole", updates) as process:
            process.wait()
        equal = (root / "killed" / "metrics.csv").read_bytes() == (root / "whole" / "metrics.csv").read_bytes()
    verdict = "equal to the last bit" if equal else "NOT equal"
    print(f"{options.kills} kills, {hits} of an unfinished run of {updates} updates: metrics are {verdict}")
    return 0 if equal and hits == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())

"""Kill a training without warning, again and again, and compare what it comes to with one that was left alone.

    python -m rltok_rl.experiments.studies.soak --kills 100

Each kill is a SIGKILL at a random moment: while modules load, while an update runs, while a checkpoint is written. The
figures of every update have to be those of the undisturbed run, to the last bit.
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
    """Train, killed ``kills`` times; returns how many of the kills hit a training under way, which should be all.

    Moments are told by what the training has done, not by the clock alone: a kill comes when its share of the updates
    has been made at the latest, so that some are left for all later ones on a machine of any speed.

    Args:
        folder: of the run.
        kills: how often.
        updates: of the run, at least 4 per kill.
        dice: for the moments.
        say: print each kill.
    """
    if kills < 1 or updates < 4 * kills:
        raise ValueError(f"kills must be at least 1 and updates at least 4 per kill, got {kills} and {updates}")
    hits, share, table = 0, updates // (kills + 1), folder / "metrics.csv"
    loading = 4.0  # seconds until the first update; a guess, until it was seen
    for number in range(kills):
        last = share * (number + 1)
        with start(folder, updates) as process:
            began, before = time.monotonic(), _stamp(table)
            # Half the kills come at any time, the others once there are updates, where files are written.
            anywhere, goal = dice.random() < 0.5, last
            end = began + 1.5 * loading * dice.random() if anywhere else math.inf
            seen = False
            while process.poll() is None and time.monotonic() < end and _lines(table) < goal:
                if not seen and _stamp(table) != before:  # resuming has cut the table back, or there is an update
                    seen, loading = True, time.monotonic() - began
                    if not anywhere:
                        goal = min(last, _lines(table) + dice.randint(1, share))
                time.sleep(0.01 * dice.random())
            hits += process.poll() is None and _lines(table) < updates
            process.send_signal(signal.SIGKILL)
        if say:
            print(f"  kill {number + 1} of {kills}, {_lines(table)} of {updates} updates written", flush=True)
    with start(folder, updates) as process:
        if process.wait():
            said = (folder.parent / f"{folder.name}.log").read_text()[-2000:]
            raise RuntimeError(f"the training could not go on: {said}")
    return hits


def _stamp(table: Path) -> int:
    """When a table was written to; 0 where there is none."""
    try:
        return table.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _lines(table: Path) -> int:
    """Updates that a table has; it may be written at this moment."""
    try:
        return max(0, table.read_bytes().count(b"\n") - 1)
    except FileNotFoundError:
        return 0


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 if all kills hit and the figures are the same."""
    parser = argparse.ArgumentParser(prog="python -m rltok_rl.experiments.studies.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--updates", type=int, default=None, help="of the training (default: 12 per kill)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    updates = 12 * options.kills if options.updates is None else options.updates
    if options.kills < 1 or updates < 4 * options.kills:
        parser.error(f"--kills must be at least 1 and --updates 4 per kill, got {options.kills} and {updates}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        root, dice = Path(folder), random.Random(options.seed)
        hits = kill_often(root / "killed", kills=options.kills, updates=updates, dice=dice, say=True)
        with start(root / "whole", updates) as process:
            process.wait()
        same = (root / "killed" / "metrics.csv").read_bytes() == (root / "whole" / "metrics.csv").read_bytes()
    verdict = "equal to the last bit" if same else "NOT equal"
    print(f"{options.kills} kills, {hits} of a training of {updates} updates under way: figures are {verdict}")
    return 0 if same and hits == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())

"""A command of ``rltok`` as a tutorial shows it, with four small updates where it trains, and without a page per run.

``python -m tests.brief train --multirun ...``: the rest of the line is read, checked and done as it stands there.
"""

from __future__ import annotations

import sys

BRIEF = {
    "optim.total_bytes": 512,
    "optim.warm_up_bytes": 0,
    "data.num_rows": 8,
    "data.num_steps": 16,
    "snapshots.count": 1,
    "snapshots.batches": 1,
    "snapshots.num_bytes": 64,
    "compute.threads": 1,
}
"""What is replaced of a training."""


def shortened(arguments: list[str]) -> list[str]:
    """The same command with :data:`BRIEF` instead of what it says of these options.

    Args:
        arguments: behind ``rltok``.
    """
    if arguments[0] != "train":
        return arguments
    kept = [one for one in arguments if one.partition("=")[0] not in BRIEF]
    return [*kept, *(f"{name}={value}" for name, value in BRIEF.items())]


if __name__ == "__main__":
    from rltok_rl.experiments import cli, train

    train.write_report = lambda out: out / "report.md"  # drawn by `rltok report`, at a price of its own
    sys.exit(cli.main(shortened(sys.argv[1:])))

"""A command of ``rltok`` as a tutorial shows it, with four small updates where it trains, and few pages drawn.

``python -m tests.brief train --multirun ...``: the rest of the line is read and checked as it stands there.
"""

from __future__ import annotations

import sys
from typing import Any

BRIEF = {
    "optim": {"total_bytes": 512, "warm_up_bytes": 0},
    "data": {"num_rows": 8, "num_steps": 16},
    "snapshots": {"count": 1, "batches": 1, "num_bytes": 64},
    "compute": {"threads": 1},
    "compare": {"apart": False, "windows": 8},  # no processes below this one
}
"""Options that replace those of a run or a comparison."""


def shorten(config: Any) -> None:
    """Shorten a run, after its options were checked."""
    from rltok_rl.experiments.runs.build import loop_options

    loop_options(config)
    for group, options in BRIEF.items():
        for name, value in options.items():
            setattr(getattr(config, group), name, value)


if __name__ == "__main__":
    from rltok_rl.experiments import cli, train
    from rltok_rl.experiments.commands import report
    from rltok_rl.experiments.compare import train_systems

    def brief(whole: Any) -> Any:
        """Shorten what is run."""

        def run(config: Any, *arguments: Any) -> Any:
            shorten(config)
            return whole(config, *arguments)

        return run

    for module in (train, train_systems):
        module.run = brief(module.run)
        module.write_report = lambda out: out / "report.md"  # drawn by `rltok report`, at a price of its own
    if "--out" in sys.argv:  # a comparison of several runs, of which it would draw the pages too
        report.write_report = lambda folder, **_: folder / "report.md"
    sys.exit(cli.main())

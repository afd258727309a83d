"""Write the page of all committed results; equal results make equal pages.

    rltok leaderboard --results experiments/results --out docs/leaderboard.md
    rltok leaderboard add runs/mine/*-seed-*

It lists every finished run below the folder of results with those that it can be compared with: equal held-out text
and budget. A test compares the page with the results. ``add`` first checks runs and copies them there without weights:
five or more seeds of one configuration, finished, of one commit without changes, with the total FLOPs of their budget
and a rate within 5 % of the target, comparable with a table of the page.
"""

from __future__ import annotations

import argparse
import sys

from rltok_rl.experiments.commands.parsers import Parser, command
from rltok_rl.experiments.reports.leaderboard import page
from rltok_rl.experiments.reports.leaderboard_entry import add_runs

from rltok_rl.data.disk import replace_text


@command("leaderboard", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> int:
    """Command line."""
    try:
        if not options.results.is_dir():
            raise FileNotFoundError(f"--results must be a folder of results, got {str(options.results)!r}")
        if (options.action is None) != (not options.runs):
            parser.error("argument RUN: add takes the folders of runs: rltok leaderboard add RUN ...")
        for folder in add_runs(options.runs, options.results, new_table=options.new_table) if options.runs else ():
            print(folder)
        text = page(options.results, options.out.parent)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(options.out, text)
    except (OSError, ValueError) as error:
        print(f"rltok leaderboard: {error}", file=sys.stderr)
        return 2
    print(options.out)
    return 0

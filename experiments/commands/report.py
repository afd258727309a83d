"""Write the report of a run from its folder, or a comparison of several.

    rltok report runs/mine
    rltok report runs/paper runs/group_mean --out runs/comparison
    rltok report runs/gamma-grid
    rltok report runs/mine --also pdf
    rltok report runs/compare-seeds --earlier results/compare-seeds.json

Pages and figures are rewritten each time, also for unfinished runs. With ``--out``, finished runs keep their pages.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rltok_rl.experiments.commands.parsers import Parser, command
from rltok_rl.experiments.reports.comparison import runs_below, write_comparison
from rltok_rl.experiments.reports.learning_rates_page import has_learning_rates, write_learning_rates_page
from rltok_rl.experiments.reports.run_report import has_page, write_report
from rltok_rl.experiments.reports.seeds_page import comparisons, write_seeds_page
from rltok_rl.experiments.reports.systems_page import is_comparison, write_page

from rltok_rl.utils import printable


def _say(page: Path | None) -> None:
    if page is not None:
        print(printable(str(page)), flush=True)


def kind_of(folder: Path) -> str:
    """Return what a folder has: ``"systems"``, ``"learning rates"``, comparisons by ``"seeds"``, or ``"other"``."""
    if not folder.is_dir():
        return "other"
    if is_comparison(folder):
        return "systems"
    if has_learning_rates(folder):
        return "learning rates"
    return "seeds" if comparisons(folder) else "other"


@command("report", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> int:
    """Command line."""
    formats = ("png", *dict.fromkeys(options.also))
    if options.each and options.out is None:
        parser.error("argument --each: belongs to a comparison; give it with several runs and --out")
    if (len(options.runs) > 1) != (options.out is not None):
        parser.error("argument --out: names the folder of a comparison; give it with several runs, and only then")
    if options.out is not None and (options.out / "config.yaml").exists():
        parser.error(f"argument --out: must be a folder without a run, whose page it would replace, got {options.out}")
    try:
        for folder in options.runs:
            kind = kind_of(folder)
            if options.earlier is not None and (len(options.runs) > 1 or kind != "seeds"):
                parser.error("argument --earlier: belongs to one folder that has a comparison for each seed")
            if kind == "systems":
                _say(write_page(folder, formats=formats))
            elif kind == "learning rates":
                _say(write_learning_rates_page(folder, formats=formats))
            elif kind == "seeds":
                _say(write_seeds_page(folder, formats=formats, earlier=options.earlier))
            elif folder.is_dir() and (runs := runs_below(folder)):
                _say(write_comparison(runs, folder, formats=formats, each=options.each))
            elif options.out is None or options.also or not has_page(folder):
                _say(write_report(folder, formats=formats))
        if options.out is not None:
            _say(write_comparison(options.runs, options.out, formats=formats, each=options.each))
    except (OSError, ValueError) as error:
        print(f"rltok report: {printable(str(error))}", file=sys.stderr)
        return 2
    return 0

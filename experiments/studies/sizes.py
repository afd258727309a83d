r"""Differences from evenly spaced boundaries against total FLOPs, from the pages of comparisons of different sizes.

    python -m rltok_rl.experiments.studies.sizes systems=[ours,unscaled,spacebyte,paper] \
        'pages=[experiments/results/compare-main,experiments/results/compare-width-128]'

A page is the folder of a ``compare-seeds.json``. All pages must have the same held-out text and target rate.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import pandas as pd
from rltok_rl.experiments.reports.earlier_seeds import read_earlier
from rltok_rl.experiments.reports.markdown import bullets, markdown, with_unit
from rltok_rl.experiments.reports.paired import Difference, interval, paired_over_seeds
from rltok_rl.experiments.reports.seed_table import OFF, SeedTable
from rltok_rl.experiments.reports.seeds_page import TABLE
from rltok_rl.experiments.reports.table import equal_budgets
from rltok_rl.experiments.studies.common import command_line, read_options

from rltok_rl.data.disk import replace_text
from rltok_rl.viz.size_figure import SizedDifference, draw_sizes

REFERENCE = "uniform"
PAGE, FIGURE = "sizes.md", "sizes.png"


@dataclass
class Options:
    """Options of the command."""

    pages: list[str] = field(default_factory=list)
    """Folders of at least two comparisons, each with evenly spaced boundaries."""
    systems: list[str] = field(default_factory=lambda: ["ours", "unscaled", "spacebyte", "paper"])
    """Systems to show, where a page has them."""
    out: str = "runs/sizes"
    """Folder of page, figure and JSON."""


@dataclass(frozen=True)
class Size:
    """A comparison, and its total FLOPs, which are those of all systems within 2 %."""

    page: str
    flops: float
    table: SeedTable

    def rows(self, system: str) -> pd.DataFrame:
        """Return a system's rows, one per seed; empty without the system."""
        return self.table.rows[self.table.rows["system"] == system]

    def differences(self, system: str) -> dict[int, float]:
        """Return bits per byte of a system minus evenly spaced boundaries, by seed; {} without the system."""
        losses = self.table.losses
        return (losses[system] - losses[REFERENCE]).dropna().to_dict() if system in losses else {}

    def seeds_off_target(self, system: str) -> set[int]:
        """Return the seeds in which the system, or evenly spaced boundaries, are off their target rate."""
        compared = self.table.off_target & self.table.rows["system"].isin((system, REFERENCE))
        return set(self.table.rows.loc[compared, "seed"])


def read_size(folder: str) -> Size:
    """Read the page of a comparison."""
    table = SeedTable(read_earlier(Path(folder) / TABLE))
    if table.reference != REFERENCE:
        raise ValueError(f"pages must have {REFERENCE!r}, evenly spaced boundaries; {folder} has {table.systems}")
    if not equal_budgets(table.total_flops):
        raise ValueError(f"pages must have equal total FLOPs in all systems; those of {folder} differ by over 2 %")
    return Size(folder, sum(table.total_flops) / len(table.total_flops), table)


def read_sizes(options: Options) -> list[Size]:
    """Read all pages, in the order of their FLOPs."""
    if len(set(options.pages)) < 2:
        raise ValueError(f"pages must be at least two different folders, got {list(options.pages)}")
    sizes = sorted(map(read_size, options.pages), key=lambda size: size.flops)
    for smaller, larger in pairwise(sizes):
        for name, what in (("counts", "held-out text"), ("target_rate", "target rate")):
            if smaller.rows(REFERENCE)[name].iloc[0] != larger.rows(REFERENCE)[name].iloc[0]:
                raise ValueError(f"pages must have the same {what}; {smaller.page} and {larger.page} differ")
        if equal_budgets((smaller.flops, larger.flops)):
            raise ValueError(f"pages must differ by over 2 % in total FLOPs; {smaller.page} and {larger.page} do not")
    known = sorted({name for size in sizes for name in size.table.systems} - {REFERENCE})
    if not options.systems or len(set(options.systems)) < len(options.systems) or set(options.systems) - set(known):
        raise ValueError(f"systems must be some of {known}, each once, got {list(options.systems)}")
    return sizes


def growth(sizes: Sequence[Size], system: str) -> tuple[Difference | None, str]:
    """Return the change of a difference for ten times the FLOPs, paired over seeds, and between which sizes.

    It is taken between the smallest and the largest size with the system; None for fewer than two.
    """
    having = [size for size in sizes if size.differences(system)]
    if len(having) < 2:
        return None, "-"
    smallest, largest = having[0], having[-1]
    decades = math.log10(largest.flops / smallest.flops)
    slopes = [
        {seed: value / decades for seed, value in size.differences(system).items()} for size in (largest, smallest)
    ]
    between = f"{with_unit(smallest.flops, 'FLOPs')} to {with_unit(largest.flops, 'FLOPs')}"
    change = paired_over_seeds(*slopes)
    return change, between if change is None else f"{between}, {change.pairs} seeds"


def write_page(options: Options, command: str) -> Path:
    """Write page, figure and JSON; return the page."""
    sizes = read_sizes(options)
    points: list[SizedDifference] = []
    rows, content = [], []
    for system in options.systems:
        for size in (size for size in sizes if size.differences(system)):
            by_seed, first = size.differences(system), size.rows(system).iloc[0]
            difference = paired_over_seeds(by_seed, dict.fromkeys(by_seed, 0.0))
            assert difference is not None
            width, off = difference.half_width, size.seeds_off_target(system)
            points.append(SizedDifference(system, size.flops, list(by_seed.values()), difference.mean, width))
            seeds = ", ".join(f"{value:+.3f}{f' {OFF}' if seed in off else ''}" for seed, value in by_seed.items())
            name = f"{system}{' *' if first['oracle'] else ''}"
            scale = (f"{first['parameters']:,}", with_unit(size.flops, "FLOPs"))
            rows.append([name, *scale, interval(difference), seeds])
            content.append({"system": system, "flops": size.flops, "page": size.page, "by_seed": by_seed})
    changes = []
    for system in options.systems:
        change, between = growth(sizes, system)
        changes.append([system, interval(change), between])
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    draw_sizes(points, out / FIGURE, reference="evenly spaced boundaries")
    page = [
        "# Differences from evenly spaced boundaries, by size",
        f"    {command}",
        markdown(["system", "parameters", "total FLOPs", "minus evenly spaced", "each seed"], rows),
        "Change of these differences for ten times the FLOPs, between the smallest and the largest size alone, over "
        "the seeds of both. Negative: a system gains on evenly spaced boundaries.",
        markdown(["system", "change", "sizes"], changes),
        bullets(
            [
                "Bits per byte on the same held-out text; negative is better. Differences are paired over seeds, with "
                "95 % intervals by Student's t.",
                f"{OFF} The rate of the system, or that of evenly spaced boundaries, is more than 2 % off its target.",
                "An asterisk marks an oracle, which looks at later bytes when it draws boundaries.",
                f"Pages: {', '.join(size.page for size in sizes)}.",
            ]
        ),
        f"![Bits per byte minus evenly spaced boundaries against total FLOPs]({FIGURE})",
        "Dots are seeds, lines means, bars their 95 % intervals, which leave the picture if they are much wider than "
        "the seeds are spread.",
    ]
    replace_text(out / "sizes.json", json.dumps({"options": asdict(options), "differences": content}) + "\n")
    replace_text(out / PAGE, "\n\n".join(page) + "\n")
    return out / PAGE


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and print its path."""
    arguments = sys.argv[1:] if arguments is None else arguments
    print(write_page(read_options(Options, arguments), command_line("sizes", arguments)))


if __name__ == "__main__":
    main()

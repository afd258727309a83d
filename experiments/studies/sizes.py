r"""Leads over evenly spaced boundaries against total FLOPs, from the pages of comparisons of different sizes.

    python -m rltok_rl.experiments.studies.sizes systems=[ours,spacebyte,paper] \
        'pages=[experiments/results/compare-main,experiments/results/compare-width-128]'

A page is the folder of a ``compare-seeds.json``. All pages must have the same held-out text.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from rltok_rl.experiments.reports.earlier_seeds import read_earlier
from rltok_rl.experiments.reports.markdown import bullets, markdown, with_unit
from rltok_rl.experiments.reports.paired import Difference, interval, paired_over_seeds
from rltok_rl.experiments.reports.seed_table import OFF, SeedTable
from rltok_rl.experiments.reports.seeds_page import TABLE
from rltok_rl.experiments.studies.common import command_line, read_options

from rltok_rl.data.disk import replace_text
from rltok_rl.viz.size_figure import SizedLead, draw_leads

REFERENCE = "uniform"


@dataclass
class Options:
    """Options of the command."""

    pages: list[str] = field(default_factory=list)
    """Folders of at least two comparisons, each with evenly spaced boundaries."""
    systems: list[str] = field(default_factory=lambda: ["ours", "spacebyte", "paper"])
    """Systems to show, where a page has them."""
    out: str = "runs/sizes"
    """Folder of page, figure and JSON."""


@dataclass(frozen=True)
class Size:
    """A comparison: its parameters, total FLOPs, and losses by seed."""

    page: str
    parameters: int
    flops: float
    table: SeedTable

    def lead(self, system: str) -> dict[int, float]:
        """Return bits per byte of a system minus evenly spaced boundaries, by seed; {} without the system."""
        losses = self.table.losses
        if system not in losses:
            return {}
        return (losses[system] - losses[REFERENCE]).dropna().to_dict()


def read_size(folder: str) -> Size:
    """Read the page of a comparison."""
    table = SeedTable(read_earlier(Path(folder) / TABLE))
    if table.reference != REFERENCE:
        raise ValueError(f"pages must have {REFERENCE!r}, evenly spaced boundaries; {folder} has {table.systems}")
    rows = table.rows[table.rows["system"] == REFERENCE]
    return Size(folder, int(rows["parameters"].iloc[0]), float(rows["flops"].astype(float).mean()), table)


def read_sizes(options: Options) -> list[Size]:
    """Read all pages, in the order of their FLOPs."""
    if len(set(options.pages)) < 2:
        raise ValueError(f"pages must be at least two different folders, got {list(options.pages)}")
    sizes = sorted(map(read_size, options.pages), key=lambda size: size.flops)
    for smaller, larger in pairwise(sizes):
        if smaller.table.rows["counts"].iloc[0] != larger.table.rows["counts"].iloc[0]:
            raise ValueError(f"pages must have the same held-out text; {smaller.page} and {larger.page} differ")
        if smaller.flops == larger.flops:
            raise ValueError(f"pages must differ in total FLOPs; {smaller.page} and {larger.page} do not")
    if unknown := [name for name in options.systems if not any(size.lead(name) for size in sizes)]:
        known = sorted({name for size in sizes for name in size.table.systems} - {REFERENCE})
        raise ValueError(f"systems must be among {known}, got {unknown[0]!r}")
    return sizes


def growth(sizes: Sequence[Size], system: str) -> tuple[Difference | None, str]:
    """Return what a lead grows by for ten times the FLOPs, paired over seeds, and between which pages.

    It is the difference of the smallest and the largest size that have the system; None for fewer than two.
    """
    having = [size for size in sizes if size.lead(system)]
    if len(having) < 2:
        return None, "-"
    first, last = having[0], having[-1]
    decades = math.log10(last.flops / first.flops)
    slopes = [{seed: lead / decades for seed, lead in size.lead(system).items()} for size in (last, first)]
    return paired_over_seeds(*slopes), f"{with_unit(first.flops, 'FLOPs')} to {with_unit(last.flops, 'FLOPs')}"


def write_page(options: Options, command: str) -> Path:
    """Write page, figure and JSON; return the page."""
    sizes, leads = read_sizes(options), []
    rows, content = [], []
    for system in options.systems:
        for size in sizes:
            by_seed = size.lead(system)
            difference = paired_over_seeds(by_seed, dict.fromkeys(by_seed, 0.0))
            if difference is None:
                continue
            off = size.table.rows.loc[size.table.off_target & (size.table.rows["system"] == system), "seed"].tolist()
            leads.append(SizedLead(system, size.flops, list(by_seed.values()), difference.mean, difference.half_width))
            seeds = ", ".join(f"{lead:+.3f}{f' {OFF}' if seed in off else ''}" for seed, lead in by_seed.items())
            scale = (f"{size.parameters:,}", with_unit(size.flops, "FLOPs"))
            rows.append([system, *scale, interval(difference), seeds])
            content.append({"system": system, "parameters": size.parameters, "flops": size.flops, "by_seed": by_seed})
    growths = [[system, *growth(sizes, system)] for system in options.systems]
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    draw_leads(leads, out / "sizes.png", reference="evenly spaced boundaries")
    page = [
        "# Leads over evenly spaced boundaries, by size",
        f"    {command}",
        markdown(["system", "parameters", "total FLOPs", "minus evenly spaced", "each seed"], rows),
        "What a lead changes by for ten times the FLOPs, from the smallest to the largest size, over shared seeds:",
        markdown(["system", "change", "sizes"], [[system, interval(change), of] for system, change, of in growths]),
        bullets(
            [
                "Bits per byte on the same held-out text; negative is better. Differences are paired over seeds, with "
                "95 % intervals by Student's t.",
                f"{OFF} The rate of the seed is more than 2 % off its target.",
                f"Pages: {', '.join(size.page for size in sizes)}.",
            ]
        ),
        "![Bits per byte minus evenly spaced boundaries against total FLOPs](sizes.png)",
        "Dots are seeds, lines means, bands their 95 % intervals.",
    ]
    replace_text(out / "sizes.json", json.dumps({"options": asdict(options), "leads": content}) + "\n")
    replace_text(out / "sizes.md", "\n\n".join(page) + "\n")
    return out / "sizes.md"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and print its path."""
    arguments = sys.argv[1:] if arguments is None else arguments
    print(write_page(read_options(Options, arguments), command_line("sizes", arguments)))


if __name__ == "__main__":
    main()

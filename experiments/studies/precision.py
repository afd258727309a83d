"""Whether training in bfloat16 ends where training in float32 does.

    python -m rltok_rl.experiments.studies.precision source=books out=experiments/results/precision

A small model is trained on one text, with the same seeds, in three variants: float32, bfloat16, and float32 with a
learning rate that differs in its eighth digit. The third is a yardstick: boundaries are drawn, so runs diverge after
any rounding, and that alone is no fault of bfloat16. The distance between seeds is the second yardstick. All variants
of a seed read the same windows at every update, so losses are compared update by update. Rates and gradients depend on
the boundaries, and are compared on average.

Every run is one of ``rltok train`` with a folder in ``runs``: the same command resumes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from omegaconf import MISSING
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.runs.folder import RunFolder, read_run
from rltok_rl.experiments.studies.common import check_minimums, command_line, read_options

from rltok_rl.training.environment import machine
from rltok_rl.viz.style import ALERT, INK, OURS, PALE, plain_figures, save_figure

LR = 4e-3
VARIANTS: dict[str, tuple[str, ...]] = {
    "float32": (f"optim.lr={LR}",),
    "bfloat16": (f"optim.lr={LR}", "compute.precision=bfloat16"),
    "nudged": (f"optim.lr={LR * (1 + 1e-7)!r}",),
}
"""Overrides of the three variants."""
MODEL = (
    "model=tiny",
    "model.overrides.num_token_layers=2",
    "model.overrides.attention_cap=50.0",  # as in the paper's sizes: scores are capped in bfloat16 as well
    "estimator=discounted_return",
    "baseline=batch_mean",
)
"""A model that a processor without bfloat16 products trains in minutes, and the paper's estimator."""
ROWS, STEPS = 8, 256
TRAINED = ("bits_per_byte", "early_bits_per_byte", "rate", "entropy", "advantage_spread", "grad_norm")
"""Metrics of updates, averaged over the last of them."""
HELD_OUT = ("held_out_bits_per_byte", "held_out_early_bits_per_byte", "held_out_rate")
"""Metrics of the last snapshot."""
_SMOOTH = 10  # updates that the figure averages differences over


@dataclass
class PrecisionOptions:
    """Options of the study."""

    source: str = MISSING
    """A file or a folder of documents of 4,096 bytes and more."""
    seeds: int = 3
    """Seeds 0, 1, ... of weights, texts and boundaries."""
    updates: int = 300
    last: int = 50
    """Updates at the end that metrics are averaged over."""
    overrides: list[str] = field(default_factory=list)
    """Options of every run, as on its command line."""
    runs: str = "runs/precision"
    """Folder of the runs."""
    out: str = "runs/precision"
    """Folder of table and figure."""


@dataclass(frozen=True)
class Parity:
    """Difference of a variant from float32 in one metric, and the difference between seeds."""

    figure: str
    """Name of the metric."""
    mean: float
    """Mean over seeds in float32."""
    differences: list[float]
    """Variant minus float32, by seed."""
    between_seeds: float
    """Mean distance of two seeds in float32."""

    @property
    def within(self) -> bool:
        """Whether the mean difference is smaller than the one between seeds."""
        return abs(fmean(self.differences)) < self.between_seeds


def read_precision_options(arguments: Sequence[str]) -> PrecisionOptions:
    """Read and check the options of a command line, ``name=value``.

    Example:
        >>> read_precision_options(["source=books", "seeds=2"]).updates
        300
    """
    options = read_options(PrecisionOptions, arguments)
    check_minimums(options, {"seeds": 2, "updates": 2, "last": 1})
    if options.last > options.updates:
        raise ValueError(f"last must be at most updates={options.updates}, got {options.last}")
    return options


def run_overrides(options: PrecisionOptions, variant: str, seed: int) -> list[str]:
    """Return the command line of a run."""
    return [
        *MODEL,
        *VARIANTS[variant],
        "data=books",
        f"data.source={options.source}",
        f"data.num_rows={ROWS}",
        f"data.num_steps={STEPS}",
        f"optim.total_bytes={ROWS * STEPS * options.updates}",
        "optim.warm_up=0.1",
        "compute.threads=1",
        "checkpoint_every=20",
        "snapshots.count=2",
        f"seed={seed}",
        *options.overrides,
        f"out={run_folder(options, variant, seed)}",
        "resume=true",
    ]


def run_folder(options: PrecisionOptions, variant: str, seed: int) -> Path:
    """Return the folder of a run."""
    return Path(options.runs) / f"{variant}-{seed}"


def train_all(options: PrecisionOptions) -> dict[str, list[RunFolder]]:
    """Train the runs that are not finished; return all runs by variant, in the order of their seeds."""
    cells = [(variant, seed) for seed in range(options.seeds) for variant in VARIANTS]
    for place, (variant, seed) in enumerate(cells, 1):
        summary = run_folder(options, variant, seed) / "summary.json"
        if summary.exists():
            continue
        print(f"{place}/{len(cells)} {variant}, seed {seed}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "rltok_rl.experiments.train", *run_overrides(options, variant, seed)]
        status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        if status or not summary.exists():
            raise RuntimeError(f"{variant}, seed {seed}, must finish, got exit code {status}")
    return {name: [read_run(run_folder(options, name, seed)) for seed in range(options.seeds)] for name in VARIANTS}


def final_value(run: RunFolder, name: str, last: int) -> float:
    """Return a metric of a finished run: the mean of its last updates, or of its last snapshot."""
    return float(run.snapshots[-1][name]) if name in HELD_OUT else fmean(run.history[name][-last:])


def compare(runs: Sequence[RunFolder], references: Sequence[RunFolder], *, last: int) -> list[Parity]:
    """Compare every metric of a variant with float32's.

    Args:
        runs: runs of the variant, by seed.
        references: runs in float32, of the same seeds.
        last: updates to average over.
    """
    parities = []
    for name in (*TRAINED, *HELD_OUT):
        values, usual = ([final_value(run, name, last) for run in group] for group in (runs, references))
        differences = [a - b for a, b in zip(values, usual, strict=True)]
        between = fmean(abs(a - b) for a, b in combinations(usual, 2))
        parities.append(Parity(name, fmean(usual), differences, between))
    return parities


def table(bfloat16: Sequence[Parity], nudged: Sequence[Parity]) -> str:
    """Return a Markdown table with a row per metric: mean differences, and their deviation over seeds."""
    header = ["figure", "float32", "bfloat16 minus float32", "of each seed", "nudged minus float32", "two seeds differ"]
    rows = [
        [
            f"`{narrow.figure}`",
            f"{narrow.mean:.4f}",
            _with_deviation(narrow.differences),
            " ".join(f"{x:+.4f}" for x in narrow.differences),
            _with_deviation(other.differences),
            f"{narrow.between_seeds:.4f}{'' if narrow.within else ' (less than bfloat16 does)'}",
        ]
        for narrow, other in zip(bfloat16, nudged, strict=True)
    ]
    return markdown(header, rows)


def _with_deviation(differences: Sequence[float]) -> str:
    return f"{fmean(differences):+.4f} ± {stdev(differences):.4f}"


def write(options: PrecisionOptions, command: str, runs: dict[str, list[RunFolder]]) -> str:
    """Write table, figure and JSON; return the page."""
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    narrow, nudged = (compare(runs[name], runs["float32"], last=options.last) for name in ("bfloat16", "nudged"))
    about = (
        f"{options.updates} updates of {ROWS} x {STEPS} bytes, {options.seeds} seeds; metrics of updates are means "
        f"over the last {options.last}, ± is the standard deviation over seeds; *nudged* is float32 with a learning "
        "rate that differs in its eighth digit; *two seeds differ* is the mean distance of two in float32."
    )
    model = f"{runs['float32'][0].model['parameters']:,} parameters, `{' '.join(MODEL)}`"
    page = "\n\n".join([f"`{command}`", machine("cpu"), about, model, table(narrow, nudged)]) + "\n"
    (out / "precision.md").write_text(page)
    histories = {
        variant: {name: [[round(x, 5) for x in run.history[name]] for run in group] for name in TRAINED}
        for variant, group in runs.items()
    }
    content = {
        "command": command,
        "machine": machine("cpu"),
        "bfloat16": [asdict(parity) for parity in narrow],
        "nudged": [asdict(parity) for parity in nudged],
        "courses": histories,
    }
    (out / "precision.json").write_text(json.dumps(content) + "\n")
    draw_precision(histories, out / "precision.png")
    return page


def draw_precision(histories: dict[str, dict[str, list[list[float]]]], path: Path) -> Path:
    """Draw losses in float32 and bfloat16; and for both losses and the rate, differences from float32 of one seed.

    Args:
        histories: metrics of updates, by variant and metric, a list per seed.
        path: the PNG to write.
    """
    titles = {"bits_per_byte": "bits per byte", "early_bits_per_byte": "early exit", "rate": "rate"}
    with plain_figures() as plt:
        figure, (losses, *panels) = plt.subplots(1, 1 + len(titles), figsize=(11.4, 2.6), layout="constrained")
        for variant, colour in (("float32", INK), ("bfloat16", ALERT)):
            for seed, history in enumerate(histories[variant]["bits_per_byte"]):
                losses.plot(history, color=colour, lw=0.7, label=None if seed else variant)
        losses.set(title="bits per byte, every seed", xlabel="updates")
        losses.legend()
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            usual = histories["float32"][name]
            _draw_differences(axes, list(combinations(usual, 2)), PALE, "two seeds")
            for variant, colour in (("nudged", OURS), ("bfloat16", ALERT)):
                pairs = list(zip(histories[variant][name], usual, strict=True))
                _draw_differences(axes, pairs, colour, f"{variant} - float32")
            axes.axhline(0.0, color=INK, lw=0.5)
            axes.set(title=f"{title}: differences", xlabel=f"updates, means of {_SMOOTH}")
        panels[0].legend()
        return save_figure(figure, path)


def _draw_differences(axes: Any, pairs: Sequence[tuple[list[float], list[float]]], colour: str, label: str) -> None:
    for place, (first, second) in enumerate(pairs):
        width = min(_SMOOTH, len(first))
        smooth = np.convolve(np.subtract(first, second), np.ones(width) / width, mode="valid")
        axes.plot(range(width, len(first) + 1), smooth, color=colour, lw=0.8, label=None if place else label)


def main(arguments: list[str] | None = None) -> int:
    """Run the study; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = read_precision_options(arguments)
        print(write(options, command_line("precision", arguments), train_all(options)))
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(Path(options.out) / "precision.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

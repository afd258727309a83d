"""Evaluate the models of a comparison with other boundaries than those that they were trained with.

    python -m rltok_rl.experiments.studies.swapped_boundaries comparison=runs/compare-main/0

A row per model, a column per rule. Systems whose segmenters are trained make tokens in their own way and are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.runs.folder import read_run
from rltok_rl.experiments.runs.segmenters import UNTRAINED, rule_segmenter
from rltok_rl.experiments.studies.common import StepLines, check_choices, check_minimums, read_options
from rltok_rl.experiments.studies.comparisons import load_system, read_comparison
from rltok_rl.experiments.texts import data_config, held_out_texts, read_run_texts

from rltok_rl.evaluation import read_text, summarise

OWN = "own"
"""The boundaries that a model was trained with."""


@dataclass
class Options:
    """Options of the command."""

    comparison: str = "runs/compare-main/0"
    """Folder of a comparison."""
    rules: list[str] = field(default_factory=lambda: ["uniform", "random", "spacebyte"])
    """Choices of ``segmenter`` that need no training, :data:`UNTRAINED`."""
    offsets: list[int] = field(default_factory=lambda: [1, 2, 3, 4])
    """Offsets of SpaceByte's rule that are columns, too."""
    windows: int = 512
    """Windows of held-out text."""
    trust_data: bool = False
    """Read the text that the runs name, though they were not trained here."""


def bits_with(
    folder: Path, columns: Sequence[tuple[str, int]], windows: int, *, trust_data: bool
) -> list[float] | None:
    """Return a run's bits per byte on held-out windows with each column's rule and offset; None if it has no row."""
    model, trained_with = load_system(folder)
    if trained_with is not None and trained_with.coefficients:
        return None
    run = read_run(folder)
    data = data_config(run.config)
    held = held_out_texts(read_run_texts(data, trust_data), windows, data.num_steps + 1)
    bits = []
    for rule, offset in columns:
        # As in training, where random boundaries are exact in every window.
        options = {"offset": offset} if offset else {"block": data.num_steps} if rule == "random" else {}
        segmenter = trained_with if rule == OWN else rule_segmenter(rule, model, **options)
        generator = torch.Generator().manual_seed(0)
        reading = read_text(model, held, context=data.num_steps, most=windows, generator=generator, segmenter=segmenter)
        bits.append(summarise(reading)["corpus_bits_per_byte"])
    return bits


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a comparison."""
    options = read_options(Options, sys.argv[1:] if arguments is None else arguments)
    check_minimums(options, {"windows": 1})
    check_choices(options, rules=UNTRAINED)
    if wrong := [offset for offset in options.offsets if not 1 <= offset <= 64]:
        raise ValueError(f"offsets must lie in 1..64, got {wrong}")
    columns = [(OWN, 0), *((rule, 0) for rule in options.rules), *(("spacebyte", n) for n in options.offsets)]
    systems, _ = read_comparison(Path(options.comparison))
    say, rows = StepLines("models"), []
    for done, system in enumerate(systems, 1):
        bits = bits_with(Path(options.comparison) / system, columns, options.windows, trust_data=options.trust_data)
        if bits is not None:
            rows.append([system, *(f"{loss:.3f}" for loss in bits)])
        say(done, len(systems))
    names = [f"{rule}, {offset} later" if offset else rule for rule, offset in columns]
    print(markdown(["trained with", *names], rows))


if __name__ == "__main__":
    main()

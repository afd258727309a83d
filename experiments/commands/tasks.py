r"""Questions with choices: PIQA, HellaSwag, ARC-Easy and LAMBADA, in bits per byte and in accuracy.

    rltok tasks runs/mine piqa arc_easy --data questions
    rltok tasks runs/mine lambada_openai --limit 500 --samples 8 --json

Bits per byte are what a model pays for the right answer, its leading space among its bytes: the mean over examples,
with its standard error. Data sets come from the Hugging Face hub, or from a folder with PIQA in piqa.parquet or
piqa.jsonl, and likewise the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rltok_rl.experiments.commands import parsers
from rltok_rl.experiments.commands.arguments import (
    Watch,
    command,
    load_with_segmenter,
    run_config,
    without_subject,
)
from rltok_rl.experiments.commands.evaluate import described
from rltok_rl.experiments.commands.parsers import CONTEXT

from rltok_rl.evaluation.tasks import Example, choice_metrics, read_task, score_examples


def read_tasks(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, list[Example]]:
    """The examples of all tasks that were named; what is wrong with them ends the command before it has begun."""
    try:
        return {name: read_task(name, options.data, limit=options.limit) for name in dict.fromkeys(options.tasks)}
    except (OSError, ValueError) as error:
        about = "argument --data: " if str(error).startswith("folder must ") else ""
        parser.error(about + without_subject(error, "folder"))


def table(tasks: dict[str, dict[str, Any]]) -> str:
    """The figures for people.

    Args:
        tasks: those of :func:`rltok_rl.evaluation.tasks.choice_metrics`, by the names of the tasks.
    """
    columns = {
        "bits_per_byte": "bits per byte",
        "accuracy": "accuracy",
        "accuracy_per_byte": "per byte",
        "likeliest": "likeliest bytes",
    }
    lines = [
        "".join([f"{'task':<16}{'examples':>8}", *(f"{title:>19}" for title in columns.values()), f"{'chance':>9}"])
    ]
    for name, figures in tasks.items():
        cells = [_with_error(figures, column) for column in columns]
        chance = "-" if figures["chance"] is None else f"{figures['chance']:.3f}"
        lines.append(
            "".join([f"{name:<16}{figures['examples']:>8,}", *(f"{cell:>19}" for cell in cells), f"{chance:>9}"])
        )
    return "\n".join(lines)


def _with_error(figures: dict[str, Any], name: str) -> str:
    value, error = figures[name], figures[f"{name}_error"]
    if value is None:
        return "-"
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"


@command
def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = parsers.tasks()
    options = parser.parse_args(arguments)
    if options.greedy and options.samples > 1:
        parser.error("argument --samples: not allowed with argument --greedy")
    run = run_config(parser, options.model)
    context = options.context or (run.data.num_steps if run is not None else CONTEXT)
    model, segmenter = load_with_segmenter(parser, options)
    if options.samples > 1 and segmenter is not None and not segmenter.draws_at_random:
        parser.error(f"argument --samples: belongs to random boundaries, got {type(segmenter).__name__}")
    examples = read_tasks(parser, options)
    drawn = "greedy" if options.greedy else "drawn from the policy"
    how: dict[str, Any] = {
        "context": context,
        "samples": options.samples,
        "seed": options.seed,
        "boundaries": drawn if segmenter is None else described(segmenter),
    }
    found = {}
    for name, questions in examples.items():
        scores = score_examples(
            model,
            questions,
            context_bytes=context,
            samples=options.samples,
            greedy=options.greedy,
            seed=options.seed,
            segmenter=segmenter,
            target_rate=options.rate,
            progress=Watch(f"{name}: {len(questions):,} example{'s' * (len(questions) != 1)}"),
        )
        found[name] = choice_metrics(questions, scores)
    if options.json:
        print(json.dumps({"model": options.model, **how, "tasks": found}, indent=1))
        return 0
    print(table(found))
    print(f"\nboundaries: {how['boundaries']}, draws: {options.samples}, bytes read at most: {context:,}")
    for name, figures in found.items():
        if figures["cut"]:
            cut = f"{figures['cut']:,} of {figures['examples']:,} examples"
            print(f"{name}: contexts of {cut} were cut; --context reads more")
    return 0


if __name__ == "__main__":
    sys.exit(main())

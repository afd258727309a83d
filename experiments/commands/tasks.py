r"""Evaluate a model on PIQA, HellaSwag, ARC-Easy and LAMBADA, in bits per byte and accuracy.

    rltok tasks runs/mine piqa arc_easy --data questions
    rltok tasks runs/mine lambada_openai --limit 500 --samples 8 --json

Bits per byte are the cost of the right answer, with its leading space: the mean over examples and its standard error.
Datasets come from the Hugging Face hub, or from a folder with PIQA in piqa.parquet or piqa.jsonl, and the others alike.
"""

from __future__ import annotations

import argparse
import json

from rltok_rl.experiments.commands.arguments import (
    Watch,
    load_with_segmenter,
    run_config,
    trained_context,
    without_subject,
)
from rltok_rl.experiments.commands.evaluate import described
from rltok_rl.experiments.commands.parsers import Parser, command
from rltok_rl.experiments.commands.tables import tasks_table

from rltok_rl.evaluation.tasks import choice_metrics, read_task, score_examples


@command("tasks", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    if options.greedy and options.samples > 1:
        parser.error("argument --samples: not allowed with argument --greedy")
    run = run_config(parser, options.model)
    context = options.context or trained_context(run)
    model, segmenter = load_with_segmenter(parser, options)
    if options.samples > 1 and segmenter is not None and not segmenter.draws_at_random:
        parser.error(f"argument --samples: belongs to random boundaries, got {type(segmenter).__name__}")
    by_policy = "greedy" if options.greedy else "drawn from the policy"
    boundaries = by_policy if segmenter is None else described(segmenter)
    try:
        tasks = {name: read_task(name, options.data, limit=options.limit) for name in dict.fromkeys(options.tasks)}
    except (OSError, ValueError) as error:
        argument = "argument --data: " if str(error).startswith("folder must ") else ""
        parser.error(argument + without_subject(error, "folder"))
    metrics = {}
    for name, examples in tasks.items():
        scores = score_examples(
            model,
            examples,
            context_bytes=context,
            samples=options.samples,
            greedy=options.greedy,
            seed=options.seed,
            segmenter=segmenter,
            target_rate=options.rate,
            progress=Watch(f"{name}: {len(examples):,} example{'s' * (len(examples) != 1)}"),
        )
        metrics[name] = choice_metrics(examples, scores)
    if options.json:
        how = {"context": context, "samples": options.samples, "seed": options.seed, "boundaries": boundaries}
        print(json.dumps({"model": options.model, **how, "tasks": metrics}, indent=1))
        return
    print(tasks_table(metrics))
    print(f"\nboundaries: {boundaries}, draws: {options.samples}, bytes read at most: {context:,}")
    for name, task in metrics.items():
        if task["cut"]:
            cut = f"{task['cut']:,} of {task['examples']:,} examples"
            print(f"{name}: contexts of {cut} were cut; --context reads more")

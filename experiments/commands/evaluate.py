"""Measure a model on text that it was not trained on.

    rltok eval runs/mine
    rltok eval runs/mine notes.txt --context 512 --json

Reports bits per byte of the whole model and of the early exit, boundaries per byte, and the shares of boundaries at the
last letter of a word, at the space after it and at the first letter, each with its value by chance. The default text is
the run's held-out text. docs/evaluation.md defines the metrics.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.experiments.commands.arguments import (
    Watch,
    find_documents,
    load_with_segmenter,
    run_config,
    trained_context,
)
from rltok_rl.experiments.commands.parsers import Parser, command
from rltok_rl.experiments.commands.tables import evaluation_table
from rltok_rl.experiments.reports.markdown import without_nan

from rltok_rl.evaluation import (
    Reading,
    particle_nats,
    read_samples,
    read_streamed,
    read_text,
    summarise,
    summarise_samples,
    window_losses,
)


def described(segmenter: Segmenter) -> str:
    """Name a segmenter, and whether it reads later bytes."""
    ahead = ", an oracle: it reads later bytes" if segmenter.looks_ahead else ""
    return f"{type(segmenter).__name__}{ahead}"


@command("eval", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    run = run_config(parser, options.model)
    for name in ("context", "stride", "windows", "particles"):
        if options.streamed and getattr(options, name) is not None:
            parser.error(f"argument --{name}: not allowed with argument --streamed")
    for name in ("samples", "particles"):
        if options.greedy and getattr(options, name) is not None:
            parser.error(f"argument --{name}: not allowed with argument --greedy (--samples also thresholds)")
    context = options.context or trained_context(run)
    stride = context if options.stride is None else options.stride
    if stride > context:
        parser.error(f"argument --stride: must be at most the context, {context}, got {stride}")
    model, segmenter = load_with_segmenter(parser, options)
    _check_segmenter(parser, options, segmenter)
    text_name, documents = find_documents(parser, options, run)
    windows: dict[str, Any] = {"context": context, "stride": stride, "most": options.windows}
    read: Callable[..., Reading] = read_streamed if options.streamed else partial(read_text, **windows)

    def drawing(watch: Watch) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(options.seed)
        rate = options.rate
        return {"generator": generator, "segmenter": segmenter, "target_rate": rate, "progress": watch}

    watch, more = Watch(), {}
    if options.samples is None:
        reading = read(model, documents, greedy=options.greedy, **drawing(watch))
    else:
        samples = read_samples(model, documents, samples=options.samples, read=read, **drawing(watch))
        reading, more["samples"] = samples.first, summarise_samples(samples)
    if options.particles is not None:
        nats = particle_nats(model, documents, particles=options.particles, **windows, **drawing(Watch()))
        more["particles"] = {"count": options.particles, **window_losses(reading, nats)}
    rate = model.config.target_rate if options.rate is None else options.rate
    metrics = {
        "text": text_name,
        "context": None if options.streamed else context,
        "stride": None if options.streamed else stride,
        **summarise(reading),
        **more,
        "target_rate": rate if segmenter is None else segmenter.target_rate,
        **({} if segmenter is None else {"segmenter": described(segmenter), "oracle": segmenter.looks_ahead}),
        "bytes_per_second": watch.bytes_per_second,
    }
    print(json.dumps(without_nan(metrics), indent=1) if options.json else evaluation_table(metrics))


def _check_segmenter(parser: Parser, options: argparse.Namespace, segmenter: Segmenter | None) -> None:
    if segmenter is None:
        return
    for name in ("samples", "particles"):
        if getattr(options, name) is not None and not segmenter.draws_at_random:
            parser.error(f"argument --{name}: {type(segmenter).__name__} draws nothing at random")
    if options.streamed and segmenter.looks_ahead:
        parser.error(f"argument --streamed: {type(segmenter).__name__} reads later bytes")

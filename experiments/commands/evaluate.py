"""Measure a model on text that it was not trained on.

    rltok eval runs/mine
    rltok eval runs/mine notes.txt --context 512 --json

Bits per byte of the whole model and of the early exit, each byte but the first predicted once; boundaries per byte; and
where boundaries lie: at the last letter of a word, at the space after it, at the first letter of a word, beside the
share that as many boundaries would have there by chance. The model of a run is measured on the text that the run held
out, unless another is given. docs/evaluation.md says what the figures are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.experiments.commands import parsers
from rltok_rl.experiments.commands.arguments import Watch, command, find_documents, load_with_segmenter, run_config
from rltok_rl.experiments.commands.parsers import CONTEXT
from rltok_rl.experiments.commands.tables import table
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
    """What draws the boundaries, and whether it knows bytes to come."""
    ahead = ", an oracle: it looks at bytes to come" if segmenter.looks_ahead else ""
    return f"{type(segmenter).__name__}{ahead}"


@command
def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = parsers.evaluate()
    options = parser.parse_args(arguments)
    run = run_config(parser, options.model)
    _check_windows(parser, options)
    context = options.context or (run.data.num_steps if run is not None else CONTEXT)
    stride = context if options.stride is None else options.stride
    if stride > context:
        parser.error(f"argument --stride: must be at most the context, {context}, got {stride}")
    model, segmenter = load_with_segmenter(parser, options)
    _check_segmenter(parser, options, segmenter)
    name, given = find_documents(parser, options, run)
    watch = Watch()
    read: Callable[..., Reading] = read_streamed
    if not options.streamed:
        read = partial(read_text, context=context, stride=stride, most=options.windows)
    how: dict[str, Any] = {
        "generator": torch.Generator().manual_seed(options.seed),
        "segmenter": segmenter,
        "target_rate": options.rate,
        "progress": watch,
    }
    found: dict[str, Any] = {}
    if options.samples is None:
        reading = read(model, given, greedy=options.greedy, **how)
    else:
        samples = read_samples(model, given, samples=options.samples, read=read, **how)
        reading, found = samples.first, {"samples": summarise_samples(samples)}
    if options.particles is not None:
        again = {**how, "generator": torch.Generator().manual_seed(options.seed), "progress": Watch()}
        where = {"context": context, "stride": stride, "most": options.windows}
        nats = particle_nats(model, given, particles=options.particles, **where, **again)
        found["particles"] = {"count": options.particles, **window_losses(reading, nats)}
    aimed_at = model.config.target_rate if options.rate is None else options.rate
    figures = {
        "text": name,
        "context": None if options.streamed else context,
        "stride": None if options.streamed else stride,
        **summarise(reading),
        **found,
        "target_rate": aimed_at if segmenter is None else segmenter.target_rate,
        **({} if segmenter is None else {"segmenter": described(segmenter), "oracle": segmenter.looks_ahead}),
        "bytes_per_second": watch.bytes_per_second,
    }
    print(json.dumps(without_nan(figures), indent=1) if options.json else table(figures))
    return 0


def _check_windows(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse options that others make meaningless."""
    for name in ("context", "stride", "windows", "particles"):
        if options.streamed and getattr(options, name) is not None:
            parser.error(f"argument --{name}: not allowed with argument --streamed")
    if options.samples is not None and options.greedy:
        parser.error("argument --samples: not allowed with argument --greedy (it comes with a thresholded reading)")
    if options.particles is not None and options.greedy:
        parser.error("argument --particles: not allowed with argument --greedy")


def _check_segmenter(parser: argparse.ArgumentParser, options: argparse.Namespace, segmenter: Segmenter | None) -> None:
    if segmenter is None:
        return
    for name in ("samples", "particles"):
        if getattr(options, name) is not None and not segmenter.draws_at_random:
            parser.error(f"argument --{name}: {type(segmenter).__name__} draws nothing at random")
    if options.streamed and segmenter.looks_ahead:
        parser.error(f"argument --streamed: {type(segmenter).__name__} looks at bytes to come")


if __name__ == "__main__":
    sys.exit(main())

r"""Continue a prompt, byte by byte.

    rltok generate "It is a truth" --bytes 400 --temperature 0.8
    rltok generate "It is a truth" --show-boundaries --model runs/mine

Text is written as soon as its characters are complete. Invalid UTF-8 and control characters other than newline are
written as \xNN; --raw writes the bytes unescaped.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from rltok_rl.agents.segmenters import write_on
from rltok_rl.experiments.commands.arguments import load_with_segmenter, read_bytes, typed_bytes
from rltok_rl.experiments.commands.parsers import Parser, command

from rltok_rl.models.generation import stream
from rltok_rl.text import text_to_ids
from rltok_rl.viz.terminal import BoundaryStream


@command("generate", __doc__)
@torch.no_grad()
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    if options.raw and options.show_boundaries:
        parser.error("argument --show-boundaries: not allowed with argument --raw")
    if not options.prompt:
        parser.error("argument PROMPT: must have at least 1 byte, got none")
    typed = options.prompt != "-"
    prompt = typed_bytes(parser, "PROMPT", options.prompt) if typed else read_bytes(parser, "-")
    model, segmenter = load_with_segmenter(parser, options)
    generator = torch.Generator(options.device).manual_seed(options.seed)
    how: Any = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    how |= {"max_bytes": options.bytes, "generator": generator}
    policy = {"greedy": options.greedy, "target_rate": options.rate}
    try:
        if segmenter is None:
            steps = stream(model, prompt, **policy, **how)
        else:
            steps = write_on(model, segmenter, prompt, **how)
    except ValueError as error:
        parser.error(str(error))
    if options.raw:
        for step in steps:
            sys.stdout.buffer.write(bytes(step.byte_ids[step.new].tolist()))
            sys.stdout.buffer.flush()
        return
    shown = BoundaryStream()
    if segmenter is None:  # else the prompt is part of the stream
        marks = [False] * len(prompt)
        if options.show_boundaries:  # those that stream draws: both use the first random numbers
            first = None if options.greedy else torch.Generator(options.device).manual_seed(options.seed)
            byte_ids = model.mark(text_to_ids(prompt)[None].to(options.device))
            marks = model(byte_ids, generator=first, **policy).boundaries[0, model.config.num_marks :].tolist()
        for byte, boundary in zip(prompt, marks, strict=True):
            sys.stdout.write(shown.feed(byte, boundary))
    sys.stdout.flush()
    for step in steps:
        sys.stdout.write(shown.feed(int(step.byte_ids), options.show_boundaries and bool(step.boundaries)))
        sys.stdout.flush()
    print(shown.close())

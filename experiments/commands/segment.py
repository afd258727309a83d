"""Show where a model ends its tokens.

    rltok segment "to be or not to be"
    rltok segment --file notes.txt --model runs/mine
    echo "to be or not to be" | rltok segment --model runs/mine --greedy
    rltok segment --file notes.txt --format json | head

As text, a | follows each boundary, coloured by its probability. As json, each line is a token: start and end in bytes,
text (null if it is no UTF-8 by itself), bytes in hex, whether a boundary ends it, and the probability of a boundary
after each of its bytes, given those before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch
from rltok_rl.agents.segmenters import segment_text
from rltok_rl.experiments.commands.arguments import Watch, load_with_segmenter, read_bytes, use_colour
from rltok_rl.experiments.commands.parsers import Parser, command

from rltok_rl.models import segment
from rltok_rl.viz import boundary_pieces


def read_text(parser: Parser, options: argparse.Namespace) -> bytes:
    """Return TEXT, or the content of the file or of standard input."""
    if options.text is not None and options.file is not None:
        parser.error("argument --file: not allowed with TEXT")
    if options.file is not None or options.text in (None, "-"):
        return read_bytes(parser, options.file or "-")
    if not options.text:
        parser.error("argument TEXT: must have at least 1 byte, got none")
    if os.path.isfile(options.text):
        print(f"reading {options.text!r} as text; --file reads the file's content", file=sys.stderr)
    return os.fsencode(options.text)


def _utf8(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


@command("segment", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    text = read_text(parser, options)
    model, segmenter = load_with_segmenter(parser, options)
    generator = torch.Generator(options.device).manual_seed(options.seed)
    how: dict[str, Any] = {"generator": generator, "progress": Watch()}
    if segmenter is None:
        drawn = segment(model, text, greedy=options.greedy, target_rate=options.rate, **how)
    else:
        drawn = segment_text(model, segmenter, text, **how)
    if options.format == "json":
        for token in drawn.tokens():
            record = {"start": token.start, "end": token.end, "token": _utf8(token.content), "hex": token.content.hex()}
            probabilities = [round(p, 6) for p in drawn.probabilities[token.start : token.end].tolist()]
            print(json.dumps({**record, "ended": token.ended, "probabilities": probabilities}, ensure_ascii=False))
        return
    for piece in boundary_pieces(text, drawn.boundaries, drawn.probabilities, colour=use_colour(options.colour)):
        print(piece, end="")
    print()

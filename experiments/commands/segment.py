"""Show where a model ends its tokens.

    rltok segment "to be or not to be"
    rltok segment --file notes.txt --model runs/mine
    echo "to be or not to be" | rltok segment --model runs/mine --greedy
    rltok segment --file notes.txt --format json | head

As text, a | follows each boundary, coloured by its probability. As json, each line is a token: start and end in bytes,
text (null if it is no UTF-8 by itself), bytes in hex, whether a boundary ends it, and the probability of a boundary
after each of its bytes, given those before. Long texts are written while they are read, unless the segmenter needs the
whole text, as tokenizers do.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from rltok_rl.agents.segmenters import segment_text_parts
from rltok_rl.experiments.commands.arguments import Watch, load_with_segmenter, read_bytes, typed_bytes, use_colour
from rltok_rl.experiments.commands.parsers import Parser, command

from rltok_rl.models.segmentation import Segmentation, Token, join_parts, segment_parts
from rltok_rl.utils import printable
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
    return typed_bytes(parser, "TEXT", options.text)


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
    shows = sys.stdout.isatty() and (segmenter is None or segmenter.draws_parts)  # the text itself shows the progress
    how: dict[str, Any] = {"generator": generator, "progress": None if shows else Watch()}
    if segmenter is None:
        parts = segment_parts(model, text, greedy=options.greedy, target_rate=options.rate, **how)
    else:
        parts = segment_text_parts(model, segmenter, text, **how)
    if options.format == "json":
        for start, token, chances in tokens_of(parts):
            end = start + len(token.content)
            record: dict[str, Any] = {
                "start": start,
                "end": end,
                "token": _utf8(token.content),
                "hex": token.content.hex(),
            }
            record |= {"ended": token.ended, "probabilities": [round(p, 6) for p in chances]}
            print(printable(json.dumps(record, ensure_ascii=False)))
        return
    for part in whole_characters(parts):
        drawn = part.boundaries, part.probabilities
        for piece in boundary_pieces(part.text, *drawn, colour=use_colour(options.colour)):
            print(piece, end="", flush=True)
    print()


def tokens_of(parts: Iterable[Segmentation]) -> Iterator[tuple[int, Token, list[float]]]:
    """Yield each token of consecutive parts, its place in the text and the probabilities at its bytes."""
    open_part: Segmentation | None = None
    start = 0
    for part in parts:
        drawn = part if open_part is None else join_parts([open_part, part])
        open_part = None
        for token in drawn.tokens():
            if token.ended:
                yield start + token.start, token, drawn.probabilities[token.start : token.end].tolist()
            else:
                open_part = _cut(drawn, slice(token.start, None))
        start += len(drawn.text) - (0 if open_part is None else len(open_part.text))
    if open_part is not None:
        yield start, Token(start, start + len(open_part.text), open_part.text, False), open_part.probabilities.tolist()


def whole_characters(parts: Iterable[Segmentation]) -> Iterator[Segmentation]:
    """Yield consecutive parts, each cut after its last whole character; the next one begins with the rest."""
    rest: Segmentation | None = None
    for part in parts:
        drawn = part if rest is None else join_parts([rest, part])
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        decoder.decode(drawn.text)
        size = len(drawn.text) - len(decoder.getstate()[0])
        yield _cut(drawn, slice(size))
        rest = _cut(drawn, slice(size, None))
    if rest is not None:
        yield rest


def _cut(drawn: Segmentation, place: slice) -> Segmentation:
    return Segmentation(drawn.text[place], drawn.boundaries[place], drawn.probabilities[place])

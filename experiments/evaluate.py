"""Measure a model on text that it was not trained on.

    rltok eval runs/mine
    rltok eval runs/mine notes.txt --context 512 --json

Bits per byte of the whole model and of the early exit, each byte but the first predicted once; boundaries per byte; and
where boundaries lie: at the last letter of a word, at the space after it, at the first letter of a word, beside the
share that as many boundaries would have there by chance. The model of a run is measured on the text that the run held
out, unless another is given.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.experiments.arguments import (
    add_drawing,
    add_model,
    add_rate,
    check_rate,
    command,
    find_segmenter,
    load_model,
    read_bytes,
    whole_number,
)

from rltok_rl.data import DocumentSource
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.functional.text import ids_to_bytes

CONTEXT = 256
_FRESH = 1 << 16  # bytes of a language that never ends
_BUILT_IN = ("python-code", "python-docs")
_NAMES = {"last_letter": "last letter", "space": "space after", "first_letter": "first letter", "any": "any of these"}


def run_config(model: str) -> Any:
    """The configuration of the run whose folder this is; None where it is no run."""
    path = Path(model) / "config.yaml"
    if not path.is_file():
        return None
    from omegaconf import OmegaConf

    return OmegaConf.load(path)


def find_texts(parser: argparse.ArgumentParser, options: argparse.Namespace, run: Any) -> tuple[str, list[bytes]]:
    """What to measure on: its name and its documents."""
    if options.data is None and run is None:
        parser.error(f"the following arguments are required: DATA ({options.model} is not the folder of a run)")
    if options.data is not None and options.data not in _BUILT_IN:
        return options.data, [read_bytes(parser, options.data, least=2)]
    from omegaconf import OmegaConf
    from rltok_rl.experiments.config import TrainConfig  # what it needs takes seconds to import
    from rltok_rl.experiments.texts import BUILT_IN, read_texts

    if options.data is not None:
        return options.data, [BUILT_IN[options.data]()]
    try:
        config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), run))
        data, texts = config.data, read_texts(config.data)
    except (OSError, ValueError) as error:
        parser.error(f"the text of {options.model} cannot be read again: {error}; name another as DATA")
    held = texts.held_out
    if isinstance(held, DocumentSource):
        return f"held out of {data.source}", list(held.documents())
    fresh = held.draw(1, options.bytes or _FRESH, torch.Generator().manual_seed(options.seed))
    return f"fresh {data.source}", [ids_to_bytes(fresh.byte_ids[0])]


def beginning(texts: list[bytes], num_bytes: int | None) -> list[bytes]:
    """Texts up to a number of bytes in all; the last one is cut, and left out where it would be a single byte.

    Args:
        texts: at least one of 2 bytes.
        num_bytes: at least 2; None for all.

    Example:
        >>> beginning([b"to be", b"or not", b"to be"], 8)
        [b'to be', b'or ']
    """
    taken: list[bytes] = []
    left = sum(map(len, texts)) if num_bytes is None else num_bytes
    for text in texts:
        if min(left, len(text)) < 2:
            break
        taken.append(text[:left])
        left -= len(taken[-1])
    return taken


def table(figures: dict[str, Any]) -> str:
    """The figures for people.

    Args:
        figures: those of :func:`rltok_rl.evaluation.summarise`, with ``text``, ``context``, ``target_rate``,
            ``bytes_per_second``.
    """
    lines = [
        f"text               {figures['text']}",
        f"bytes predicted    {figures['bytes']:,} in {figures['windows']:,} windows of {figures['context']:,}"
        f" ({figures['bytes_per_second']:,.0f} bytes/s)",
        f"bits per byte      {figures['bits_per_byte']:.4f}{_error(figures)}",
        f"  early exit       {figures['early_bits_per_byte']:.4f}",
        f"tokens             {figures['tokens']:,}, of {figures['bytes_per_token']:.2f} bytes on average",
        f"rate               {figures['rate']:.4f} boundaries per byte (target {_target(figures['target_rate'])})",
        *([f"boundaries         {figures['segmenter']}"] if figures.get("segmenter") else []),
        "",
        f"{'boundaries at':<18}{'share':>8}{'chance':>9}{'ratio':>8}{'places taken':>15}",
    ]
    for name, edge in figures["word_edges"].items():
        beside = f"{edge['chance']:>9.3f}{edge['lift']:>8.2f}{edge['covered']:>15.3f}"
        lines.append(f"  {_NAMES[name]:<16}{edge['share']:>8.3f}{beside}")
    return "\n".join(lines)


def _error(figures: dict[str, Any]) -> str:
    error = figures.get("standard_error")
    return "" if error is None else f" ± {error:.4f}, standard error over {figures['documents']:,} documents"


def _target(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:g}"


def described(segmenter: Segmenter) -> str:
    """What draws the boundaries, and whether it knows bytes to come."""
    ahead = ", an oracle: it looks at bytes to come" if segmenter.looks_ahead else ""
    return f"{type(segmenter).__name__}{ahead}"


@command
def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="rltok eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model(parser)
    help_ = f"file, - for stdin, or one of {', '.join(_BUILT_IN)}; a run's own held-out text may be left out"
    parser.add_argument("data", metavar="DATA", nargs="?", help=help_)
    parser.add_argument("--bytes", type=whole_number(2), help="read so many at most, from the start (default: all)")
    parser.add_argument("--windows", type=whole_number(1), help="so many at most, evenly spread (default: all)")
    parser.add_argument(
        "--context", type=whole_number(1), help=f"bytes of a window (default: as the run was trained, or {CONTEXT})"
    )
    add_drawing(parser)
    add_rate(parser)
    parser.add_argument("--json", action="store_true", help="write all figures as one JSON object")
    options = parser.parse_args(arguments)
    run = run_config(options.model)
    context = options.context or (run.data.num_steps if run is not None else CONTEXT)
    name, texts = find_texts(parser, options, run)
    model = load_model(parser, options)
    segmenter = find_segmenter(parser, options, model)
    check_rate(parser, options, model, segmenter)
    generator = torch.Generator().manual_seed(options.seed)
    start = time.perf_counter()
    reading = read_text(
        model,
        beginning(texts, options.bytes),
        context=context,
        most=options.windows,
        greedy=options.greedy,
        generator=generator,
        segmenter=segmenter,
        target_rate=options.rate,
    )
    aimed_at = model.config.target_rate if options.rate is None else options.rate
    seconds = time.perf_counter() - start
    figures = {
        "text": name,
        "context": context,
        **summarise(reading),
        "target_rate": aimed_at if segmenter is None else segmenter.target_rate,
        **({} if segmenter is None else {"segmenter": described(segmenter), "oracle": segmenter.looks_ahead}),
        "bytes_per_second": len(reading.at) / seconds,
    }
    print(json.dumps(without_nan(figures), indent=1) if options.json else table(figures))
    return 0


def without_nan(value: Any) -> Any:
    """The same with None for what is not a number, which JSON has no word for.

    Args:
        value: nested dicts of plain values.

    Example:
        >>> without_nan({"a": {"b": math.nan}, "c": 1})
        {'a': {'b': None}, 'c': 1}
    """
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


if __name__ == "__main__":
    sys.exit(main())

"""Argument parsers of the commands. Nothing here imports torch, so that help and wrong options are answered at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rltok_rl.experiments.commands.argument_types import Parser, add, add_count, make_parser, number, output_path

from rltok_rl.renamed import current_word
from rltok_rl.utils import did_you_mean

# Names that the library defines in modules that import torch; tests/experiments/test_cli.py compares them.
PACKAGED = ("pocket",)
BUILT_IN = ("python-code", "python-docs")
REWARDS = ("early_exit", "log_likelihood", "entropy_relative")
BASELINES = ("none", "batch_mean", "leave_one_out", "z_score")
COMPARING = ("batch_mean", "leave_one_out")
TASKS = ("piqa", "hellaswag", "arc_easy", "lambada_openai")
REFERENCES = ("spacebyte", "whitespace", "bpe", "unigram", "uniform", "stride", "random", "bernoulli")
FORMATS = ("png", "pdf", "svg")

DEFAULT = "pocket"
"""The model of ``rltok segment`` and ``rltok generate``, unless ``--model`` names another."""
CONTEXT = 256
"""Bytes of a window, for models that are no runs."""
MOST = 1_000_000
"""Bytes above which ``rltok view`` needs ``--bytes``."""
GAMMA = 0.99
HELD_OUT = "held-out"
SECTIONS = (
    *("sampler", "attention", "decoding", "environment", "estimators"),
    *("training", "packing", "processes", "peers"),
)
"""Sections of :mod:`rltok_rl.experiments.bench`."""
NAMED_ONLY = ("compiled",)
"""Sections that take minutes and run only if named."""
SECONDS, LEAST_SECONDS = 270, 60
"""Time of the demo: default and minimum."""

_DATA = (
    f"file, folder of documents, - for stdin, or one of {', '.join(BUILT_IN)}; every row of Parquet or JSON lines is "
)
_DATA += "a document, as is any other file"
_MODELS = f"folder of save_pretrained, folder of a run, hub id, or {', '.join(PACKAGED)} (the packaged model)"


def _add_model(parser: argparse.ArgumentParser, name: str = "model", **options: Any) -> None:
    """Declare the model: an argument, or the option ``--model``."""
    add(parser, name, _MODELS, metavar="MODEL", **options)
    if name == "--model":
        parser.set_defaults(model_argument="--model")
    _add_device(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    add(parser, "--device", "where to run it: cpu (default), cuda, cuda:1, mps", default="cpu")
    text = "import and execute the custom segmenter, module:Class, that the files of MODEL name (default: refuse)"
    add(parser, "--trust-code", text, action="store_true")


def _add_drawing(parser: argparse.ArgumentParser) -> None:
    """Declare how boundaries are drawn."""
    group = parser.add_mutually_exclusive_group()
    add_count(group, "--seed", "of all random numbers (default: 0)", 0, default=0)
    add(group, "--greedy", "a boundary if its probability exceeds one half", action="store_true")
    share = number("between 0 and 1", lambda value: 0.0 < value < 1.0)
    add(parser, "--rate", "target of boundaries per byte, for models with rate_embedding (default: configured)", share)


def _add_column(parser: argparse.ArgumentParser) -> None:
    add(parser, "--column", "text column of tables (default: text, else content)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    add(parser, "--json", "write all metrics as one JSON object", action="store_true")


def segment() -> argparse.ArgumentParser:
    """Make the parser of ``rltok segment``."""
    parser = make_parser("segment", "commands/segment")
    add(parser, "text", "the text; - (default) is standard input", metavar="TEXT", nargs="?")
    add(parser, "--file", "read this file instead")
    _add_model(parser, "--model", default=DEFAULT)
    _add_drawing(parser)
    add(parser, "--format", "of the output (default: text)", choices=("text", "json"), default="text")
    add(parser, "--colour", "of text", choices=("auto", "always", "never"), default="auto")
    return parser


def generate() -> argparse.ArgumentParser:
    """Make the parser of ``rltok generate``."""
    parser = make_parser("generate", "commands/generate")
    add(parser, "prompt", "the text to continue, at least one byte; - is standard input", metavar="PROMPT")
    _add_model(parser, "--model", default=DEFAULT)
    add_count(parser, "--bytes", "to write (default: 200)", 0, default=200)
    warm = number("of at least 0", lambda value: 0.0 <= value < math.inf)
    add(parser, "--temperature", "0 takes the likeliest byte (default: 1)", warm, default=1.0)
    add_count(parser, "--top-k", "only the k likeliest bytes")
    share = number("in (0, 1]", lambda value: 0.0 < value <= 1.0)
    add(parser, "--top-p", "only the likeliest bytes that together have this probability", share)
    _add_drawing(parser)
    add(parser, "--show-boundaries", "write a | after each boundary", action="store_true")
    add(parser, "--raw", "write new bytes unescaped, without the prompt", action="store_true")
    return parser


def evaluate() -> argparse.ArgumentParser:
    """Make the parser of ``rltok eval``."""
    parser = make_parser("eval", "commands/evaluate")
    _add_model(parser)
    add(parser, "data", f"{_DATA} (default: a run's held-out text)", metavar="DATA", nargs="?")
    _add_column(parser)
    add_count(parser, "--bytes", "read at most so many, from the start (default: all)", 2)
    add_count(parser, "--windows", "at most so many, evenly spaced (default: all)")
    add_count(parser, "--context", f"bytes of a window (default: as the run was trained, or {CONTEXT})")
    stride = "bytes from one window to the next; fewer than --context give each byte more context (default: --context)"
    add_count(parser, "--stride", stride)
    add(parser, "--streamed", "read documents byte by byte without windows; slow", action="store_true")
    samples = "draw boundaries K times; report the cost of one draw, of all together, and thresholded"
    add_count(parser, "--samples", samples, metavar="K")
    add_count(parser, "--particles", "also report a tighter bound from K particles; slow", metavar="K")
    _add_drawing(parser)
    _add_json(parser)
    return parser


def tasks() -> argparse.ArgumentParser:
    """Make the parser of ``rltok tasks``."""
    parser = make_parser("tasks", "commands/tasks")
    _add_model(parser)
    add(parser, "tasks", f"of {', '.join(TASKS)}", metavar="TASK", nargs="+", choices=TASKS)
    add(parser, "--data", "folder of local files (default: the Hugging Face hub)", metavar="FOLDER")
    add_count(parser, "--limit", "the first so many examples of each (default: all)")
    add_count(parser, "--context", f"bytes read at most (default: as the run was trained, or {CONTEXT})")
    add_count(parser, "--samples", "draws of boundaries (default: 1)", default=1)
    _add_drawing(parser)
    _add_json(parser)
    return parser


def boundaries() -> argparse.ArgumentParser:
    """Make the parser of ``rltok boundaries``."""
    parser = make_parser("boundaries", "commands/boundaries")
    _add_model(parser, "models", nargs="+")
    text = "file, - for stdin, python-docs or python-code (default: the first run's held-out text)"
    add(parser, "--text", text, metavar="DATA")
    parser.set_defaults(data_argument="--text")
    add_count(parser, "--bytes", "read at most so many, from the start (default: all)", 2)
    rules = f"rules and tokenizers to compare with: {', '.join(REFERENCES)} (default: spacebyte)"
    add(parser, "--against", rules, nargs="+", metavar="NAME", default=["spacebyte"], choices=REFERENCES)
    add(parser, "--shift", "bytes to move a reference by (default: -1 0 1)", int, nargs="+")
    add_count(parser, "--tolerance", "bytes that partners may lie apart (default: 0)", 0, default=0)
    group = parser.add_argument_group("bpe and unigram", "trained on the first run's training text, at its rate")
    add(group, "--tokenizer", "use this tokenizer.json, or that of a run, instead", Path)
    add(group, "--train-on", "train on this text instead", metavar="FILE")
    add_count(group, "--vocabulary", "number of tokens (default: as many as give the same rate)", 257)
    _add_column(parser)
    _add_drawing(parser)
    _add_json(parser)
    return parser


def _baseline(word: str) -> str:
    """Read the current or an old name of a baseline."""
    return "none" if word == "discounted_return" else current_word("baseline", word)


def view() -> argparse.ArgumentParser:
    """Make the parser of ``rltok view``."""
    parser = make_parser("view", "commands/view", usage="%(prog)s MODEL [MODEL ...] [TEXT] [options]")
    models = (
        "folder of save_pretrained, of a run or of a checkpoint, or hub id; several are shown on the same text. TEXT "
    )
    models += f"is a file, - for stdin, {HELD_OUT} (of the first run), or one of {', '.join(BUILT_IN)}"
    add(parser, "models", models, metavar="MODEL", nargs="+")
    add(parser, "--text", "the text itself", metavar="STRING")
    parser.set_defaults(data_argument="TEXT")
    add(parser, "--out", "the page (default: %(default)s)", output_path, default=Path("boundaries.html"))
    add_count(parser, "--bytes", f"show at most so many, from the start (default: all, up to {MOST:,})", 2)
    context = f"bytes of a window (default: the shortest that the runs were trained with, or {CONTEXT})"
    add_count(parser, "--context", context)
    share = number("in [0, 1]", lambda value: 0.0 <= value <= 1.0)
    add(parser, "--gamma", f"discount of returns (default: the run's, or {GAMMA})", share)
    add(parser, "--reward", "default: the run's, with its price per boundary, or early_exit", choices=REWARDS)
    text = "baseline of the advantages (default: %(default)s)"
    words: dict[str, Any] = {"type": _baseline, "choices": BASELINES}
    parser.add_argument("--baseline", help=text, default="leave_one_out", **words)
    parser.add_argument("--estimator", help=argparse.SUPPRESS, dest="baseline", **words)
    draws = f"draws that {' and '.join(COMPARING)} compare, the shown one included (default: %(default)s)"
    add_count(parser, "--draws", draws, 2, default=4)
    _add_device(parser)
    _add_drawing(parser)
    return parser


def report() -> argparse.ArgumentParser:
    """Make the parser of ``rltok report``."""
    parser = make_parser("report", "commands/report")
    runs = "folder of a run, finished or not, of a comparison, or of several comparisons"
    add(parser, "runs", runs, Path, nargs="+", metavar="RUN")
    out = "folder of a comparison of several runs; pages of finished runs are kept, unless --also"
    add(parser, "--out", out, output_path)
    add(parser, "--each", "in a comparison, list runs separately that differ only in their seed", action="store_true")
    also = [extension for extension in FORMATS if extension != "png"]
    add(parser, "--also", "write figures in these formats, too", nargs="+", choices=also, default=[])
    return parser


def leaderboard() -> argparse.ArgumentParser:
    """Make the parser of ``rltok leaderboard``."""
    parser = make_parser("leaderboard", "commands/leaderboard")
    add(parser, "--results", "folder of results", Path, default=Path("experiments/results"))
    add(parser, "--out", "the page to write", output_path, default=Path("docs/leaderboard.md"))
    return parser


def demo() -> argparse.ArgumentParser:
    """Make the parser of ``rltok demo``."""
    parser = make_parser("demo", "demo/__main__")
    enough = number(f"of at least {LEAST_SECONDS}", lambda value: LEAST_SECONDS <= value < math.inf)
    add(parser, "--seconds", f"time of the demo (default: {SECONDS})", enough, default=SECONDS)
    add(parser, "--out", "folder to write to (default: runs/demo)", output_path, default=Path("runs/demo"))
    add(parser, "--quick", "a few updates: checks that everything runs, learns nothing", action="store_true")
    return parser


def _section(text: str) -> str:
    allowed = (*SECTIONS, *NAMED_ONLY)
    if text not in allowed:
        suggestion = did_you_mean(text, allowed) or f"; choose from {', '.join(allowed)}"
        raise argparse.ArgumentTypeError(f"must be a section, got {text!r}{suggestion}")
    return text


def info() -> argparse.ArgumentParser:
    """Make the parser of ``rltok info``."""
    return Parser(prog="rltok info", description="Print versions and devices.")


def bench() -> argparse.ArgumentParser:
    """Make the parser of ``rltok bench``."""
    parser = make_parser("bench", "bench/__init__")
    sections = f"of {', '.join(SECTIONS)} (default: all); {', '.join(NAMED_ONLY)} runs only if named"
    add(parser, "sections", sections, _section, nargs="*", metavar="section")
    add(parser, "--device", "where to run", default="cpu", choices=["cpu", "cuda"])
    add(parser, "--out", "folder of bench.md and bench.json", output_path)
    return parser


def rate_control() -> argparse.ArgumentParser:
    """Make the parser of ``rltok rate-control``."""
    parser = make_parser("rate-control", "studies/rate_control")
    add(parser, "--out", "folder of table and figure", output_path, default=Path("runs/rate-control"))
    add_count(parser, "--updates", "per run, at least 200 (default: 3000)", 200, default=3000)
    return parser


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "segment": segment,
    "generate": generate,
    "eval": evaluate,
    "tasks": tasks,
    "boundaries": boundaries,
    "view": view,
    "report": report,
    "leaderboard": leaderboard,
    "demo": demo,
    "bench": bench,
    "rate-control": rate_control,
    "info": info,
}
"""Parsers by command; those of ``train`` and ``estimators`` are Hydra's, that of ``lm-eval`` the harness's."""

"""Argument parsers of the commands. Nothing here imports torch, so that help and wrong options are answered at once."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rltok_rl.experiments.commands.schema import HERE, module_doc

from rltok_rl.renamed import current_word
from rltok_rl.utils import did_you_mean

# Names that the library defines beside torch; tests/experiments/test_cli.py compares them.
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
"""Bytes from which on ``rltok view`` shows a text only with ``--bytes``."""
GAMMA = 0.99
HELD_OUT = "held-out"
SECTIONS = (
    "sampler",
    "attention",
    "decoding",
    "environment",
    "estimators",
    "training",
    "packing",
    "processes",
    "peers",
)
"""Modules of :mod:`rltok_rl.experiments.bench` with ``rows(device)``; each needs its own packages only."""
NAMED_ONLY = ("compiled",)
"""Sections that take minutes and run only if named."""
SECONDS, LEAST_SECONDS = 270, 60
"""Time of the demo: default and minimum."""

DATA_HELP = (
    f"file, folder of documents, - for stdin, or one of {', '.join(BUILT_IN)}; of Parquet and JSON lines every "
    f"row is a document, any other file is one as it stands"
)
_MODELS = f"folder of save_pretrained, folder of a run, hub id, or {', '.join(PACKAGED)}, which comes with the package"


def whole_number(minimum: int) -> Callable[[str], int]:
    """Make a type for argparse: integers of at least ``minimum``.

    Args:
        minimum: the least that is allowed.

    Example:
        >>> whole_number(1)("20")
        20
    """

    def parse(text: str) -> int:
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, got {text!r}")
        return value

    return parse


def number(described: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Make a type for argparse: numbers in a range.

    Args:
        described: the range, for the message.
        allowed: whether a number is in it; NaN must not be.

    Example:
        >>> number("in [0, 1]", lambda value: 0 <= value <= 1)("0.5")
        0.5
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"must be a number {described}, got {text!r}")
        return value

    return parse


def output_path(text: str) -> Path:
    """Return the path of an output; an empty one would scatter files over the working folder.

    Args:
        text: as typed.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must be a path, got {text!r}")
    return Path(text)


class _Parser(argparse.ArgumentParser):
    """Names an unknown flag, with a suggestion, before it asks for arguments that are missing."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        flags = [flag for action in self._actions for flag in action.option_strings]
        for word in itertools.takewhile(lambda one: one != "--", sys.argv[1:] if args is None else args):
            typed = str(word).partition("=")[0]
            # argparse takes words with spaces as text
            if typed.startswith("--") and " " not in word and not any(flag.startswith(typed) for flag in flags):
                self.error(f"unrecognized arguments: {typed}{did_you_mean(typed, flags)}")
        return super().parse_known_args(args, namespace)


def _make(command: str, module: str, **options: Any) -> argparse.ArgumentParser:
    """A parser whose description is the docstring of the command's module."""
    return _Parser(
        prog=f"rltok {command}",
        description=module_doc(HERE / f"{module}.py"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )


def _add_model(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    how: dict[str, Any] = {"metavar": "MODEL", "help": _MODELS}
    if several:
        parser.add_argument("models", nargs="+", **how)
    else:
        parser.add_argument("model", **how)
    _add_device(parser)


def _add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", default=DEFAULT, help=f"{_MODELS} (default: {DEFAULT})")
    parser.set_defaults(model_argument="--model")
    _add_device(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="where to run it: cpu (default), cuda, cuda:1, mps")
    text = "import and execute the custom segmenter, module:Class, that the files of MODEL name (default: refuse)"
    parser.add_argument("--trust-code", action="store_true", help=text)


def _add_drawing(parser: argparse.ArgumentParser) -> None:
    """Declare how boundaries are drawn."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--seed", type=whole_number(0), default=0, help="of all random numbers (default: 0)")
    how.add_argument("--greedy", action="store_true", help="a boundary where its probability exceeds one half")
    text = "boundaries per byte to aim at, for models with rate_embedding (default: the configured rate)"
    parser.add_argument("--rate", type=number("between 0 and 1", lambda value: 0.0 < value < 1.0), help=text)


def _add_column(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--column", help="where tables have their text (default: text, or else content)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write all metrics as one JSON object")


def segment() -> argparse.ArgumentParser:
    """Make the parser of ``rltok segment``."""
    parser = _make("segment", "commands/segment")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="what to read; - (default) is standard input")
    parser.add_argument("--file", help="read this file instead")
    _add_model_option(parser)
    _add_drawing(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="what to write (default: text)")
    parser.add_argument("--colour", choices=("auto", "always", "never"), default="auto", help="of text")
    return parser


def generate() -> argparse.ArgumentParser:
    """Make the parser of ``rltok generate``."""
    parser = _make("generate", "commands/generate")
    parser.add_argument("prompt", metavar="PROMPT", help="what to continue, at least one byte; - is stdin")
    _add_model_option(parser)
    parser.add_argument("--bytes", type=whole_number(0), default=200, help="how many to write (default: 200)")
    warm = number("of at least 0", lambda value: 0.0 <= value < math.inf)
    parser.add_argument("--temperature", type=warm, default=1.0, help="0 takes the likeliest byte (default: 1)")
    parser.add_argument("--top-k", type=whole_number(1), help="only the k likeliest bytes")
    share = number("in (0, 1]", lambda value: 0.0 < value <= 1.0)
    parser.add_argument("--top-p", type=share, help="only the likeliest bytes that together have this probability")
    _add_drawing(parser)
    parser.add_argument("--show-boundaries", action="store_true", help="write a | after each boundary")
    parser.add_argument("--raw", action="store_true", help="write new bytes as they are, without the prompt")
    return parser


def evaluate() -> argparse.ArgumentParser:
    """Make the parser of ``rltok eval``."""
    parser = _make("eval", "commands/evaluate")
    _add_model(parser)
    help_ = f"{DATA_HELP}; a run's own held-out text may be left out"
    parser.add_argument("data", metavar="DATA", nargs="?", help=help_)
    _add_column(parser)
    parser.add_argument("--bytes", type=whole_number(2), help="read so many at most, from the start (default: all)")
    parser.add_argument("--windows", type=whole_number(1), help="so many at most, evenly spread (default: all)")
    help_ = f"bytes of a window (default: as the run was trained, or {CONTEXT})"
    parser.add_argument("--context", type=whole_number(1), help=help_)
    help_ = "bytes from one window to the next; fewer than --context leave more before each (default: --context)"
    parser.add_argument("--stride", type=whole_number(1), help=help_)
    help_ = "no windows: whole documents byte by byte, each byte after all before it; slow"
    parser.add_argument("--streamed", action="store_true", help=help_)
    help_ = "draw boundaries K times; report the cost of one draw, of all together, and thresholded"
    parser.add_argument("--samples", type=whole_number(1), metavar="K", help=help_)
    help_ = "one more metric, a tighter bound: K readings side by side, of which likely ones branch; slow"
    parser.add_argument("--particles", type=whole_number(1), metavar="K", help=help_)
    _add_drawing(parser)
    _add_json(parser)
    return parser


def tasks() -> argparse.ArgumentParser:
    """Make the parser of ``rltok tasks``."""
    parser = _make("tasks", "commands/tasks")
    _add_model(parser)
    parser.add_argument("tasks", metavar="TASK", nargs="+", choices=TASKS, help=f"of {', '.join(TASKS)}")
    parser.add_argument("--data", metavar="FOLDER", help="folder of local files (default: the Hugging Face hub)")
    parser.add_argument("--limit", type=whole_number(1), help="the first so many examples of each (default: all)")
    help_ = f"bytes read at most (default: as the run was trained, or {CONTEXT})"
    parser.add_argument("--context", type=whole_number(1), help=help_)
    help_ = "how often boundaries are drawn (default: 1)"
    parser.add_argument("--samples", type=whole_number(1), default=1, help=help_)
    _add_drawing(parser)
    _add_json(parser)
    return parser


def boundaries() -> argparse.ArgumentParser:
    """Make the parser of ``rltok boundaries``."""
    parser = _make("boundaries", "commands/boundaries")
    _add_model(parser, several=True)
    help_ = "file, - for stdin, python-docs or python-code (default: what a run held out)"
    parser.add_argument("--text", metavar="DATA", help=help_)
    parser.set_defaults(data_argument="--text")
    parser.add_argument("--bytes", type=whole_number(2), help="read so many at most, from the start (default: all)")
    help_ = f"rules and tokenizers to compare with: {', '.join(REFERENCES)} (default: spacebyte)"
    parser.add_argument("--against", nargs="+", metavar="NAME", default=["spacebyte"], choices=REFERENCES, help=help_)
    parser.add_argument("--shift", type=int, nargs="+", help="bytes to move a reference by (default: -1 0 1)")
    help_ = "bytes that partners may lie apart (default: 0)"
    parser.add_argument("--tolerance", type=whole_number(0), default=0, help=help_)
    pieces = parser.add_argument_group("bpe and unigram", "trained on what the first run was trained on, at its rate")
    pieces.add_argument("--tokenizer", type=Path, help="take a tokenizer.json, or that of a run, instead")
    pieces.add_argument("--train-on", metavar="FILE", help="train on this text instead")
    pieces.add_argument("--vocabulary", type=whole_number(257), help="pieces (default: as many as give the same rate)")
    _add_column(parser)
    _add_drawing(parser)
    _add_json(parser)
    return parser


def _baseline(word: str) -> str:
    """Read the current or an old name of a baseline."""
    return "none" if word == "discounted_return" else current_word("baseline", word)


def view() -> argparse.ArgumentParser:
    """Make the parser of ``rltok view``."""
    parser = _make("view", "commands/view", usage="%(prog)s MODEL [MODEL ...] [TEXT] [options]")
    help_ = "folder of save_pretrained, of a run or of a checkpoint, or hub id; several are shown on the same text"
    help_ += f". TEXT is a file, - for stdin, {HELD_OUT} (of the first run), or one of {', '.join(BUILT_IN)}"
    parser.add_argument("models", metavar="MODEL", nargs="+", help=help_)
    parser.add_argument("--text", metavar="STRING", help="the text itself")
    parser.set_defaults(data_argument="TEXT")
    parser.add_argument(
        "--out", type=output_path, default=Path("boundaries.html"), help="the page (default: %(default)s)"
    )
    help_ = f"show so many at most, from the start (default: all, of texts of up to {MOST:,})"
    parser.add_argument("--bytes", type=whole_number(2), help=help_)
    help_ = f"bytes of a window (default: the shortest that the runs were trained with, or {CONTEXT})"
    parser.add_argument("--context", type=whole_number(1), help=help_)
    share = number("in [0, 1]", lambda value: 0.0 <= value <= 1.0)
    parser.add_argument("--gamma", type=share, help=f"discount of returns (default: the run's, or {GAMMA})")
    help_ = "default: the run's, its price per boundary included, or early_exit"
    parser.add_argument("--reward", choices=REWARDS, help=help_)
    help_ = "baseline of the advantages (default: %(default)s)"
    parser.add_argument("--baseline", type=_baseline, choices=BASELINES, default="leave_one_out", help=help_)
    parser.add_argument("--estimator", type=_baseline, choices=BASELINES, dest="baseline", help=argparse.SUPPRESS)
    help_ = f"passes that {' and '.join(COMPARING)} compare, the shown one included (default: %(default)s)"
    parser.add_argument("--draws", type=whole_number(2), default=4, help=help_)
    _add_device(parser)
    _add_drawing(parser)
    return parser


def report() -> argparse.ArgumentParser:
    """Make the parser of ``rltok report``."""
    parser = _make("report", "commands/report")
    help_ = "folder of a run, finished or not, of a comparison, or of several comparisons"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=help_)
    help_ = "folder of the comparison, with several runs; pages of finished runs are left as they are, unless --also"
    parser.add_argument("--out", type=output_path, help=help_)
    help_ = "in a comparison, list runs separately that differ in nothing but their seed"
    parser.add_argument("--each", action="store_true", help=help_)
    also = [one for one in FORMATS if one != "png"]
    parser.add_argument("--also", nargs="+", choices=also, default=[], help="write figures in these formats, too")
    return parser


def leaderboard() -> argparse.ArgumentParser:
    """Make the parser of ``rltok leaderboard``."""
    parser = _make("leaderboard", "commands/leaderboard")
    parser.add_argument("--results", type=Path, default=Path("experiments/results"), help="folder of results")
    parser.add_argument("--out", type=output_path, default=Path("docs/leaderboard.md"), help="the page to write")
    return parser


def demo() -> argparse.ArgumentParser:
    """Make the parser of ``rltok demo``."""
    parser = _make("demo", "demo/__main__")
    enough = number(f"of at least {LEAST_SECONDS}", lambda value: LEAST_SECONDS <= value < math.inf)
    parser.add_argument("--seconds", type=enough, default=SECONDS, help=f"for all of it (default: {SECONDS})")
    parser.add_argument(
        "--out", type=output_path, default=Path("runs/demo"), help="folder to write to (default: runs/demo)"
    )
    parser.add_argument("--quick", action="store_true", help="a few updates: shows that all works, and learns nothing")
    return parser


def _section(text: str) -> str:
    allowed = (*SECTIONS, *NAMED_ONLY)
    if text not in allowed:
        meant = did_you_mean(text, allowed) or f"; choose from {', '.join(allowed)}"
        raise argparse.ArgumentTypeError(f"must be a section, got {text!r}{meant}")
    return text


def info() -> argparse.ArgumentParser:
    """Make the parser of ``rltok info``."""
    return _Parser(prog="rltok info", description="Print versions and devices.")


def bench() -> argparse.ArgumentParser:
    """Make the parser of ``rltok bench``."""
    parser = _make("bench", "bench/__init__")
    help_ = f"which to run, of {', '.join(SECTIONS)}; default all; by name alone {', '.join(NAMED_ONLY)}"
    parser.add_argument("sections", nargs="*", type=_section, metavar="section", help=help_)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to run")
    parser.add_argument("--out", type=output_path, help="a folder to write bench.md and bench.json to")
    return parser


def rate_control() -> argparse.ArgumentParser:
    """Make the parser of ``rltok rate-control``."""
    parser = _make("rate-control", "studies/rate_control")
    parser.add_argument("--out", type=output_path, default=Path("runs/rate-control"), help="folder of table and figure")
    help_ = "updates per run, at least 200 (default: 3000)"
    parser.add_argument("--updates", type=whole_number(200), default=3000, help=help_)
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

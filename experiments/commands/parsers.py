"""Argument parsers of the commands. Nothing here imports torch, so that help and wrong options are answered at once."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rltok_rl.envs.registration import ENVIRONMENTS

from rltok_rl.renamed import current_word
from rltok_rl.utils import did_you_mean, is_import_path, printable

# Names that the library defines in modules that import torch; tests/experiments/test_cli.py compares them.
PACKAGED = ("pocket", "recall-world", "lexicon-world")
BUILT_IN = ("python-code", "python-docs")
REWARDS = ("early_exit", "log_likelihood", "entropy_relative", "relative")
BASELINES = ("none", "batch_mean", "leave_one_out", "z_score")
COMPARING = ("batch_mean", "leave_one_out")
CREDITED = (
    *("raw", "batch", "early", "paper", "leave_one_out", "entropy_relative", "z_score", "running_mean", "natural"),
    *("regression", "group_mean_2", "group_mean_4", "group_mean_8", "local_flips", "local_flips_far", "token_gain"),
)
TASKS = ("piqa", "hellaswag", "arc_easy", "lambada_openai")
REFERENCES = ("spacebyte", "whitespace", "bpe", "unigram", "uniform", "stride", "random", "bernoulli")
FORMATS = ("png", "pdf", "svg")
POLICIES = ("learned", "random", "uniform", "never", "always")

DEFAULT = "pocket"
"""The model of ``rltok segment`` and ``rltok generate``, unless ``--model`` names another."""
PLAYED = "rltok_rl/ByteBoundary-v1"
"""The environment of ``rltok play``."""
CONTEXT = 256
"""Bytes of a window, for models that are no runs."""
MOST = 1_000_000
"""Bytes above which ``rltok view`` needs ``--bytes``."""
GAMMA = 0.99
WINDOW = 96
"""Bytes of a text of ``rltok credit``."""
HELD_OUT = "held-out"
SECTIONS = (
    *("sampler", "attention", "decoding", "environment", "throughput", "estimators"),
    *("counts", "updates", "training", "packing", "processes", "peers", "large"),
)
"""Sections of :mod:`rltok_rl.experiments.bench`."""
NAMED_ONLY = ("compiled",)
"""Sections that take minutes and run only if named."""
SECONDS, LEAST_SECONDS = 270, 60
"""Time of the demo: default and minimum."""

_MOST_SHOWN = 4000  # characters of an error
_MODELS = f"folder of save_pretrained, folder of a run, hub id, or {', '.join(PACKAGED)} (packaged models)"


def quiet(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command: it writes what its terminal can show, and ends quietly if its reader does (``head``)."""

    @functools.wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            status = main(arguments)
            sys.stdout.flush()
            return status
        except BrokenPipeError:  # Python flushes at exit, which must not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt:
            return 130

    return run


def command(name: str, description: str | None) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """Decorate the ``main`` of ``rltok NAME``, a function of its parser and options that may return a status."""

    def decorate(run: Callable[..., int | None]) -> Callable[..., int]:
        def main(arguments: list[str] | None = None) -> int:
            parser = make_parser(name, description)
            options = parser.parse_args(arguments)
            try:
                return run(parser, options) or 0
            except ValueError as error:
                from rltok_rl.sampling.sampler import NotFiniteError  # takes seconds to import

                if not isinstance(error, NotFiniteError):
                    raise
                models = vars(options).get("models") or [vars(options).get("model")]
                parser.error(f"the weights of {' or '.join(map(str, models))} are too large, logits overflow: {error}")

        return main

    return decorate


def _count(minimum: int) -> Callable[[str], int]:
    """Integers of at least ``minimum``."""

    def parse(text: str) -> int:
        value = int(text.replace("_", "")) if re.fullmatch(r"-?[\d_]*\d", text) else minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, got {text!r}")
        return value

    return parse


def _number(described: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Numbers in a range; ``allowed`` must be false for nan."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"must be a number {described}, got {text!r}")
        return value

    return parse


def _output(text: str) -> Path:
    """A path; an empty one would scatter files over the working folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must be a path, got {text!r}")
    return Path(text)


def _section(text: str) -> str:
    allowed = (*SECTIONS, *NAMED_ONLY)
    if text not in allowed:
        suggestion = did_you_mean(text, allowed) or f"; choose from {', '.join(allowed)}"
        raise argparse.ArgumentTypeError(f"must be a section, got {text!r}{suggestion}")
    return text


def _baseline(word: str) -> str:
    """The current or an old name of a baseline."""
    return "none" if word == "discounted_return" else current_word("baseline", word)


def _reward(word: str) -> str:
    """A word of the library, or an import path."""
    if word not in REWARDS and not is_import_path(word):
        raise argparse.ArgumentTypeError(f"must be {_REWARD}, got {word!r}{did_you_mean(word, REWARDS)}")
    return word


def _credited(text: str) -> tuple[str, float | None]:
    """An estimator, and its discount if ``NAME@GAMMA`` has one."""
    name, at, gamma = text.partition("@")
    if name not in CREDITED and not is_import_path(name):
        suggestion = did_you_mean(name, CREDITED) or f"; choose from {', '.join(CREDITED)}"
        raise argparse.ArgumentTypeError(f"must be an estimator, or module:Class, got {name!r}{suggestion}")
    return name, _SHARE(gamma) if at else None


class Parser(argparse.ArgumentParser):
    """Reports an unknown flag, with a suggestion, before missing arguments."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Check the flags, then parse as argparse does."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        for word in itertools.takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args):
            typed = str(word).partition("=")[0]
            # argparse takes words with spaces as text
            if typed.startswith("--") and " " not in word and not any(flag.startswith(typed) for flag in flags):
                self.error(f"unrecognized arguments: {typed}{did_you_mean(typed, flags)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the command with a line that no file's name or content can break or fill the screen with."""
        super().error(printable(message)[:_MOST_SHOWN])


Option = tuple[str, dict[str, Any]]


def option(name: str, help: str, least: int | None = None, **options: Any) -> Option:
    """Describe an argument or option of ``add_argument``; with ``least``, an integer of at least this."""
    return name, {"help": help, **({} if least is None else {"type": _count(least)}), **options}


def flag(name: str, help: str) -> Option:
    """Describe an option without a value."""
    return option(name, help, action="store_true")


def _model(name: str = "model", **options: Any) -> list[Option]:
    text = "import and execute the custom segmenter, module:Class, that the files of MODEL name (default: refuse)"
    return [
        option(name, _MODELS, metavar="MODEL", **options),
        option("--device", "where to run it: cpu (default), cuda, cuda:1, mps", default="cpu"),
        flag("--trust-code", text),
    ]


_OPEN_SHARE = _number("between 0 and 1", lambda value: 0.0 < value < 1.0)
_POSITIVE_SHARE = _number("in (0, 1]", lambda value: 0.0 < value <= 1.0)
_SHARE = _number("in [0, 1]", lambda value: 0.0 <= value <= 1.0)
_NOT_NEGATIVE = _number("of at least 0", lambda value: 0.0 <= value < math.inf)
_SECONDS = _number(f"of at least {LEAST_SECONDS}", lambda value: LEAST_SECONDS <= value < math.inf)
_REWARD = f"{', '.join(REWARDS)}, or a custom module:function"
_WORDS: dict[str, Any] = {"type": _baseline, "choices": BASELINES, "default": "leave_one_out"}
_DRAWING = (
    option("--seed", "of all random numbers (default: 0)", 0, default=0),
    flag("--greedy", "a boundary if its probability exceeds one half"),
    option("--rate", "target of boundaries per byte, for models with rate_embedding", type=_OPEN_SHARE),
)
_SECTIONS = f"of {', '.join((*SECTIONS, *NAMED_ONLY))}"
_AGAINST = f"rules and tokenizers to compare with: {', '.join(REFERENCES)} (default: spacebyte)"
_POLICIES = f"{', '.join(POLICIES)}, module:function, or a file of Stable-Baselines3"
_CREDITED = (
    f"of {', '.join(CREDITED)}, or module:Class, with a discount of its own after @ (default: all but regression, "
    "which is slow)"
)
_COLUMN = option("--column", "text column of tables (default: text, else content)")
_TRUST_DATA = flag("--trust-data", "read the text that a run's config.yaml names, also if you never trained on it here")
_JSON = flag("--json", "write all metrics as one JSON object")
_BYTES = option("--bytes", "read at most so many, from the start (default: all)", 2)
_WINDOW = option("--context", f"bytes of a window (default: as the run was trained, or {CONTEXT})", 1)

OPTIONS: dict[str, list[Option]] = {
    "segment": [
        option("text", "the text; - (default) is standard input", metavar="TEXT", nargs="?"),
        option("--file", "read this file instead"),
        *_model("--model", default=DEFAULT),
        *_DRAWING,
        option("--format", "of the output (default: text)", choices=("text", "json"), default="text"),
        option("--colour", "of text", choices=("auto", "always", "never"), default="auto"),
    ],
    "generate": [
        option("prompt", "the text to continue, at least one byte; - is standard input", metavar="PROMPT"),
        *_model("--model", default=DEFAULT),
        option("--bytes", "to write (default: 200)", 0, default=200),
        option("--temperature", "0 takes the likeliest byte (default: 1)", type=_NOT_NEGATIVE, default=1.0),
        option("--top-k", "only the k likeliest bytes", 1),
        option("--top-p", "only the likeliest bytes that together have this probability", type=_POSITIVE_SHARE),
        *_DRAWING,
        flag("--show-boundaries", "write a | after each boundary"),
        flag("--raw", "write new bytes unescaped, without the prompt"),
    ],
    "eval": [
        *_model(),
        option(
            "data",
            f"file, folder of documents, - for stdin, or one of {', '.join(BUILT_IN)}; every row of Parquet or "
            "JSON lines is a document, as is any other file (default: a run's held-out text)",
            metavar="DATA",
            nargs="?",
        ),
        *(_COLUMN, _BYTES, _TRUST_DATA, _WINDOW),
        option("--windows", "at most so many, evenly spaced (default: all)", 1),
        option("--stride", "bytes from one window to the next; fewer give more context (default: --context)", 1),
        flag("--streamed", "read documents byte by byte without windows; slow"),
        option("--samples", "also report the cost of K draws of boundaries together, and thresholded", 1, metavar="K"),
        option("--particles", "also report a tighter bound from K particles; slow", 1, metavar="K"),
        *(*_DRAWING, _JSON),
    ],
    "tasks": [
        *_model(),
        option("tasks", f"of {', '.join(TASKS)}", metavar="TASK", nargs="+", choices=TASKS),
        option("--data", "folder of local files (default: the Hugging Face hub)", metavar="FOLDER"),
        option("--limit", "the first so many examples of each (default: all)", 1),
        option("--samples", "draws of boundaries (default: 1)", 1, default=1),
        *(_WINDOW, *_DRAWING, _JSON),
    ],
    "boundaries": [
        *_model("models", nargs="+"),
        option("--text", "file, - for stdin, or a name (default: the first run's held-out text)", metavar="DATA"),
        *(_BYTES, _TRUST_DATA),
        option("--against", _AGAINST, nargs="+", metavar="NAME", default=["spacebyte"], choices=REFERENCES),
        option("--shift", "bytes to move a reference by (default: -1 0 1)", type=int, nargs="+"),
        option("--tolerance", "bytes that partners may lie apart (default: 0)", 0, default=0),
        option("--tokenizer", "tokenizer.json, or a run with one (default: trained as the first run)", type=Path),
        option("--train-on", "train bpe and unigram on this text instead", metavar="FILE"),
        option("--vocabulary", "tokens of bpe and unigram (default: as many as give the same rate)", 257),
        *(_COLUMN, *_DRAWING, _JSON),
    ],
    "credit": [
        *_model(),
        option("--text", "the text itself", metavar="STRING"),
        option("--file", "draw the text from this file, folder, - or name (default: a run's held-out text)"),
        *(_COLUMN, _TRUST_DATA, option("--bytes", f"of the text that is drawn (default: {WINDOW})", 3)),
        option("--estimators", _CREDITED, type=_credited, nargs="+", metavar="NAME[@GAMMA]"),
        option("--gamma", f"discount of the truth and the estimators (default: the run's, or {GAMMA})", type=_SHARE),
        option("--draws", "of the text's boundaries (default: %(default)s)", 3, default=6),
        option("--rows", "of a batch; the others read other windows (default: %(default)s)", 2, default=16),
        option("--out", "folder to write to (default: runs/credit)", type=_output, default=Path("runs/credit")),
        *(_DRAWING[0], _JSON),
    ],
    "view": [
        *_model("models", nargs="+"),
        option("--text", "the text itself", metavar="STRING"),
        _TRUST_DATA,
        option("--out", "the page (default: %(default)s)", type=_output, default=Path("boundaries.html")),
        option("--bytes", f"show at most so many, from the start (default: all, up to {MOST:,})", 2),
        option("--context", f"bytes of a window (default: the runs' shortest, or {CONTEXT})", 1),
        option("--gamma", f"discount of returns (default: the run's, or {GAMMA})", type=_SHARE),
        option("--reward", f"{_REWARD} (default: the run's, with its price per boundary, or early_exit)", type=_reward),
        option("--baseline", "baseline of the advantages (default: %(default)s)", **_WORDS),
        option("--estimator", argparse.SUPPRESS, dest="baseline", **_WORDS),
        option("--draws", f"draws that {' and '.join(COMPARING)} compare (default: %(default)s)", 2, default=4),
        *_DRAWING,
    ],
    "play": [
        option("--env", "id of the environment (default: %(default)s)", choices=[*ENVIRONMENTS], default=PLAYED),
        *_model("--model"),
        option("--policy", f"{_POLICIES} (default: learned)", default="learned"),
        option("--reference", "what to compare with, as --policy (default: uniform)", default="uniform"),
        option("--text", f"file, folder, - for stdin, or a name of {', '.join(BUILT_IN)} (default: the environment's)"),
        option("--episodes", "texts to read (default: 64)", 1, default=64),
        option("--steps", "decisions per text (default: that of the environment)", 1),
        option("--price", "nats per boundary (default: that of the environment)", type=_NOT_NEGATIVE),
        option("--seed", "of texts and decisions (default: 0)", 0, default=0),
        flag("--greedy", "the likelier action instead of a drawn one"),
        flag("--json", "write the table and the return of each text as one JSON object"),
    ],
    "report": [
        option(
            "runs",
            "folder of a run, finished or not, a sweep, or comparisons",
            type=Path,
            nargs="+",
            metavar="RUN",
        ),
        option("--out", "folder of a comparison of several runs; finished runs keep their pages", type=_output),
        flag("--each", "in a comparison, list runs separately that differ only in their seed"),
        option("--earlier", "compare-seeds.json of the same systems, to add seeds whose runs are elsewhere", type=Path),
        option("--also", "write figures in these formats, too", nargs="+", choices=FORMATS[1:], default=[]),
    ],
    "check": [option("runs", "folder of a run, finished or not", type=Path, nargs="+", metavar="RUN")],
    "leaderboard": [
        option("action", "check runs and add them first", nargs="?", choices=["add"], metavar="add"),
        option("runs", "folders of the seeds of an entry", type=Path, nargs="*", metavar="RUN"),
        flag("--new-table", "start a table with them, if none has their text and budget"),
        option("--results", "folder of results", type=Path, default=Path("experiments/results")),
        option("--out", "the page to write", type=_output, default=Path("docs/leaderboard.md")),
    ],
    "demo": [
        option("--seconds", f"time of the demo (default: {SECONDS})", type=_SECONDS, default=SECONDS),
        option("--out", "folder to write to (default: runs/demo)", type=_output, default=Path("runs/demo")),
        flag("--quick", "a few updates: checks that everything runs, learns nothing"),
    ],
    "bench": [
        option("sections", f"{_SECTIONS} (default: all but the last)", type=_section, nargs="*", metavar="section"),
        option("--device", "where to run", default="cpu", choices=["cpu", "cuda"]),
        option("--out", "folder of bench.md and bench.json", type=_output),
    ],
    "rate-control": [
        option("--out", "folder of table and figure", type=_output, default=Path("runs/rate-control")),
        option("--updates", "per run, at least 200 (default: 3000)", 200, default=3000),
    ],
    "info": [],
}
"""Options by command. Those of ``train`` and ``estimators`` are Hydra's, those of ``lm-eval`` the harness's."""


def make_parser(name: str, description: str | None) -> Parser:
    """Make the parser of ``rltok NAME``.

    Example:
        >>> make_parser("tasks", "").parse_args(["pocket", "piqa"]).samples
        1
    """
    raw = argparse.RawDescriptionHelpFormatter
    usage = "%(prog)s MODEL [MODEL ...] [TEXT] [options]" if name == "view" else None
    parser = Parser(prog=f"rltok {name}", usage=usage, description=description, formatter_class=raw)
    drawing: Any = parser.add_mutually_exclusive_group() if _DRAWING[0] in OPTIONS[name] else None
    for option_name, options in OPTIONS[name]:
        exclusive = drawing is not None and option_name in ("--seed", "--greedy")
        (drawing if exclusive else parser).add_argument(option_name, **options)
    parser.set_defaults(model_argument="--model" if name in ("segment", "generate", "play") else "MODEL")
    data = {"boundaries": "--text", "credit": "--file", "play": "--text", "view": "TEXT"}
    parser.set_defaults(data_argument=data.get(name, "DATA"))
    return parser

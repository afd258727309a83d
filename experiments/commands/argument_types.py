"""Types, suggestions and declarations of command-line arguments, on argparse alone."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rltok_rl.experiments.commands.schema import HERE, module_doc

from rltok_rl.utils import did_you_mean


def whole_number(minimum: int) -> Callable[[str], int]:
    """Make a type for argparse: integers of at least ``minimum``.

    Example:
        >>> whole_number(1)("20")
        20
    """

    def parse(text: str) -> int:
        value = int(text.replace("_", "")) if re.fullmatch(r"-?[\d_]*\d", text) else minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {minimum}, got {text!r}")
        return value

    return parse


def number(described: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    """Make a type for argparse: numbers in a range.

    Args:
        described: the range, for the message.
        allowed: whether a number is in the range; NaN must not be.

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
    """Return the path of an output; an empty one would scatter files over the working folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"must be a path, got {text!r}")
    return Path(text)


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


def make_parser(command: str, module: str, **options: Any) -> argparse.ArgumentParser:
    """Make a parser whose description is the docstring of the command's module."""
    description, raw = module_doc(HERE / f"{module}.py"), argparse.RawDescriptionHelpFormatter
    return Parser(prog=f"rltok {command}", description=description, formatter_class=raw, **options)


def add(parser: Any, name: str, help: str, kind: Any = None, **options: Any) -> None:
    """Declare an argument or option.

    Args:
        parser: a parser or a group of one.
        name: with dashes for an option.
        help: in one line.
        kind: reads the value; default: the text.
        options: of ``add_argument``.
    """
    parser.add_argument(name, help=help, **({"type": kind} if kind else {}), **options)


def add_count(parser: Any, name: str, help: str, least: int = 1, **options: Any) -> None:
    """Declare an option that counts something: an integer of at least ``least``."""
    add(parser, name, help, whole_number(least), **options)

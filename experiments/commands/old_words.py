"""Replace renamed words on a command line, before Hydra composes it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from rltok_rl.experiments.run_config import GROUPS

from rltok_rl.renamed import OPTIONS, current_word

KINDS = {**{group: group for group in (*GROUPS, "experiment")}, **OPTIONS}
KINDS |= {"estimators": "candidate", "sweep": "candidate", "compare.systems": "segmenter"}
KINDS |= {"segmenter.name": "segmenter", "model.preset": "model"}
"""Groups and options whose values may be old words, and the kind of the words."""
HYPHENS = ("data", "experiment", "model", "optim", "segmenter")
"""Kinds of words with hyphens: they name systems and settings. Words of other kinds name functions: underscores."""
_noted: set[str] = set()


def current_overrides(arguments: Sequence[str]) -> list[str]:
    """Return a command line with the current words in place of old ones; print one line for each change.

    Args:
        arguments: ``name=value`` as Hydra takes them, sweeps included.

    Example:
        >>> current_overrides(["estimator=discounted_return", "baseline=none,leave_one_out", "seed=1"])
        ['estimator=discounted_return', 'baseline=none,leave_one_out', 'seed=1']
    """
    return [_current_override(argument) for argument in arguments]


def _current_override(argument: str) -> str:
    name, equals, value = argument.partition("=")
    kind = KINDS.get(name.lstrip("+~"))
    if kind is None:
        return argument
    current = name + equals + re.sub(r"[^\s,'\"\[\]]+", lambda word: _current_choice(kind, word[0]), value)
    main = os.environ.get("RANK", "0") == "0"  # every process reads the same command line
    if current != argument and main and argument not in _noted:
        _noted.add(argument)
        print(f"note: {argument} is now {current}", file=sys.stderr)
    return current


def _current_choice(kind: str, word: str) -> str:
    if not re.fullmatch(r"[\w-]+", word):
        return word  # module:Name, a path, or an interpolation
    return current_word(kind, word.replace("_", "-") if kind in HYPHENS else word.replace("-", "_"))

"""Explain errors of Hydra and OmegaConf in one line: the name, what it must be, what was given, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException, OverrideParseException

from rltok_rl.utils import did_you_mean

_TYPES = {int: "an int", float: "a float", bool: "true or false", str: "a string"}
_NOISE = ("full_key:", "object_type=", "reference_type=", "Config search path", "provider=")


def explain(error: Exception, types: Mapping[str, Any], names: Sequence[str]) -> str:
    """Shorten an error of Hydra to one line: the name, what it must be, what was given, the nearest name.

    Args:
        error: of Hydra or OmegaConf.
        types: of all options.
        names: options and groups.
    """
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, word = (error.missing_cfg_file or "").rpartition("/")
        allowed = [option for option in error.options if option != "schema"]
        return f"{group} must be one of {allowed}, got {word!r}{did_you_mean(word, allowed)}"
    if unknown := re.match(r"Could not override '([^']*)'", str(error)):
        return f"there is no option {unknown[1]!r}{nearest(unknown[1], names)}"
    merged = re.match(r"Error merging override (.*)", str(error))
    if merged and (name := merged[1].lstrip("+").partition("=")[0]) in types:
        return _wrong_type(name, merged[1].partition("=")[2], types[name])
    cause = error.__cause__ if merged else error
    lines = [line.strip() for line in str(cause).splitlines()]
    text = "; ".join(line.rstrip(".;") for line in lines if line and not line.startswith(_NOISE))
    option = getattr(cause, "full_key", None)
    return f"{option}: {text}" if option else text


def _wrong_type(name: str, text: str, kind: Any) -> str:
    value = OverridesParser.create().parse_override(f"{name}={text}").value()
    described, mend = _described(kind), ""
    if "list" in described and not isinstance(value, (list, dict)):
        mend = f"; write {name}=[{text}]"
    elif "dict" in described:
        mend = f"; write {name}.NAME=VALUE"
    return f"{name} must be {described}, got {repr(value) if isinstance(value, str) else text}{mend}"


def _described(kind: Any) -> str:
    """Describe a type in words."""
    if kind in _TYPES:
        return _TYPES[kind]
    inner = get_args(kind)
    if type(None) in inner:
        return f"{_described(inner[0])} or null"
    if str(kind).startswith("list["):
        return f"a list of {inner[0].__name__.replace('str', 'string')}s"
    return "a dict of dicts" if str(kind).count("dict[") > 1 else "a dict"


def one_value(sweep: Override, types: Mapping[str, Any]) -> str:
    """Explain several values for one option without ``--multirun``."""
    name, _, text = (sweep.input_line or "").lstrip("+").partition("=")
    message = f"{name} must be one value without --multirun, got {text}; add --multirun for a run each"
    kind = types.get(name)
    return (
        f"{message}, or write \"{name}='{text}'\" for one text with commas"
        if str in (kind, *get_args(kind))
        else message
    )


def _unreadable(text: str) -> str:
    """Explain an override that Hydra's parser rejects."""
    name, _, value = text.lstrip("+").partition("=")
    if not re.fullmatch(r"[+~]{0,2}[\w./@:-]+", name):
        return f"options must be written name=value without spaces around the name, got {text!r}"
    for opening, closing in ("[]", "{}"):
        if value.startswith(opening) and not value.endswith(closing):
            return f"{name} must end with {closing!r}, got {value!r}; quote the whole option if it has spaces"
    if value[:1] in ("'", '"') and (len(value) == 1 or value[-1] != value[0]):
        return f"{name} must end with the quote that it begins with, got {value}"
    quoted = "'" + value.replace("'", "\\'") + "'"
    return f'{name} must be quoted if it has special characters, got {value!r}; write "{name}={quoted}"'


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Return "; did you mean 'x'?", or "" if no name is close; ``lr`` is close to ``optim.lr``.

    Args:
        name: that does not exist.
        allowed: names that do.
    """
    suggestion = did_you_mean(name, allowed)
    misplaced = [full for full in allowed if full.rpartition(".")[2] == name.rpartition(".")[2]]
    return suggestion or (f"; did you mean {misplaced[0]!r}?" if misplaced else "")


def option_words(message: str, options: Sequence[str]) -> str:
    """Name the option in a message that names a Python parameter.

    Args:
        message: of an error.
        options: dotted names.

    Example:
        >>> option_words("gamma must lie in [0, 1], got 5.0", ["estimator.gamma", "seed"])
        'estimator.gamma must lie in [0, 1], got 5.0'
    """
    word = re.match(r"(\w+)(?=[ =])", message)
    full = [name for name in options if word and name.rpartition(".")[2] == word[1]]
    return full[0] + message[len(word[1]) :] if word and len(full) == 1 else message

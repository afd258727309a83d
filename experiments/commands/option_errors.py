"""Explain wrong options in one line: the name, what it must be, the given value, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException, OverrideParseException

from rltok_rl.utils import did_you_mean

_IN_ITS_PLACE = {"loss.clip_epsilon": "set both loss.clip_low and loss.clip_high"}
"""What to write instead of names that other libraries have."""
_TYPES = {int: "an int", float: "a float", bool: "true or false", str: "a string"}
_NOISE = ("full_key:", "object_type=", "reference_type=", "Config search path", "provider=")


def explain(error: Exception, types: Mapping[str, Any], names: Sequence[str]) -> str:
    """Shorten an error of Hydra or OmegaConf to one line, given the types of all options, and all names."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, word = (error.missing_cfg_file or "").rpartition("/")
        allowed = [option for option in error.options if option != "schema"]
        return f"{group} must be one of {allowed}, got {word!r}{did_you_mean(word, allowed)}"
    if unknown := re.match(r"Could not override '([^']*)'", str(error)):
        return unknown_option(unknown[1], names)
    merged = re.match(r"Error merging override (.*)", str(error))
    if merged:
        name, _, text = merged[1].lstrip("+").partition("=")
        of_entries = get_args(types.get(name.rpartition(".")[0]))[1:]  # dict[str, ...]
        if kind := types.get(name) or next(iter(of_entries), None):
            return _wrong_type(name, text, kind)
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
    inner = get_args(kind)
    if type(None) in inner:
        return f"{_described(inner[0])} or null"
    if str(kind).startswith("list["):
        return f"a list of {inner[0].__name__.replace('str', 'string')}s"
    return _TYPES.get(kind) or ("a dict of dicts" if str(kind).count("dict[") > 1 else "a dict")


def check_once(overrides: Sequence[Override], groups: Sequence[str]) -> None:
    """Refuse several choices, or a list, for a group that is chosen once."""
    for group in groups:
        chosen = [override for override in overrides if override.key_or_group == group]
        if len(chosen) > 1 or any(isinstance(override.value(), list) for override in chosen):
            texts = " and ".join(str(override.input_line) for override in chosen)
            raise ValueError(f"{group} must be given once and be one name, got {texts}")


def several_values(sweep: Override, types: Mapping[str, Any]) -> str:
    """Explain several values for one option without ``--multirun``."""
    name, _, text = (sweep.input_line or "").lstrip("+").partition("=")
    kind = types.get(name)
    quoted = f", or write \"{name}='{text}'\" for one text with commas" if str in (kind, *get_args(kind)) else ""
    return f"{name} must be one value without --multirun, got {text}; add --multirun for a run each{quoted}"


def _unreadable(text: str) -> str:
    """Explain an override that Hydra's parser rejects."""
    name, _, value = text.lstrip("+").partition("=")
    if not re.fullmatch(r"[+~]{0,2}[\w./@:-]+", name):
        return f"options must be written name=value without spaces around the name, got {text!r}"
    if value[:1] in tuple("'\"[{"):
        return f"{name} must have its quotes and brackets closed, got {value}"
    return f'{name} must be quoted if it has special characters, got {value!r}; write "{name}={quoted(value)}"'


def quoted(text: str) -> str:
    r"""Quote a text for Hydra, which reads it as one value whatever its characters are.

    Backslashes before a quote, the closing one included, are doubled; Hydra takes all others as they are.

    Example:
        >>> quoted("it's, here")
        "'it\\'s, here'"
        >>> print(quoted("a\\b\\"))
        'a\b\\'
    """
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text) + "'"


def unknown_option(name: str, names: Sequence[str]) -> str:
    """Explain a name that no option has, by the closest one or by what takes its place."""
    hint = f"; {_IN_ITS_PLACE[name]}" if name in _IN_ITS_PLACE else nearest(name, names)
    return f"there is no option {name!r}{hint}"


def unknown_flag(argument: str, names: Sequence[str], flags: Sequence[str]) -> str:
    """Explain a word with dashes: an option written as a flag, or a mistyped flag."""
    typed, _, value = argument.partition("=")
    name = typed.lstrip("-").replace("-", "_")
    full = [name] if name in names else [option for option in names if option.rpartition(".")[2] == name]
    if len(full) == 1:
        return f"options must be written name=value, got {argument!r}; write {full[0]}={value or 'VALUE'}"
    return f"there is no flag {typed!r}{did_you_mean('--' + typed.lstrip('-'), flags) or '; --help lists options'}"


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Return "; did you mean 'x'?", or "" if no name is close; ``lr`` is close to ``optim.lr``."""
    misplaced = [full for full in allowed if full.rpartition(".")[2] == name.rpartition(".")[2]]
    return did_you_mean(name, allowed) or (f"; did you mean {misplaced[0]!r}?" if misplaced else "")


def option_words(message: str, options: Sequence[str]) -> str:
    """Name the option, one of these dotted names, in a message that names a Python parameter.

    Example:
        >>> option_words("gamma must lie in [0, 1], got 5.0", ["estimator.gamma", "seed"])
        'estimator.gamma must lie in [0, 1], got 5.0'
    """
    word = re.match(r"(\w+)(?=[ =])", message)
    full = [name for name in options if word and name.rpartition(".")[2] == word[1]]
    return full[0] + message[len(word[1]) :] if word and len(full) == 1 else message

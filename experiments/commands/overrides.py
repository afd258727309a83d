"""Read command-line overrides (`name=value`) with Hydra's parser, check their types, and shorten Hydra's errors."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from typing import Any, get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltok_rl.utils import did_you_mean

TAKES_VALUE = {
    "--cfg": "-c",
    "--package": "-p",
    "--info": "-i",
    "--config-path": "-cp",
    "--config-name": "-cn",
    "--config-dir": "-cd",
    "--experimental-rerun": None,
}
"""Flags of Hydra that are followed by a word of their own, and their short forms."""
STANDS_ALONE = {
    "--help": "-h",
    "--run": "-r",
    "--multirun": "-m",
    "--shell-completion": "-sc",
    "--hydra-help": None,
    "--version": None,
    "--resolve": None,
}
"""Flags of Hydra without one; a test compares both with Hydra's parser."""
_KINDS = {int: "an int", float: "a float", bool: "true or false", str: "a string"}
_NOISE = ("Set the environment variable", "full_key:", "object_type=", "reference_type=", "See https://")


@dataclass(frozen=True)
class Override:
    """One override of a command line."""

    argument: str
    """As typed."""
    name: str
    """Option or group, without ``+``, ``++`` or ``~``."""
    values: tuple[Any, ...]
    """The value; several in a sweep, none for ranges, globs and deletions."""
    sweep: bool = False

    @property
    def value(self) -> Any:
        """The only value; None in a sweep."""
        return self.values[0] if len(self.values) == 1 and not self.sweep else None

    @property
    def text(self) -> str:
        """The value as typed."""
        return self.argument.partition("=")[2]


def parse_overrides(arguments: Sequence[str], names: Sequence[str] = ()) -> list[Override]:
    """Parse the overrides of a command line; raises ValueError for arguments that Hydra cannot read.

    Args:
        arguments: of the command line; flags of Hydra and overrides of its own configuration are left out.
        names: options and groups, to suggest one where ``=`` is missing or dashes are too many.

    Example:
        >>> [(one.name, one.values) for one in parse_overrides(["out='my run'", "model=tiny,toy", "--multirun"])]
        [('out', ('my run',)), ('model', ('tiny', 'toy'))]
        >>> parse_overrides(["seed"], ["seed"])
        Traceback (most recent call last):
        ValueError: options must be written name=value, got 'seed'; write seed=VALUE
    """
    parser, found = OverridesParser.create(), []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        bare = argument.lstrip("+~")
        value_of_flag = before in (*TAKES_VALUE, *TAKES_VALUE.values())
        if argument.startswith("-") and not value_of_flag and flag_of(argument) is None:
            raise ValueError(_unknown_flag(argument, names))
        if argument.startswith("-") or value_of_flag or bare.startswith(("hydra.", "hydra/")):
            continue
        if "=" not in argument and not argument.startswith("~"):
            wanted = f"; write {bare}=VALUE" if bare in names else ""
            raise ValueError(f"options must be written name=value, got {argument!r}{wanted}")
        try:
            parsed = parser.parse_override(argument)
        except HydraException as error:
            raise ValueError(_unreadable(argument, str(error))) from None
        value: Any = parsed.value()
        values: tuple[Any, ...] = (value,)
        if parsed.is_sweep_override():
            values = tuple(map(_plain, value.list)) if isinstance(value, ChoiceSweep) else ()
        elif parsed.is_delete() and "=" not in argument:
            values = ()
        found.append(Override(argument, parsed.key_or_group, values, parsed.is_sweep_override()))
    return found


def flag_of(argument: str) -> str | None:
    """Return the flag of Hydra that an argument is, in its long form; None if it is none.

    Args:
        argument: as typed; Hydra takes shortened long flags, and short ones with their value attached.

    Example:
        >>> flag_of("--multi"), flag_of("-cjob"), flag_of("--cfg=job"), flag_of("-model=tiny"), flag_of("--seed")
        ('--multirun', '--cfg', '--cfg', None, None)
    """
    flags, typed = {**TAKES_VALUE, **STANDS_ALONE}, argument.partition("=")[0]
    exact = [full for full, short in flags.items() if typed in (full, short)]
    begun = [full for full in flags if len(typed) > 2 and typed.startswith("--") and full.startswith(typed)]
    attached = [full for full, short in TAKES_VALUE.items() if short and len(short) == 2 and typed.startswith(short)]
    return next(iter((*exact, *begun, *attached)), None)


def has_multirun(arguments: Sequence[str]) -> bool:
    """Whether ``--multirun`` is among the arguments, in any of its forms.

    Args:
        arguments: of the command line.
    """
    return any(flag_of(one) == "--multirun" for one in arguments)


def _unknown_flag(argument: str, names: Sequence[str]) -> str:
    """Explain a word with dashes that is no flag: an option, or a mistyped flag."""
    typed, _, value = argument.partition("=")
    name = typed.lstrip("-").replace("-", "_")
    ends = [one for one in names if one.rpartition(".")[2] == name]
    if name in ends or len(ends) == 1:
        full = name if name in ends else ends[0]
        return f"options must be written name=value, got {argument!r}; write {full}={value or 'VALUE'}"
    meant = did_you_mean("--" + typed.lstrip("-"), [*TAKES_VALUE, *STANDS_ALONE])
    return f"there is no flag {typed!r}{meant or '; --help lists options'}"


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, QuotedString) else value


def _unreadable(argument: str, said: str) -> str:
    """Explain an argument that the parser rejects."""
    name, _, value = argument.partition("=")
    if not re.fullmatch(r"[+~]{0,2}[\w./@:-]+", name):
        return f"options must be written name=value without spaces around the name, got {argument!r}"
    for opening, closing in ("[]", "{}"):
        if value.startswith(opening) and not value.endswith(closing):
            return f"{name} must end with {closing!r}, got {value!r}; quote the whole option if it has spaces"
    if value[:1] in ("'", '"') and (len(value) == 1 or value[-1] != value[0]):
        return f"{name} must end with the quote that it begins with, got {value}"
    quoted = "'" + value.replace("'", "\\'") + "'"
    return f'{name} must be quoted if it has special characters, got {value!r}; write "{name}={quoted}"'


def check_sweeps(arguments: Sequence[str], kinds: Mapping[str, Any]) -> None:
    """Refuse several values for one option without ``--multirun``.

    Args:
        arguments: of the command line.
        kinds: types by option.

    Example:
        >>> check_sweeps(["seed=1,2"], {"seed": int})
        Traceback (most recent call last):
        ValueError: seed must be one value without --multirun, got 1,2; add --multirun for a run each
    """
    if has_multirun(arguments) or any(one.startswith("hydra.mode=") for one in arguments):
        return
    for one in parse_overrides(arguments):
        if one.sweep:
            kind = str(kinds.get(one.name))
            text = "str" in kind and not kind.startswith("list[")
            other = f", or write \"{one.name}='{one.text}'\" for one text with commas" if text else ""
            raise ValueError(
                f"{one.name} must be one value without --multirun, got {one.text}; add --multirun for a run each{other}"
            )


def convert_values(overrides: Sequence[Override], kinds: Mapping[str, Any]) -> dict[str, str]:
    """Check values against the types of their options, and rewrite whole numbers such as ``1e6`` for int options.

    Args:
        overrides: of the command line.
        kinds: types by option.

    Returns:
        Arguments to replace, by the argument as typed.

    Example:
        >>> convert_values(parse_overrides(["optim.total_bytes=1e6"]), {"optim.total_bytes": int})
        {'optim.total_bytes=1e6': 'optim.total_bytes=1000000'}
        >>> convert_values(parse_overrides(["estimator.gamma=abc"]), {"estimator.gamma": float})
        Traceback (most recent call last):
        ValueError: estimator.gamma must be a float, got 'abc'
    """
    replaced = {}
    for one in overrides:
        if one.name not in kinds:
            continue
        kind = kinds[one.name]
        values = [_whole(kind, value) for value in one.values]
        for value in values:
            _check(one, kind, value)
        if values != [*one.values] or any(type(a) is not type(b) for a, b in zip(values, one.values, strict=True)):
            start = one.argument.partition("=")[0]
            replaced[one.argument] = f"{start}={','.join('null' if value is None else str(value) for value in values)}"
    return replaced


def _whole(kind: Any, value: Any) -> Any:
    """The value, as an int if the option is one and the value is a float without a fraction."""
    kinds = get_args(kind) or (kind,)
    return int(value) if isinstance(value, float) and value.is_integer() and int in kinds else value


def _check(override: Override, kind: Any, value: Any) -> None:
    if isinstance(value, str) and "${" in value:
        return  # an interpolation, known once Hydra has put everything together
    holder = OmegaConf.structured(make_dataclass("Holder", [("value", kind)]))
    try:
        holder.value = value
    except OmegaConfBaseException:
        shown = repr(value) if isinstance(value, str) else override.text if not override.sweep else str(value)
        raise ValueError(f"{override.name} must be {_described(kind)}, got {shown}{_mend(override, kind)}") from None


def _described(kind: Any) -> str:
    if kind in _KINDS:
        return _KINDS[kind]
    text = str(kind)
    if type(None) in get_args(kind):
        (inner,) = (one for one in get_args(kind) if one is not type(None))
        return f"{_described(inner)} or null"
    if text.startswith("list["):
        return "a list of " + {float: "floats", int: "ints"}.get(get_args(kind)[0], "strings")
    return "a dict of dicts" if text.count("dict[") > 1 else "a dict"


def _mend(override: Override, kind: Any) -> str:
    """How to write a list or a dict."""
    text = str(kind)
    if text.startswith("list[") and not isinstance(override.value, (list, dict)):
        return f"; write {override.name}=[{override.text}]"
    if text.startswith("dict["):
        return f"; write {override.name}.NAME=VALUE"
    return ""


@contextlib.contextmanager
def one_line_errors(command: str, *, speak: bool = True) -> Iterator[None]:
    """Print Hydra's complaints about a command line as one line; tracebacks of other errors are printed in full.

    Args:
        command: name of the command, printed before the message.
        speak: False in processes that leave the message to the main process.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as ended:
        text = said.getvalue()
        if ended.code in (None, 0) or isinstance(ended.code, str) or "Traceback" in text or not text.strip():
            raise
        said = io.StringIO()
        raise SystemExit(f"{command}: {one_line(text)}" if speak else 1) from None
    finally:
        if speak or "Traceback" in said.getvalue():
            sys.stderr.write(said.getvalue())


def one_line(text: str) -> str:
    r"""Shorten a message of Hydra to one line, without its advice on environment variables.

    Example:
        >>> one_line("Key 'x' is not in struct\n    full_key: x\n\nSet the environment variable HYDRA_FULL_ERROR=1")
        "Key 'x' is not in struct"
        >>> one_line("usage: train.py [--help]\ntrain.py: error: unrecognized arguments: --nosuch")
        'unrecognized arguments: --nosuch'
    """
    _, error, rest = text.partition(": error: ")
    lines = (line.strip() for line in (rest if error else text).splitlines())
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    return "; ".join([*(line.rstrip(".;") for line in kept[:-1]), *kept[-1:]])


def option_words(message: str, options: Iterable[str]) -> str:
    """Name the option in a message that names a Python parameter.

    Args:
        message: of an error.
        options: dotted names.

    Example:
        >>> option_words("gamma must lie in [0, 1], got 5.0", ["estimator.gamma", "seed"])
        'estimator.gamma must lie in [0, 1], got 5.0'
    """
    found = re.match(r"(\w+)(?=[ =])", message)
    full = [name for name in options if found and name.rpartition(".")[2] == found[1]]
    return full[0] + message[len(found[1]) :] if found and len(full) == 1 else message

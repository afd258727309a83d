"""Files that others may have written: read with limits, and never executed. SECURITY.md has the rules."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rltok_rl.renamed import rename_options
from rltok_rl.utils import check_count, is_import_path

MOST_YAML = 1 << 16
"""Bytes of a ``config.yaml``, which is parsed slowly."""
MOST_JSON = 1 << 20
"""Bytes of a file of options."""
MOST_STATE = 1 << 26
"""Bytes of a tokenizer, of a checkpoint's JSON, which may hold one, and of a run's results."""
MOST_LINES = 1 << 28
"""Bytes of metrics and samples, which grow with every update."""
_DEEPEST = 32  # levels of a config.yaml
_LARGEST = 1e60  # its square is finite
_GROUPS = ("model", "data", "actor", "segmenter", "estimator", "optim")


def check_trust(path: str | Path, name: str, trust_code: bool) -> None:
    """Raise an error if a name in a file is an import path, which would be executed, and the user does not trust it."""
    if is_import_path(name) and not trust_code:
        raise ValueError(
            f"{path} names custom code, {name!r}, which would be executed; pass --trust-code (in Python, "
            f"trust_code=True) if you trust it"
        )


def check_file(path: Path, name: str | None = None) -> None:
    """Require a file, or a link to one; reading a pipe would block. Errors call it ``name``."""
    if not path.is_file():
        got = "something else" if path.exists() else "a link to nothing" if path.is_symlink() else "nothing"
        raise FileNotFoundError(f"{name or path} must be a file, got {got}")


def check_place(path: Path, *, folder: bool = False) -> None:
    """Require a file, or a folder, or nothing in a place that is written to: a link may lead to files elsewhere."""
    kind, right = ("folder", path.is_dir()) if folder else ("file", path.is_file())
    if os.path.lexists(path) and (path.is_symlink() or not right):
        raise ValueError(f"{path} must be a {kind}, got a link or something else; remove it, or replace it by a copy")


def read_limited(path: Path, most: int, name: str | None = None) -> str:
    """Return the text of a file of at most ``most`` bytes; errors call it ``name``, by default its path."""
    name = name or str(path)
    check_file(path, name)
    if (size := path.stat().st_size) > most:
        raise ValueError(f"{name} must have at most {most:,} bytes, got {size:,}")
    with path.open("rb") as file:
        content = file.read(most)  # also of files of the system, whose size is 0
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be UTF-8, got {error.reason} at byte {error.start}") from None


def read_json(path: Path, most: int = MOST_JSON, name: str | None = None) -> Any:
    """Return the value in a file of JSON; arguments as for :func:`read_limited`."""
    text = read_limited(path, most, name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name or path} must be JSON, got text that is not: {error}") from None


def check_sizes(where: str, sizes: Mapping[str, float], most: int, of: str) -> None:
    """Require sizes of at most ``most``, which errors describe by ``of``."""
    for name, size in sizes.items():
        if size > most:
            raise ValueError(f"{name} of {where} must be at most {most:,}, {of}, got {size:,}")


class ValueKind(NamedTuple):
    """What a value in a file must be."""

    words: str
    fits: Callable[[Any], bool]

    def or_none(self) -> ValueKind:
        """Return the kind that also admits null."""
        return ValueKind(f"{self.words}, or null", lambda value: value is None or self.fits(value))

    def several(self) -> ValueKind:
        """Return the kind of lists of such values."""
        return ValueKind(
            f"a list, each {self.words}", lambda value: isinstance(value, list) and all(map(self.fits, value))
        )

    def by_name(self) -> ValueKind:
        """Return the kind of dicts of such values."""
        return ValueKind(
            f"values by name, each {self.words}",
            lambda value: isinstance(value, dict) and all(map(self.fits, value.values())),
        )


def _is_number(value: Any) -> bool:
    """Whether a value is a number that can be computed with; NaN is one."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and (value != value or abs(value) <= _LARGEST)


TEXT = ValueKind("a string", lambda value: isinstance(value, str))
SWITCH = ValueKind("true or false", lambda value: isinstance(value, bool))
NAMED = ValueKind("values by name", lambda value: isinstance(value, dict))
COUNT = ValueKind("an integer in [0, 2^63)", lambda value: type(value) is int and 0 <= value < 2**63)
NUMBER = ValueKind("a finite number or NaN", _is_number)
POSITIVE = ValueKind("a finite number of at least 0", lambda value: _is_number(value) and value >= 0)


def check_values(
    values: Any, kinds: Mapping[str, ValueKind], where: str | Path, required: Collection[str] = ()
) -> dict[str, Any]:
    """Require values by name, those of ``kinds`` as described there, and return them; errors call them ``where``."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} must hold values by name, got {type(values).__name__}")
    if missing := [name for name in required if name not in values]:
        raise ValueError(f"{where} must hold {missing[0]}, got none")
    for name, (words, fits) in kinds.items():
        if name in values and not fits(values[name]):
            raise ValueError(f"{name} of {where} must be {words}, got {values[name]!r:.60}")
    return values


def check_rows(
    rows: Any, kinds: Mapping[str, ValueKind], where: str | Path, required: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Require a list of values by name, as :func:`check_values` does, and return it."""
    if not isinstance(rows, list):
        raise ValueError(f"{where} must hold rows of values by name, got {type(rows).__name__}")
    return [check_values(row, kinds, f"row {number} of {where}", required) for number, row in enumerate(rows, 1)]


def read_config_file(path: Path) -> Any:
    """Return the options in a run's ``config.yaml`` as an OmegaConf mapping.

    Interpolations such as ``${oc.env:HOME}``, which would read the environment of the reader, and aliases, which can
    make a short file fill the memory, are errors.
    """
    import yaml  # type: ignore[import-untyped]
    from omegaconf import DictConfig, OmegaConf  # takes a tenth of a second to import
    from omegaconf.errors import OmegaConfBaseException

    text, loader = read_limited(path, MOST_YAML), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST or isinstance(event, yaml.AliasEvent):
                raise ValueError(f"aliases and more than {_DEEPEST} levels are not allowed")
        interpolated = next(((v, n) for n, v in _strings(yaml.compose(text, loader), "") if "${" in v), None)
        if interpolated is None:  # OmegaConf parses interpolations, for minutes if many are nested
            config = OmegaConf.load(io.StringIO(text))  # a safe loader: plain values, no Python objects
            plain: Any = OmegaConf.to_container(config, resolve=False)
    except (ValueError, OverflowError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = re.sub('in "<(unicode string|file)>", line', "at line", " ".join(str(error).split()))
        raise ValueError(f"{path} cannot be read: {reason:.300}") from None
    if interpolated is not None:
        value, name = interpolated
        raise ValueError(f"{path} must hold plain values, got the interpolation {value!r:.200} {name:.200}; replace it")
    if not isinstance(config, DictConfig):
        raise ValueError(f"{path} cannot be read: it must hold options by name, got {type(plain).__name__}")
    for group in _GROUPS:
        if not isinstance(plain.get(group) or {}, dict):
            raise ValueError(f"{path} must hold options of {group} by name, got {plain[group]!r}")
    rename_options(config)
    num_steps = (plain.get("data") or {}).get("num_steps", 1)
    try:
        check_count("data.num_steps", num_steps)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return config


def _strings(node: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield where the scalars of a YAML node are, names of options too, and their text."""
    if node is None:  # an empty file
        return
    if node.id == "scalar":
        yield f"in {name}", node.value
        return
    for key, inner in node.value if node.id == "mapping" else enumerate(node.value):
        word = key if isinstance(key, int) else key.value if key.id == "scalar" else "?"
        if not isinstance(key, int):
            yield from (("as a name", value) for _, value in _strings(key, ""))
        yield from _strings(inner, f"{name}.{word}" if name else str(word))

"""Options, groups and their descriptions, read from source files without importing torch or Hydra."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent.parent
CONF = HERE / "conf"
"""Folder of the groups."""
REQUIRED = "(required)"
"""Default of an option that has none."""
_WORDS = {"None": "null", "True": "true", "False": "false", "MISSING": REQUIRED}
_WORDS |= {"field(default_factory=dict)": "{}", "field(default_factory=list)": "[]"}


class Option(NamedTuple):
    """An option of a schema; type and default as written."""

    name: str
    kind: str
    default: str
    description: str
    range: str = ""
    """Interval of a number, and its unit."""


class Schema(NamedTuple):
    """A dataclass of options."""

    description: str
    options: tuple[Option, ...]


@cache
def schemas(path: Path) -> dict[str, Schema]:
    """Read the dataclasses of a Python file: each field with the string below it.

    Example:
        >>> schemas(HERE / "run_config.py")["RateConfig"].options[1].name
        'coefficient'
    """
    classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    return {node.name: Schema(ast.get_docstring(node) or "", tuple(_options(node))) for node in classes}


def _options(node: ast.ClassDef) -> list[Option]:
    options = []
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            description = inspect.cleandoc(str(after.value.value)) if described else ""  # type: ignore[union-attr]
            kind = ast.unparse(field.annotation).replace("'", '"').replace("Literal", "one of ")
            value, limits = field.value, ""
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "option":
                value, *others = value.args
                limits = ", ".join(ast.literal_eval(part) for part in others)
            default = ast.unparse(value) if value else "MISSING"
            if factory := re.fullmatch(r"field\(default_factory=lambda: (.*)\)", default):
                default = factory[1].replace("'", "")
            default = _WORDS.get(default, default.strip("'"))
            options.append(Option(field.target.id, kind, default, description, limits))
    return options


def constant(path: Path, name: str) -> Any:
    """Return a literal that a Python file assigns, without importing it.

    Example:
        >>> list(constant(HERE / "run_config.py", "WHOLE"))
        ['experiment', 'recipe', 'ablation']
    """
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def group_schemas() -> dict[str, str]:
    """Return the groups of ``TrainConfig`` and the names of their dataclasses.

    Example:
        >>> group_schemas()["rate"]
        'RateConfig'
    """
    known = schemas(HERE / "run_config.py")
    return {option.name: option.kind for option in known["TrainConfig"].options if option.kind in known}


def choices(group: str) -> list[str]:
    """List the files of a group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def comment(path: Path) -> str:
    """Return the comment at the top of a yaml file, without lines for Hydra such as ``# @package``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    top = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in top if not line.startswith("# @"))


@cache
def module_doc(path: Path) -> str:
    """Return the docstring of a module without importing it."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""

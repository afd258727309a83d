"""Options, groups and their descriptions, read from source files: nothing here imports torch or Hydra."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent.parent
CONF = HERE / "conf"
"""Folder of the groups."""
REQUIRED = "(required)"
"""Default of an option that has none."""


class Option(NamedTuple):
    """An option of a schema."""

    name: str
    kind: str
    """Its type, as written."""
    default: str
    """As typed on a command line; :data:`REQUIRED` if the schema has none."""
    description: str


class Schema(NamedTuple):
    """A dataclass of options."""

    description: str
    options: tuple[Option, ...]


@cache
def schemas(path: Path) -> dict[str, Schema]:
    """Read the dataclasses of a file: each field with the string below it.

    Args:
        path: a Python file.

    Example:
        >>> schemas(HERE / "config.py")["RateConfig"].options[1]
        Option(name='coefficient', kind='float', default='0.01', description='0 leaves the rate alone.')
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            description = inspect.cleandoc(ast.get_docstring(node) or "")
            found[node.name] = Schema(description, tuple(_options(node)))
    return found


def _options(node: ast.ClassDef) -> list[Option]:
    found = []
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        description = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            description = inspect.cleandoc(str(after.value.value))
        kind = ast.unparse(field.annotation).replace("'", '"').replace("Literal", "one of ")
        found.append(Option(field.target.id, kind, _default(field.value), description))
    return found


def _default(value: ast.expr | None) -> str:
    if value is None or (isinstance(value, ast.Name) and value.id == "MISSING"):
        return REQUIRED
    text = ast.unparse(value)
    plain = {"None": "null", "True": "true", "False": "false"}
    plain |= {"field(default_factory=dict)": "{}", "field(default_factory=list)": "[]"}
    if (factory := re.fullmatch(r"field\(default_factory=lambda: (.*)\)", text)) is not None:
        return factory[1].replace("'", "")
    return plain.get(text, text.strip("'"))


def group_schemas() -> dict[str, str]:
    """The groups of :class:`~rltok_rl.experiments.config.TrainConfig` and their dataclasses, by name.

    Example:
        >>> group_schemas()["rate"]
        'RateConfig'
    """
    known = schemas(HERE / "config.py")
    return {one.name: one.kind for one in known["TrainConfig"].options if one.kind in known}


def choices(group: str) -> list[str]:
    """List the files of a group.

    Args:
        group: its folder.
    """
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def comment(path: Path) -> str:
    """Return the comment at the top of a yaml file, without lines for Hydra such as ``# @package``.

    Args:
        path: of the file.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


@cache
def module_doc(path: Path) -> str:
    """Return the docstring of a module without importing it.

    Args:
        path: of the module.
    """
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""

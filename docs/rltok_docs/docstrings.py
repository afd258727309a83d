"""Docstrings made ready for Sphinx: equations, shapes, and Gymnasium's headings and tables.

Equations are blocks that are indented by four, before the sections: they become literal blocks of the class
``equation``. Shapes stand in brackets, ``[*B, T]``, whose star would begin an emphasis: they become literals.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence

_SECTION = re.compile(r"^(?:Args|Returns|Yields|Raises|Examples?|Attributes|References?|Note):\s*$", re.M)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n+)+)")
_DOCTEST = re.compile(r"(^ *>>>.*\n(?: *\S.*\n)*)", re.M)
_TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
_SHAPE = re.compile(r"``.*?``|`[^`]*`|(\[(?:\*\w|[A-Z])[^\[\]`]*\]|\|\w+\|)")  # and absolute values, |x|
_ITEM = re.compile(r"\s*([-*+]|\d+\.)\s|   ")


def ready(doc: Sequence[str]) -> list[str]:
    r"""Return the lines of a docstring as Sphinx wants them.

    Example:
        >>> print("\n".join(ready(["Sum [T].", "", "    y = sum_t x_t", "", "Args:", "    x: [*B, T]."])))
        Sum ``[T]``.
        <BLANKLINE>
        .. code-block:: text
           :class: equation
        <BLANKLINE>
            y = sum_t x_t
        <BLANKLINE>
        Args:
            x: ``[*B, T]``.
    """
    text = re.sub(r"^### (.*)$", r"**\1**\n", "\n".join(doc).replace("### Arguments\n", ""), flags=re.M)
    about, sections = _split(_TABLE.sub(_list_table, f"{text}\n"))
    marked = ""
    for block, equation in _blocks(about):
        marked += f".. code-block:: text\n   :class: equation\n\n{block}" if equation else mark_shapes(block)
    return (marked + mark_shapes(sections)).splitlines()


def equations(doc: str) -> list[str]:
    """Return the equations of a docstring."""
    blocks = [block for block, equation in _blocks(_split(doc)[0]) if equation]
    return [inspect.cleandoc(f"\n{block}") for block in blocks]


def _split(text: str) -> tuple[str, str]:
    """The description, and the sections after it."""
    section = _SECTION.search(text)
    place = section.start() if section else len(text)
    return text[:place], text[place:]


def _blocks(about: str) -> Iterator[tuple[str, bool]]:
    """Parts of a description, and whether they are equations: indented, but no part of a list and no example."""
    last = ""
    for place, block in enumerate(_INDENTED.split(f"{about.rstrip()}\n\n")):
        listed = _ITEM.match(last) or last.endswith("::") or block.lstrip().startswith(">>>")
        yield block, place % 2 == 1 and not listed
        last = block.rstrip().rpartition("\n")[2]


def mark_shapes(text: str) -> str:
    """Make literals of shapes."""
    parts = _DOCTEST.split(text)  # examples are left alone
    parts[::2] = [_SHAPE.sub(lambda found: f"``{found[1]}``" if found[1] else found[0], part) for part in parts[::2]]
    return "".join(parts)


def _list_table(found: re.Match[str]) -> str:
    """A Markdown table as one of reStructuredText."""
    rows = [line.strip("| ").split("|") for line in found[0].splitlines() if not line.startswith("|--")]
    lines = [f"   {'  -' if place else '* -'} {cell.strip()}" for row in rows for place, cell in enumerate(row)]
    return "\n".join([".. list-table::", "   :header-rows: 1", "", *lines, ""])

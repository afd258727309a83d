"""Docstrings as the library writes them, made ready for Sphinx.

Equations stand in blocks that are indented by four. Without a mark reStructuredText would take them for quotations and
flow their lines together; they become literal blocks of the class ``equation``. Shapes stand in brackets, ``[*B, T]``,
whose star would begin an emphasis; they become literals. Environments describe themselves as gymnasium's do, with
headings and tables of Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

SECTIONS = (
    "Args",
    "Returns",
    "Yields",
    "Raises",
    "Example",
    "Examples",
    "Attributes",
    "Reference",
    "References",
    "Note",
)
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\s*$")
_SHAPE = re.compile(r"``.*?``|`[^`]*`|(\[(?:\*\w|[A-Z])[^\[\]`]*\]|\|\w+\|)")  # and absolute values, |x|
_ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s")


def ready(doc: Sequence[str]) -> list[str]:
    """A docstring as Sphinx wants it.

    Args:
        doc: its lines, without common indentation.
    """
    return mark_equations(mark_shapes(mark_markdown(doc)))


def mark_markdown(lines: Sequence[str]) -> list[str]:
    r"""The same docstring, headings and tables of Markdown in the language of Sphinx.

    Args:
        lines: as they stand there.

    Example:
        >>> print("\n".join(mark_markdown(["### Keys", "| key | of |", "|---|---|", "| a | b |"])))
        **Keys**
        <BLANKLINE>
        .. list-table::
           :header-rows: 1
        <BLANKLINE>
           * - key
             - of
           * - a
             - b
        <BLANKLINE>
    """
    marked: list[str] = []
    in_table = False
    for line in [*lines, ""]:
        row = line.startswith("| ")
        if row and not in_table:
            marked += [".. list-table::", "   :header-rows: 1", ""]
        if in_table and not row and not line.startswith("|--"):
            marked.append("")
        in_table = row or (in_table and line.startswith("|--"))
        if line.startswith("### "):
            marked += [] if line == "### Arguments" else [f"**{line[4:]}**", ""]
        elif row:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            marked += [f"   {'* -' if n == 0 else '  -'} {cell}".rstrip() for n, cell in enumerate(cells)]
        elif not line.startswith("|--"):
            marked.append(line)
    return marked[:-1]


def mark_equations(lines: Sequence[str]) -> list[str]:
    r"""The same docstring, its indented blocks marked as equations; what sections say of arguments is left alone.

    Args:
        lines: without common indentation.

    Example:
        >>> print("\n".join(mark_equations(["Sum.", "", "    y = sum_t x_t", "", "Args:", "    x: [T]."])))
        Sum.
        <BLANKLINE>
        .. code-block:: text
           :class: equation
        <BLANKLINE>
            y = sum_t x_t
        <BLANKLINE>
        Args:
            x: [T].
    """
    marked: list[str] = []
    for block in _blocks(lines):
        if _is_equation(block, marked):
            marked += [".. code-block:: text", "   :class: equation", ""]
        marked += block
    return marked


def mark_shapes(lines: Sequence[str]) -> list[str]:
    """The same docstring, its shapes as literals; equations and examples are left alone.

    Args:
        lines: before :func:`mark_equations`.

    Example:
        >>> mark_shapes(["x: [*B, T] of ``[B]``."])
        ['x: ``[*B, T]`` of ``[B]``.']
    """
    marked: list[str] = []
    for block in _blocks(lines):
        equation, example = _is_equation(block, marked), False
        for line in block:
            example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
            marked.append(line if equation or example else _SHAPE.sub(_as_literal, line))
    return marked


def _as_literal(found: re.Match[str]) -> str:
    return f"``{found[1]}``" if found[1] else found[0]


def equations(doc: str) -> list[str]:
    r"""The indented blocks of a docstring, in front of its sections.

    Args:
        doc: cleaned of common indentation.

    Example:
        >>> equations("Sum.\n\n    y = sum_t x_t\n\nArgs:\n    x: [T].")
        ['y = sum_t x_t']
    """
    found: list[str] = []
    seen: list[str] = []
    for block in _blocks(doc.splitlines()):
        if _is_equation(block, seen):
            found.append("\n".join(line[4:] for line in block).strip())
        seen += block
    return found


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Paragraphs with the blank lines behind them; neighbouring indented ones are one block, sections are one each."""
    block: list[str] = []
    for line in lines:
        starts = bool(block) and bool(line.strip()) and not block[-1].strip()
        if starts and not (line.startswith("    ") and (block[0].startswith("    ") or _SECTION.match(block[0]))):
            yield block
            block = []
        elif block and _SECTION.match(line):  # a section right behind a paragraph
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def _is_equation(block: Sequence[str], before: Sequence[str]) -> bool:
    if not block[0].startswith("    ") or not any(line.strip() for line in before):
        return False
    last = [line for line in before if line.strip()][-1]
    return (
        not _ITEM.match(last)
        and not last.endswith("::")
        and not last.startswith("   ")
        and not block[0].lstrip().startswith(">>>")
    )

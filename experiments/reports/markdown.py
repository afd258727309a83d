"""Figures and tables in Markdown."""

from __future__ import annotations

import math
from typing import Any


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many digits that count; a dash where there is none.

    Example:
        >>> number(0.012345), number(1234.5), number(None)
        ('0.0123', '1234', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def with_unit(value: float | None, unit: str) -> str:
    """A large figure with a thousands prefix, or as a power of ten where there is no prefix for it.

    Example:
        >>> with_unit(8_000_000, "B"), with_unit(512, "B"), with_unit(3.2e16, "FLOPs"), with_unit(None, "B")
        ('8.00 MB', '512 B', '32.0 PFLOPs', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    thousands = int(math.log10(value) // 3) if value >= 1000 else 0
    if thousands > 6:
        return f"{value:.2e} {unit}"
    return f"{number(value / 1000**thousands)} {('', 'k', 'M', 'G', 'T', 'P', 'E')[thousands]}{unit}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(markdown(["a", "b"], [["1", "2"]]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    return "\n".join(
        ["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *("| " + " | ".join(r) + " |" for r in rows)]
    )


def fenced(text: str) -> str:
    """A text as it is, in a fence that is longer than any in it.

    Example:
        >>> print(fenced("a|b"))
        ```text
        a|b
        ```
    """
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def without_nan(value: Any) -> Any:
    """The same with None for what is not a number, which JSON has no word for.

    Args:
        value: nested dicts and lists of plain values.

    Example:
        >>> without_nan({"a": {"b": [[1.0, math.nan]]}, "c": 1})
        {'a': {'b': [[1.0, None]]}, 'c': 1}
    """
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value

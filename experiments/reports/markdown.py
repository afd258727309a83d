"""Markdown tables, and numbers as they show them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with significant digits.

    Example:
        >>> number(0.012345), number(1234.5), number(None)
        ('0.0123', '1234', '-')
    """
    if not _known(value):
        return "-"
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def with_error(value: float | None, error: float | None = None, sign: str = "") -> str:
    """Format a number with three decimals, and its standard error or deviation if there is one.

    Example:
        >>> with_error(2.25, 0.0123), with_error(2.25), with_error(0.1, sign="+"), with_error(None)
        ('2.250 ± 0.012', '2.250', '+0.100', '-')
    """
    if not _known(value):
        return "-"
    return f"{value:{sign}.3f}" + (f" ± {error:.3f}" if _known(error) else "")


def with_unit(value: float | None, unit: str) -> str:
    """Format a large number with a thousands prefix, or as a power of ten beyond exa.

    Example:
        >>> with_unit(8_000_000, "B"), with_unit(512, "B"), with_unit(3.2e16, "FLOPs"), with_unit(None, "B")
        ('8.00 MB', '512 B', '32.0 PFLOPs', '-')
    """
    if not _known(value):
        return "-"
    thousands = int(math.log10(value) // 3) if value >= 1000 else 0
    if thousands > 6:
        return f"{value:.2e} {unit}"
    return f"{number(value / 1000**thousands)} {('', 'k', 'M', 'G', 'T', 'P', 'E')[thousands]}{unit}"


def percent(share: float) -> str:
    """Format a share in per cent.

    Example:
        >>> percent(0.9834)
        '98.3 %'
    """
    return f"{100 * share:.1f} %"


def plain(text: str) -> str:
    r"""Return the text in one line that opens no tag, code span, link or cell, as names and options of others may.

    Example:
        >>> plain("a\n<img src=x>`"), plain("![x](y)")
        ('a &lt;img src=x>\\`', '![x]\\(y)')
    """
    escaped = re.sub(r"([\\`|])", r"\\\1", " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;"))
    return escaped.replace("](", "]\\(").replace("][", "]\\[")


def code(value: Any) -> str:
    r"""Return a value as a code span of one line, in more backticks than it holds in a row.

    Example:
        >>> code("a\nb"), code("a`b")
        ('`a b`', '`` a`b ``')
    """
    text, marks = " ".join(str(value).split()), "`"
    while marks in text:
        marks += "`"
    return f"`{text}`" if marks == "`" else f"{marks} {text} {marks}"


def option_text(value: Any) -> str:
    """Format the value of an option; a dash if it has none."""
    return "-" if value is None else plain(str(value))


def options_text(options: Mapping[str, Any] | None) -> str:
    """Format options by name in one line.

    Example:
        >>> options_text({"num_layers": 2, "cap": None})
        'num_layers 2, cap -'
    """
    return ", ".join(f"{plain(str(name))} {option_text(value)}" for name, value in (options or {}).items())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def with_table(text: str, script: str, table: str) -> str:
    r"""Return a page with a fresh table of a script, between the comments that mark its place.

    Example:
        >>> with_table("A\n<!-- table: mine.py -->\nold\n<!-- end of table -->\n", "mine.py", "new\n")
        'A\n<!-- table: mine.py -->\n\nnew\n\n<!-- end of table -->\n'
    """
    start, end = f"<!-- table: {script} -->\n", "<!-- end of table -->\n"
    before, *after = text.split(start)
    if len(after) != 1 or end not in after[0]:
        raise ValueError(f"text must have {start!r} once and then {end!r}, got it {len(after)} times")
    return f"{before}{start}\n{table}\n{end}{after[0].partition(end)[2]}"


def bullets(lines: Sequence[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def fenced(text: str) -> str:
    """Return a text in a fence that is longer than any fence in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def without_nan(value: Any) -> Any:
    """Replace NaN by None in nested dicts and lists: JSON has no NaN.

    Example:
        >>> without_nan({"a": {"b": [[1.0, math.nan]]}, "c": 1})
        {'a': {'b': [[1.0, None]]}, 'c': 1}
    """
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def rounded(value: Any) -> Any:
    """Return plain data with nine significant digits, which are enough for any table, and half as long.

    Example:
        >>> rounded({"nats": [164381.87776708603, 2.0], "bytes": 1044996})
        {'nats': [164381.878, 2.0], 'bytes': 1044996}
    """
    if isinstance(value, Mapping):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry) for entry in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def score_text(value: float | None, limits: Sequence[float] | None = None) -> str:
    """Format a score and its interval.

    Example:
        >>> score_text(0.512, (0.4, 0.6)), score_text(0.5)
        ('0.512 [0.400, 0.600]', '0.500')
    """
    if not _known(value):
        return "-"
    return f"{value:.3f}" + (f" [{limits[0]:.3f}, {limits[1]:.3f}]" if limits else "")

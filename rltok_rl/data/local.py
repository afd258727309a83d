"""Text that is on every machine with a Python."""

from __future__ import annotations

import sysconfig
from pathlib import Path

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
"""Folder of the sources that :func:`local_code` reads."""


def local_prose(num_bytes: int | None = None) -> bytes:
    """English prose that every Python brings along: the language reference behind ``help()``.

    Args:
        num_bytes: how much of it, from the start; None for all (about 700 kB).

    Returns:
        UTF-8 bytes with single spaces, headings without their underlines.

    Example:
        >>> len(local_prose(100))
        100
    """
    from pydoc_data.topics import topics

    first = [name for name in ("execmodel", "objects", "naming", "exceptions") if name in topics]
    chapters = [topics[name] for name in first] + [topics[name] for name in sorted(set(topics) - set(first))]
    lines = [line for chapter in chapters for line in chapter.splitlines() if line.strip("*=-~^ ")]
    return " ".join(" ".join(lines).split()).encode("utf-8")[:num_bytes]


def local_code(num_bytes: int | None = None) -> bytes:
    """Python source that every Python brings along: the standard library, without its tests.

    Args:
        num_bytes: how much of it, from the start; None for all (about 12 MB).

    Returns:
        UTF-8 bytes, files in the order of their names.

    Example:
        >>> len(local_code(100))
        100
    """
    parts, size = [], 0
    for path in sorted(STANDARD_LIBRARY.rglob("*.py")):
        inside = path.relative_to(STANDARD_LIBRARY).parts
        if any(part in ("site-packages", "dist-packages") or part.startswith("test") for part in inside):
            continue
        parts.append(path.read_bytes())
        size += len(parts[-1]) + 1
        if num_bytes is not None and size >= num_bytes:
            break
    return b"\n".join(parts)[:num_bytes]

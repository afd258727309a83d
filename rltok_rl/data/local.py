"""Text that is on every machine with a Python."""

from __future__ import annotations


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

"""Numbers that callers give, checked by name."""

from __future__ import annotations

import operator


def check_count(name: str, value: object, *, minimum: int = 1) -> int:
    """Require an integer of at least ``minimum``; NumPy's integers are integers too.

    Args:
        name: what the message calls it.
        value: what was given.
        minimum: the least that is allowed.

    Example:
        >>> check_count("num_steps", 3)
        3
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return count

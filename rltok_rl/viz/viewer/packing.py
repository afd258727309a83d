"""Numbers as short texts: 16 bits each, and one bit for a yes or no, in base64.

A page of 100,000 bytes holds half a dozen figures of each. As JSON they would be several times as long, and take a
browser several times as long to read.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MISSING = 65_535
"""The code that stands for nothing."""
_LAST = MISSING - 1


def pack_bytes(content: bytes) -> str:
    """Bytes in base64.

    Args:
        content: any bytes.
    """
    return base64.b64encode(content).decode("ascii")


def pack_bits(flags: Sequence[bool] | np.ndarray) -> str:
    """Yes or no, eight to a byte, the first in its lowest bit.

    Args:
        flags: bool or 0/1.

    Example:
        >>> pack_bits([True, False, True])
        'BQ=='
    """
    return pack_bytes(np.packbits(np.asarray(flags, dtype=bool), bitorder="little").tobytes())


def pack_numbers(values: Sequence[float] | np.ndarray) -> dict[str, Any] | None:
    """Numbers as the nearest of 65,535 steps from the least to the greatest.

        v_t = low + (high - low) c_t / 65534,        c_t = 65535 where there is none

    Args:
        values: finite numbers, NaN for none.

    Returns:
        ``low``, ``high`` and ``data``: codes of 16 bits, the lower byte first, in base64. None where all are NaN.

    Example:
        >>> held = pack_numbers([0.0, float("nan"), 1.0])
        >>> held["low"], held["high"], unpack_numbers(held).tolist()
        (0.0, 1.0, [0.0, nan, 1.0])
    """
    given = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(given)
    if not known.any():
        return None
    if np.isinf(given).any():
        raise ValueError(f"values must be finite numbers or NaN, got {given[np.isinf(given)][0]}")
    low, high = float(given[known].min()), float(given[known].max())
    codes = np.full(len(given), MISSING, dtype="<u2")
    scale = (high - low) or 1.0
    codes[known] = np.rint((given[known] - low) / scale * _LAST)
    return {"low": low, "high": high, "data": pack_bytes(codes.tobytes())}


def unpack_numbers(held: Mapping[str, Any]) -> np.ndarray:
    """What :func:`pack_numbers` packed, each number to half a step; the page's script does the same.

    Args:
        held: ``low``, ``high``, ``data``.
    """
    codes = np.frombuffer(base64.b64decode(held["data"]), dtype="<u2")
    values = held["low"] + (held["high"] - held["low"]) * codes / _LAST
    return np.where(codes == MISSING, np.nan, values)

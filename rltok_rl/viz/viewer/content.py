"""Content of a viewer page: texts, segmenters, and metrics of each byte at one or more times.

Byte t has costs, ``early_bits`` and ``final_bits``. The decision after it has ``probability``, ``score``, ``reward``,
``return`` and ``advantage``. Numbers are stored as 16 bits each in base64, several times shorter than as JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NUMBERS = ("probability", "score", "early_bits", "final_bits", "reward", "return", "advantage")
"""Metrics of bytes; rewards, returns and advantages in nats."""
METRICS = ("bits_per_byte", "early_bits_per_byte", "rate", "bytes_per_token", "tokens")
"""Metrics of a whole snapshot."""
MISSING = 65_535
"""The code of a missing number."""


@dataclass(frozen=True)
class Snapshot:
    """A text of N bytes with a segmenter's boundaries at some time."""

    label: str
    boundaries: Sequence[bool] | np.ndarray
    """N decisions, one after each byte."""
    forced: Sequence[bool] | np.ndarray = ()
    """N, boundaries that are no decisions; empty for none."""
    decided: int | None = None
    """Bytes that were read, from the first on; later ones were predicted at most. None for all."""
    numbers: Mapping[str, Sequence[float] | np.ndarray] = field(default_factory=dict)
    """N each by a name of :data:`NUMBERS`, NaN where undefined."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By a name of :data:`METRICS`."""


@dataclass(frozen=True)
class Segmented:
    """Snapshots of one segmenter, the earliest first, with a sentence or two about how the metrics were computed."""

    name: str
    snapshots: Sequence[Snapshot]
    about: str = ""


@dataclass(frozen=True)
class TextView:
    """A text with the boundaries of several segmenters, and remarks about their metrics."""

    name: str
    text: bytes
    segmenters: Sequence[Segmented]
    about: str = ""


def packed(view: TextView) -> dict[str, Any]:
    """Encode a view for JSON."""
    if not view.text:
        raise ValueError(f"text of {view.name!r} must have at least 1 byte, got an empty text")
    if not view.segmenters or not all(segmented.snapshots for segmented in view.segmenters):
        raise ValueError(f"segmenters of {view.name!r} must be at least one, each with at least one snapshot")
    segmenters = []
    for segmented in view.segmenters:
        snapshots = [_packed_snapshot(snapshot, len(view.text)) for snapshot in segmented.snapshots]
        segmenters.append({"name": segmented.name, "about": segmented.about, "looks": snapshots})
    text = {"name": view.name, "about": view.about, "size": len(view.text), "data": _base64(view.text)}
    return {**text, "segmenters": segmenters}


def pack_bits(flags: Sequence[bool] | np.ndarray) -> str:
    """Pack flags eight to a byte, the first in its lowest bit, in base64."""
    return _base64(np.packbits(np.asarray(flags, dtype=bool), bitorder="little").tobytes())


def pack_numbers(values: Sequence[float] | np.ndarray) -> dict[str, Any] | None:
    """Round numbers to the nearest of 65,535 steps from the least to the greatest.

        v_t = low + (high - low) c_t / 65534,        c_t = 65535 for NaN

    ``data`` holds the codes c of 16 bits, the lower byte first, in base64. None if all numbers are NaN.
    """
    exact = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(exact)
    if not known.any():
        return None
    if np.isinf(exact).any():
        raise ValueError(f"values must be finite numbers or NaN, got {exact[np.isinf(exact)][0]}")
    low, high = float(exact[known].min()), float(exact[known].max())
    codes = np.full(len(exact), MISSING, dtype="<u2")
    codes[known] = np.rint((exact[known] - low) / ((high - low) or 1.0) * (MISSING - 1))
    return {"low": low, "high": high, "data": _base64(codes.tobytes())}


def _packed_snapshot(snapshot: Snapshot, size: int) -> dict[str, Any]:
    forced = {"forced": snapshot.forced} if len(snapshot.forced) else {}
    for name, values in {"boundaries": snapshot.boundaries, **snapshot.numbers, **forced}.items():
        if len(values) != size:
            raise ValueError(f"{name} must have one entry per byte of the text, {size}, got {len(values)}")
    for kind, allowed, names in (("numbers", NUMBERS, snapshot.numbers), ("metrics", METRICS, snapshot.metrics)):
        unknown = sorted(set(names) - set(allowed))
        if unknown:
            raise ValueError(f"{kind} must be among {list(allowed)}, got {unknown}")
    numbers = {name: pack_numbers(values) for name, values in snapshot.numbers.items()}
    return {
        "label": snapshot.label,
        "decided": size if snapshot.decided is None else snapshot.decided,
        "boundaries": pack_bits(snapshot.boundaries),
        "forced": pack_bits(snapshot.forced) if forced else None,
        "numbers": {name: values for name, values in numbers.items() if values is not None},
        "figures": {name: float(value) for name, value in snapshot.metrics.items()},
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")

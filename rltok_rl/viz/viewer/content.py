"""What a page shows: texts, who cut them, and each byte's figures at one time or several.

A text of N bytes has N figures of each kind. What byte t cost, ``early_bits`` and ``final_bits``, is of that byte;
``probability``, ``score``, ``reward``, ``return`` and ``advantage`` are of the decision after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rltok_rl.viz.viewer.packing import pack_bits, pack_bytes, pack_numbers

NUMBERS = ("probability", "score", "early_bits", "final_bits", "reward", "return", "advantage")
"""Figures that a byte may have, by name; rewards, returns and advantages in nats."""
FIGURES = ("bits_per_byte", "early_bits_per_byte", "rate", "bytes_per_token", "tokens")
"""Figures of a whole look."""


@dataclass(frozen=True)
class Look:
    """A text as somebody cut it at some time."""

    label: str
    """When, or by what state."""
    boundaries: Sequence[bool] | np.ndarray
    """N decisions: one after each byte."""
    forced: Sequence[bool] | np.ndarray = ()
    """N, where a boundary was nobody's decision; empty for none."""
    decided: int | None = None
    """Bytes, from the first on, that have been read; those after them were predicted at most. None for all."""
    numbers: Mapping[str, Sequence[float] | np.ndarray] = field(default_factory=dict)
    """Of bytes, by a name of :data:`NUMBERS`: N each, NaN where there is nothing to tell."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Of the whole, by a name of :data:`FIGURES`."""


@dataclass(frozen=True)
class Segmented:
    """A text as one segmenter cut it, at one time or again and again while it was trained."""

    name: str
    looks: Sequence[Look]
    about: str = ""
    """How the figures came about, in a sentence or two."""


@dataclass(frozen=True)
class TextView:
    """A text, and all who cut it."""

    name: str
    text: bytes
    segmenters: Sequence[Segmented]
    about: str = ""
    """What there is to know about the text's figures."""


def packed(view: TextView) -> dict[str, Any]:
    """A text and its figures, ready for JSON.

    Args:
        view: at least one byte, cut by at least one segmenter, who was looked at at least once.

    Example:
        >>> look = Look("now", [True, False], numbers={"probability": [float("nan"), 0.25]})
        >>> content = packed(TextView("two bytes", b"ab", [Segmented("mine", [look])]))
        >>> content["size"], content["data"], sorted(content["segmenters"][0]["looks"][0]["numbers"])
        (2, 'YWI=', ['probability'])
    """
    if not view.text:
        raise ValueError(f"text of {view.name!r} must have at least 1 byte, got an empty text")
    if not view.segmenters or not all(segmented.looks for segmented in view.segmenters):
        raise ValueError(f"segmenters of {view.name!r} must be at least one, each with at least one look")
    return {
        "name": view.name,
        "about": view.about,
        "size": len(view.text),
        "data": pack_bytes(view.text),
        "segmenters": [
            {
                "name": segmented.name,
                "about": segmented.about,
                "looks": [_packed_look(look, len(view.text)) for look in segmented.looks],
            }
            for segmented in view.segmenters
        ],
    }


def _packed_look(look: Look, size: int) -> dict[str, Any]:
    given = {"boundaries": look.boundaries, **look.numbers, **({"forced": look.forced} if len(look.forced) else {})}
    for name, values in given.items():
        if len(values) != size:
            raise ValueError(f"{name} must have one entry per byte of the text, {size}, got {len(values)}")
    for kind, allowed, names in (("numbers", NUMBERS, look.numbers), ("figures", FIGURES, look.figures)):
        unknown = sorted(set(names) - set(allowed))
        if unknown:
            raise ValueError(f"{kind} must be among {list(allowed)}, got {unknown}")
    numbers = {name: pack_numbers(values) for name, values in look.numbers.items()}
    return {
        "label": look.label,
        "decided": size if look.decided is None else look.decided,
        "boundaries": pack_bits(look.boundaries),
        "forced": pack_bits(look.forced) if len(look.forced) else None,
        "numbers": {name: held for name, held in numbers.items() if held is not None},
        "figures": {name: float(value) for name, value in look.figures.items()},
    }

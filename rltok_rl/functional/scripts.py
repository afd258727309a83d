"""The script of a text, byte by byte, without looking ahead.

Each byte takes the script of the last letter that is complete at that byte, and ``"other"`` before the first letter.
Digits, marks, spaces and symbols have no script.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rltok_rl.functional.takes import readable, takes
from rltok_rl.renamed import renamed_names

SCRIPTS = ("other", "latin", "devanagari", "cyrillic")
"""Scripts by number. Letters of all further scripts are ``"other"``."""

_NONE = -1
_RANGES = {  # first and last code points
    "latin": (
        [(0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xBA, 0xBA), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x2AF)]
        + [(0x1D00, 0x1DBF), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xFB00, 0xFB06)]
        + [(0xFF21, 0xFF3A), (0xFF41, 0xFF5A)]
    ),
    # Bengali and Telugu go with Devanagari, as in MAGNET's configuration.
    "devanagari": [(0x900, 0x963), (0x966, 0x9FF), (0xC00, 0xC7F), (0xA8E0, 0xA8FF)],
    "cyrillic": [(0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)],
    # Marks, symbols, combining accents, pictures: of no script.
    "": (
        [(0x0, 0x40), (0x5B, 0x60), (0x7B, 0xA9), (0xAB, 0xB9), (0xBB, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7)]
        + [(0x2B0, 0x36F), (0x964, 0x965), (0x2000, 0x2BFF), (0x3000, 0x3004), (0x3008, 0x3020), (0xFE00, 0xFE0F)]
        + [(0xFEFF, 0xFEFF), (0xFF01, 0xFF20), (0x1F000, 0x1FAFF), (0xE0000, 0xE01EF)]
    ),
}


@takes("byte_ids: ids *B T")
def script_at(byte_ids: Tensor) -> Tensor:
    """Return the script [*B, T] of the character that ends at each byte, as a place in :data:`SCRIPTS`.

    -1 inside characters, after marks, and for special ids or invalid UTF-8.

    Example:
        >>> script_at(torch.tensor(list("a, я".encode()))).tolist()
        [1, -1, -1, -1, 3]
    """
    return _script_at(byte_ids)


def _script_at(byte_ids: Tensor) -> Tensor:
    starts, names = _table()
    point = _code_points(byte_ids)
    place = torch.bucketize(point.clamp(min=0), starts.to(point.device, non_blocking=True), right=True) - 1
    return torch.where(point < 0, _NONE, names.to(point.device, non_blocking=True)[place])


@takes("scripts: int *B T", "before: int *B")
def running_script(scripts: Tensor, before: Tensor | None = None) -> Tensor:
    """Fill each -1 with the last script before it; ``before`` [*B] is that of the text before (None: ``"other"``)."""
    for name, numbers, least in (("scripts", scripts, _NONE), ("before", before, 0)):
        if numbers is not None and readable(numbers) and numbers.numel():
            low, high = (int(x) for x in numbers.aminmax())
            if low < least or high >= len(SCRIPTS):
                raise ValueError(f"{name} must lie in {least}..{len(SCRIPTS) - 1}, got values from {low} to {high}")
    return _filled(scripts, before)


def _filled(scripts: Tensor, before: Tensor | None) -> Tensor:
    first = torch.zeros_like(scripts[..., :1]) if before is None else before.unsqueeze(-1)
    known = torch.cat((first, scripts), -1)  # [*B, 1 + T]
    places = torch.arange(known.shape[-1], device=known.device).expand_as(known)
    last = torch.where(known == _NONE, 0, places).cummax(-1).values
    return known.gather(-1, last)[..., 1:]


@takes("byte_ids: ids *B T")
def scripts_of(byte_ids: Tensor) -> Tensor:
    """Return the script of each byte [*B, T], as a place in :data:`SCRIPTS`."""
    return _filled(_script_at(byte_ids), None)


__getattr__ = renamed_names(globals(), {"script_told": "script_at"})


def _code_points(byte_ids: Tensor) -> Tensor:
    """The character that ends at each byte, or -1."""
    wide = byte_ids.long()
    b0, b1, b2, b3 = (F.pad(wide, (back, 0))[..., : wide.shape[-1]] for back in range(4))  # b1 is the byte before
    later0, later1, later2 = ((b & 0xC0) == 0x80 for b in (b0, b1, b2))
    of_two = (b1 & 0x1F) << 6 | b0 & 0x3F
    of_three = (b2 & 0x0F) << 12 | (b1 & 0x3F) << 6 | b0 & 0x3F
    of_four = (b3 & 0x07) << 18 | (b2 & 0x3F) << 12 | (b1 & 0x3F) << 6 | b0 & 0x3F
    # A character has one encoding, the shortest; surrogates and numbers above 0x10FFFF are no characters.
    two = later0 & (b1 >= 0xC2) & (b1 <= 0xDF)
    three = later0 & later1 & (b2 >= 0xE0) & (b2 <= 0xEF) & (of_three >= 0x800) & (of_three & 0xF800 != 0xD800)
    four = later0 & later1 & later2 & (b3 >= 0xF0) & (b3 <= 0xF4) & (of_four >= 0x10000) & (of_four <= 0x10FFFF)
    point = torch.where(b0 < 0x80, b0, _NONE)
    for valid, value in ((two, of_two), (three, of_three), (four, of_four)):
        point = torch.where(valid, value, point)
    return torch.where(wide > 0xFF, _NONE, point)


def _table() -> tuple[Tensor, Tensor]:
    """First code points of the runs of one script, and their scripts."""
    number = {**{name: place for place, name in enumerate(SCRIPTS)}, "": _NONE}
    runs, after = [], 0
    for low, high, script in sorted((*span, number[name]) for name, spans in _RANGES.items() for span in spans):
        runs += [(after, 0), (low, script)] if low > after else [(low, script)]
        after = high + 1
    starts, names = zip(*runs, (after, 0), strict=True)
    return torch.tensor(starts), torch.tensor(names)

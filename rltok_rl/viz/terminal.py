"""Text in a terminal, coloured by the probability of a boundary after each character."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor

from rltok_rl.utils import check_count

PIECE = 1 << 16
"""Bytes that are rendered at once."""
# From unlikely (blue) to likely (yellow), as in the paper's Figure 2; distinct without red or green.
_RAMP = (24, 31, 67, 103, 145, 187, 228, 226)
_RESET = "\x1b[0m"


def boundary_text(
    text: bytes,
    boundaries: Sequence[bool],
    probabilities: Sequence[float] | None = None,
    *,
    colour: bool = True,
    mark: str = "|",
) -> str:
    r"""Render bytes with a mark after each boundary, in ANSI colours of the boundary probabilities.

    Without probabilities, decisions are coloured. A character of several bytes takes the probability of its last byte
    (as in the paper's figures) and the boundaries of all its bytes. Invalid UTF-8 and control characters other than
    newline are shown as ``\\xNN``.

    Example:
        >>> boundary_text(b"to be", [1, 0, 1, 0, 0], colour=False)
        't|o |be'
    """
    if probabilities is None:
        probabilities = [float(b) for b in boundaries]
    check_marks(text, boundaries, probabilities)
    pieces = []
    for start, end, shown in characters(text):
        level = min(int(probabilities[end - 1] * len(_RAMP)), len(_RAMP) - 1) if colour else None
        pieces.append((level, shown + mark * sum(map(bool, boundaries[start:end]))))
    # One escape per run of a colour, not per character: long texts scroll several times faster.
    runs = ((level, "".join(p for _, p in run)) for level, run in groupby(pieces, key=lambda piece: piece[0]))
    return "".join(run if level is None else f"\x1b[38;5;{_RAMP[level]}m{run}{_RESET}" for level, run in runs)


def boundary_pieces(
    text: bytes, boundaries: Tensor, probabilities: Tensor, *, piece: int = PIECE, **options: Any
) -> Iterator[str]:
    """Render a long text of T bytes in pieces of about ``piece`` bytes, so that memory holds one of them at a time.

    Joined, the pieces are :func:`boundary_text` of the whole text with the same options, except that colours restart at
    each piece. Boundaries and probabilities are tensors [T].
    """
    check_count("piece", piece)
    if not len(text) == len(boundaries) == len(probabilities):
        raise ValueError(
            f"boundaries and probabilities must have one entry per byte of text, {len(text)}, got {len(boundaries)} "
            f"and {len(probabilities)}"
        )
    start = 0
    while start < len(text):
        end = start + piece
        while end < min(len(text), start + piece + 3) and text[end] & 0xC0 == 0x80:  # inside a character
            end += 1
        marks = (boundaries[start:end].tolist(), probabilities[start:end].tolist())
        yield boundary_text(text[start:end], *marks, **options)
        start = end


class BoundaryStream:
    r"""Text with its boundaries for a terminal, shown as soon as each character is complete.

    Joined, the output is ``boundary_text(..., colour=False)`` of all bytes.

    Example:
        >>> shown = BoundaryStream()
        >>> [shown.feed(byte, boundary) for byte, boundary in zip("né!".encode(), (True, False, True, False))]
        ['n|', '', 'é|', '!']
    """

    def __init__(self, mark: str = "|") -> None:
        self.mark = mark
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._bytes = b""  # not shown yet
        self._marks: list[bool] = []

    def feed(self, byte: int, boundary: bool = False) -> str:
        """Add a byte and whether a boundary follows it; return what is complete."""
        self._bytes += bytes([byte])
        self._marks.append(bool(boundary))
        return self._show(self._decoder.decode(bytes([byte])))

    def close(self) -> str:
        """Return the bytes of a character that was cut off."""
        return self._show(self._decoder.decode(b"", final=True))

    def _show(self, decoded: str) -> str:
        size = len(decoded.encode("utf-8", "surrogateescape"))
        shown = boundary_text(self._bytes[:size], self._marks[:size], colour=False, mark=self.mark)
        self._bytes, self._marks = self._bytes[size:], self._marks[size:]
        return shown


def check_marks(text: bytes, boundaries: Sequence[bool] | None, probabilities: Sequence[float]) -> None:
    """Require one decision and one probability in [0, 1] per byte."""
    for name, values in (("boundaries", boundaries), ("probabilities", probabilities)):
        if values is not None and len(values) != len(text):
            raise ValueError(f"{name} must have one entry per byte of text, {len(text)}, got {len(values)}")
    for p in probabilities:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"probabilities must lie in [0, 1], got {p}")


def characters(text: bytes) -> list[tuple[int, int, str]]:
    """Split into (start, end, text to show), one entry per character."""
    result, start = [], 0
    for character in text.decode("utf-8", "surrogateescape"):
        content = character.encode("utf-8", "surrogateescape")
        plain = character.isprintable() or character == "\n"
        shown = character if plain else "".join(f"\\x{byte:02x}" for byte in content)
        result.append((start, start + len(content), shown))
        start += len(content)
    return result

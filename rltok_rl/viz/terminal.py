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
_ESCAPED = 0xDC00  # plus a byte of no character: how Python decodes it without loss


def boundary_text(
    text: bytes,
    boundaries: Sequence[bool],
    probabilities: Sequence[float] | None = None,
    *,
    colour: bool = True,
    mark: str = "|",
) -> str:
    r"""Render bytes with a mark after each boundary, coloured by boundary probability.

    A character of several bytes takes the probability of its last byte (as in the paper's figures) and the boundaries
    of all its bytes. Invalid UTF-8 and control characters other than newline are shown as ``\\xNN``.

    Args:
        text: T bytes.
        boundaries: T decisions.
        probabilities: T numbers in [0, 1]; None colours the decisions.
        colour: writes ANSI colours; without them the marks remain.
        mark: written after a character for each boundary of its bytes.

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
    """Render a long text piece by piece, so that memory holds one of them at a time.

    Joined, the pieces are :func:`boundary_text` of the whole text, except that colours restart at each piece.

    Args:
        text: T bytes.
        boundaries: [T] decisions.
        probabilities: [T] numbers in [0, 1].
        piece: bytes to render at once; a piece ends with a character.
        **options: of :func:`boundary_text`.

    Example:
        >>> "".join(boundary_pieces("né".encode(), torch.tensor([1, 0, 1]), torch.ones(3), piece=2, colour=False))
        'n|é|'
    """
    check_count("piece", piece)
    if not len(text) == len(boundaries) == len(probabilities):
        raise ValueError(
            f"boundaries and probabilities must have one entry per byte of text, {len(text)}, got {len(boundaries)} "
            f"and {len(probabilities)}"
        )
    start = 0
    while start < len(text):
        end = _character_end(text, start + piece)
        marks = (boundaries[start:end].tolist(), probabilities[start:end].tolist())
        yield boundary_text(text[start:end], *marks, **options)
        start = end


class BoundaryStream:
    r"""Text with its boundaries for a terminal, shown as soon as each character is complete.

    Joined, the output is ``boundary_text(..., colour=False)`` of all bytes.

    Args:
        mark: written after a character for each boundary of its bytes.

    Example:
        >>> shown = BoundaryStream()
        >>> [shown.feed(byte, boundary) for byte, boundary in zip("né!".encode(), (True, False, True, False))]
        ['n|', '', 'é|', '!']
    """

    def __init__(self, mark: str = "|") -> None:
        self.mark = mark
        self._bytes = bytearray()  # of an incomplete character
        self._marks: list[bool] = []  # of each of them

    def feed(self, byte: int, boundary: bool = False) -> str:
        """Add a byte and whether a boundary follows it; return what is complete."""
        self._bytes.append(byte)
        self._marks.append(bool(boundary))
        shown = ""
        while self._bytes and not _incomplete(bytes(self._bytes)):
            shown += self._pop()
        return shown

    def close(self) -> str:
        """Return the bytes of a character that was cut off."""
        shown = ""
        while self._bytes:
            shown += self._pop()
        return shown

    def _pop(self) -> str:
        _, end, shown = characters(bytes(self._bytes))[0]
        shown += self.mark * sum(self._marks[:end])
        del self._bytes[:end], self._marks[:end]
        return shown


def check_marks(text: bytes, boundaries: Sequence[bool] | None, probabilities: Sequence[float]) -> None:
    """Require one decision and one probability in [0, 1] per byte."""
    if boundaries is not None and len(boundaries) != len(text):
        raise ValueError(f"boundaries must have one entry per byte of text, {len(text)}, got {len(boundaries)}")
    if len(probabilities) != len(text):
        raise ValueError(f"probabilities must have one entry per byte of text, {len(text)}, got {len(probabilities)}")
    outside = [p for p in probabilities if not 0.0 <= p <= 1.0]
    if outside:
        raise ValueError(f"probabilities must lie in [0, 1], got {outside[0]}")


def characters(text: bytes) -> list[tuple[int, int, str]]:
    """Split into (start, end, text to show), one entry per character."""
    result = []
    start = 0
    for character in text.decode("utf-8", "surrogateescape"):
        code = ord(character)
        single = code < 0x80 or _ESCAPED <= code < _ESCAPED + 0x100
        end = start + (1 if single else len(character.encode()))
        if character.isprintable() or character == "\n":
            shown = character
        else:
            shown = "".join(f"\\x{byte:02x}" for byte in text[start:end])
        result.append((start, end, shown))
        start = end
    return result


def _incomplete(start: bytes) -> bool:
    """Whether these are the first bytes of a character that lacks some."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(start) == ""
    except UnicodeDecodeError:
        return False


def _character_end(text: bytes, place: int) -> int:
    """The first place from ``place`` on that cuts no character."""
    start = max(0, place - 3)
    return next((start + end for _, end, _ in characters(text[start : place + 3]) if start + end >= place), len(text))

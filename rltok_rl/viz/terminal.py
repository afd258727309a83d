"""Text in a terminal, coloured by how likely a boundary follows each character."""

from __future__ import annotations

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
_ESCAPED = 0xDC00  # plus a byte that is no UTF-8: how Python decodes that one without loss


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
    of all its bytes. Bytes that are no UTF-8 are shown as ``\\xNN``, control characters other than newline as well.

    Args:
        text: T bytes.
        boundaries: T decisions.
        probabilities: T numbers in [0, 1]; None colours the decisions alone.
        colour: write ANSI colours; without them the marks remain.
        mark: what a boundary looks like.

    Returns:
        The text, ready to print.

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
    """The same of a long text, piece by piece, so that memory holds one of them at a time.

    Put together they are :func:`boundary_text` of it all, but for colours that begin anew at each piece. Pieces end
    where characters do.

    Args:
        text: T bytes.
        boundaries: [T] decisions.
        probabilities: [T] numbers in [0, 1].
        piece: bytes to render at once.
        **options: those of :func:`boundary_text`.

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
        end = character_end(text, start + piece)
        marked = (boundaries[start:end].tolist(), probabilities[start:end].tolist())
        yield boundary_text(text[start:end], *marked, **options)
        start = end


def character_end(text: bytes, place: int) -> int:
    """The first place from ``place`` on where no character of UTF-8 is cut.

    Args:
        text: any bytes.
        place: in bytes.

    Example:
        >>> character_end("né".encode(), 2)
        3
        >>> character_end(bytes([0x80] * 9), 5)  # continues no character
        5
    """
    for begin in range(max(0, place - 3), place):
        for end in range(place + 1, min(begin + 4, len(text)) + 1):
            try:
                if len(text[begin:end].decode("utf-8")) == 1:
                    return end
            except UnicodeDecodeError:
                continue
    return min(place, len(text))


def check_marks(text: bytes, boundaries: Sequence[bool] | None, probabilities: Sequence[float]) -> None:
    """Refuse decisions and probabilities that are not one per byte, and probabilities that are none.

    Args:
        text: T bytes.
        boundaries: T decisions, or None.
        probabilities: T numbers in [0, 1].
    """
    if boundaries is not None and len(boundaries) != len(text):
        raise ValueError(f"boundaries must have one entry per byte of text, {len(text)}, got {len(boundaries)}")
    if len(probabilities) != len(text):
        raise ValueError(f"probabilities must have one entry per byte of text, {len(text)}, got {len(probabilities)}")
    outside = [p for p in probabilities if not 0.0 <= p <= 1.0]
    if outside:
        raise ValueError(f"probabilities must lie in [0, 1], got {outside[0]}")


def characters(text: bytes) -> list[tuple[int, int, str]]:
    """Split into (start, end, what to show), one entry per character."""
    out = []
    start = 0
    for character in text.decode("utf-8", "surrogateescape"):
        code = ord(character)
        alone = code < 0x80 or _ESCAPED <= code < _ESCAPED + 0x100
        end = start + (1 if alone else len(character.encode()))
        if character.isprintable() or character == "\n":
            shown = character
        else:
            shown = "".join(f"\\x{byte:02x}" for byte in text[start:end])
        out.append((start, end, shown))
        start = end
    return out

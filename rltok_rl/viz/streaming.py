"""Text with its boundaries, byte by byte as it is written."""

from __future__ import annotations

import codecs

from rltok_rl.viz.terminal import characters


class BoundaryStream:
    r"""Turns bytes into text that a terminal can show, as soon as a character is complete.

    What it gives, put together, is ``boundary_text(..., colour=False)`` of all bytes: bytes that are no UTF-8, and
    control characters other than newline, are shown as ``\\xNN``.

    Args:
        mark: written after a character for each boundary of its bytes.

    Example:
        >>> shown = BoundaryStream()
        >>> [shown.feed(byte, boundary) for byte, boundary in zip("né!".encode(), (True, False, True, False))]
        ['n|', '', 'é|', '!']
    """

    def __init__(self, mark: str = "|") -> None:
        self.mark = mark
        self._bytes = bytearray()  # of a character that is not yet complete
        self._marks: list[bool] = []  # of each of them

    def feed(self, byte: int, boundary: bool = False) -> str:
        """What can be shown after one more byte.

        Args:
            byte: 0 to 255.
            boundary: whether a boundary was drawn after it.
        """
        self._bytes.append(byte)
        self._marks.append(bool(boundary))
        shown = ""
        while self._bytes and not _may_go_on(bytes(self._bytes)):
            shown += self._take_one()
        return shown

    def close(self) -> str:
        """What is left: the bytes of a character that was cut off."""
        shown = ""
        while self._bytes:
            shown += self._take_one()
        return shown

    def _take_one(self) -> str:
        _, end, shown = characters(bytes(self._bytes))[0]
        shown += self.mark * sum(self._marks[:end])
        del self._bytes[:end], self._marks[:end]
        return shown


def _may_go_on(taken: bytes) -> bool:
    """Whether these are the first bytes of one character that lacks some."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(taken) == ""
    except UnicodeDecodeError:
        return False

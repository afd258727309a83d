"""What the demo writes: headings, coloured words, and lines that are drawn again in place while trainings run."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from rltok_rl.training.progress import bar, clock

_STYLES = {"bold": "1", "quiet": "38;5;245", "learned": "38;5;37", "uniform": "38;5;245", "good": "1;38;5;37"}
_STYLES |= {"bad": "1;38;5;167"}
_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.:-=+*#"
_LINE_EVERY = 15.0  # seconds between lines where nothing can be drawn again


class Screen:
    """Where words go.

    Args:
        colour: whether to colour them.
        stream: where to write.
    """

    def __init__(self, *, colour: bool, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.colour = colour
        self.terminal = self.stream.isatty()
        self.width = min(100, shutil.get_terminal_size((100, 24)).columns)
        try:
            f"{_LEVELS}──►".encode(getattr(self.stream, "encoding", None) or "utf-8")
            self.blocks = True
        except (LookupError, UnicodeEncodeError):
            self.blocks = False
        self._live = 0  # lines that stand below and will be drawn again
        self._shown = -_LINE_EVERY

    def paint(self, text: str, style: str) -> str:
        """Colour words, where colours are wanted.

        Args:
            text: the words.
            style: a name of this module's styles.
        """
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour else text

    def say(self, text: str = "") -> None:
        """Write lines that stay.

        Args:
            text: as it is.
        """
        self._live = 0
        print(text, file=self.stream, flush=True)

    def tell(self, text: str, *, indent: str = "") -> None:
        """Write a paragraph, wrapped.

        Args:
            text: words and single spaces.
            indent: before each line.
        """
        self.say(textwrap.fill(text, self.width, initial_indent=indent, subsequent_indent=indent))

    def heading(self, text: str) -> None:
        """Write a heading with a line below.

        Args:
            text: of the heading.
        """
        self.say(f"\n{self.paint(text, 'bold')}")
        self.say(self.paint(("─" if self.blocks else "-") * self.width, "quiet"))

    def live(self, lines: Sequence[str], *, seconds: float, plain: str, last: bool = False) -> None:
        """Draw lines in place of those before; where that cannot be done, a plain line now and then.

        Args:
            lines: none longer than the screen, colours apart.
            seconds: so far.
            plain: what to write where there is no terminal.
            last: whether they will not be drawn again.
        """
        if not self.terminal:
            if last or seconds - self._shown >= _LINE_EVERY:
                self._shown = -_LINE_EVERY if last else seconds
                self.say(f"  {plain}")
            return
        up = f"\x1b[{self._live}A" if self._live else ""
        self.stream.write(up + "".join(f"\r\x1b[2K{text}\n" for text in lines))
        self.stream.flush()
        self._live = 0 if last else len(lines)

    def lane(self, name: str, share: float, values: Sequence[float], span: tuple[float, float], note: str) -> str:
        """One training: a bar, a little curve, a note.

        Args:
            name: ``learned`` or ``uniform``.
            share: that is done.
            values: of the curve.
            span: lowest and highest value of the curve.
            note: behind it.
        """
        drawn = bar(share, 20) if self.blocks else bar(share, 20, blocks=" -#")
        edges = ("▕", "▏") if self.blocks else ("[", "]")
        curve = spark(values, *span, levels=_LEVELS if self.blocks else _PLAIN_LEVELS)
        body = f"{name:<8} {edges[0]}{drawn}{edges[1]} {share:>4.0%}  {curve:<21}  "
        return f"  {self.paint(body, name)}{note}"


def spark(values: Sequence[float], low: float, high: float, *, levels: str = _LEVELS) -> str:
    """A curve as high as a line of text.

    Args:
        values: in order.
        low: the value of the lowest level; values below are shown as it.
        high: the value of the highest.
        levels: characters from low to high.

    Example:
        >>> spark([0.0, 0.5, 1.0], 0.0, 1.0, levels="_-^")
        '_-^'
        >>> spark([-3.0, 0.9, 7.0], 0.0, 1.0, levels="_-^")
        '_^^'
    """
    if not high > low:
        raise ValueError(f"high must be above low, got {low} and {high}")
    steps = [int((value - low) / (high - low) * len(levels)) for value in values]
    return "".join(levels[min(max(step, 0), len(levels) - 1)] for step in steps)


def left(share: float, seconds: float) -> str:
    """Time until the end at the speed so far.

    Example:
        >>> left(0.25, 10.0), left(0.0, 3.0), left(1.0, 3.0)
        ('0:30 left', 'starting', 'finishing')
    """
    if share <= 0:
        return "starting"
    return "finishing" if share >= 1 else f"{clock(seconds / share * (1 - share))} left"

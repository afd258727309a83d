"""Progress of a run or command on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TextIO

from tqdm import tqdm
from tqdm.std import Bar

_TEXTS = {
    "share": "share {:.2f}, ",
    "bits_per_byte": "{:.3f} bits/byte, ",
    "rate": "rate {:.3f}, ",
    "entropy": "entropy {:.3f}, ",
}
_LINE = "{percentage:3.0f}% {desc}{rate_noinv_fmt}, {remaining} left"
_BAR = "{percentage:3.0f}% |{bar:28}| {desc}{rate_noinv_fmt}, {remaining} left"


def clock(seconds: float) -> str:
    """Return minutes and seconds, with hours if there are any.

    Example:
        >>> clock(10), clock(3_725)
        ('0:10', '1:02:05')
    """
    return tqdm.format_interval(round(seconds)).removeprefix("0")


def bar(share: float, width: int) -> str:
    """Return a bar that is filled from the left, to an eighth of a character.

    Example:
        >>> bar(0.5, 6)
        '███   '
    """
    return format(Bar(min(max(share, 0.0), 1.0), width))


class Progress:
    """Progress of a run in bytes: a tqdm bar on a terminal, a line every few seconds elsewhere.

    ``done`` are bytes done before, which speed and ETA leave out.
    """

    def __init__(self, total: int, *, done: int = 0, every: float = 10.0, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.total, self.every, self.shown = total, every, 0.0
        self.start = time.perf_counter()
        self._terminal = self.stream.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            file=self.stream,
            bar_format=_BAR if self._terminal else _LINE,
            dynamic_ncols=self._terminal,
            unit="B",
            unit_scale=True,
            smoothing=0,
            delay=1,  # nothing is drawn before the first metrics
        )

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def show(self, metrics: Mapping[str, float], done: int) -> None:
        """Show an update's metrics and the bytes done, if it is time to."""
        now = time.perf_counter()
        if done < self.total and now - self.shown < (0.2 if self._terminal else self.every):
            return
        self.shown = now
        self._bar.total, self._bar.n, self._bar.start_t = self.total, min(done, self.total), time.time() - self.seconds
        self._bar.desc = "".join(text.format(metrics[name]) for name, text in _TEXTS.items() if name in metrics)
        if not self._terminal:
            print(f"  {self._bar}", file=self.stream, flush=True)
        elif done < self.total:
            self._bar.refresh()
        else:
            self._bar.delay = 0
            self._bar.close()

    def print(self, text: str) -> None:
        """Print a line that stays, above the bar."""
        if self._terminal:
            self._bar.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)

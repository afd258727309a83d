"""What is seen of a training while it runs: a bar that is drawn anew, and a table of figures."""

from __future__ import annotations

import csv
import io
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rltok_rl.training.atomic_files import replace_text

_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"  # blocks that are 0 to 8 eighths of a character wide
_BAR = 28  # characters at most


def clock(seconds: float) -> str:
    """Minutes and seconds, hours where there are some.

    Example:
        >>> clock(10), clock(3_725)
        ('0:10', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def bar(share: float, width: int, *, blocks: str = _EIGHTHS) -> str:
    """A bar of block characters, filled from the left to a fraction of a character.

    Args:
        share: how much of it, in [0, 1].
        width: characters in all.
        blocks: an empty character, those in between, a full one.

    Example:
        >>> bar(0.5, 6, blocks=" -#")
        '###   '
        >>> bar(0.25, 6, blocks=" -#")
        '#-    '
    """
    steps = len(blocks) - 1
    whole, part = divmod(int(min(max(share, 0.0), 1.0) * width * steps), steps)
    return (blocks[-1] * whole + (blocks[part] if part else "")).ljust(width, blocks[0])


def describe(
    figures: Mapping[str, float], *, done: int, total: int, seconds: float, before: int = 0, width: int = 0
) -> str:
    """One line on how a training stands.

    Args:
        figures: of the last update.
        done: bytes trained on.
        total: bytes in all.
        seconds: since the training, or its resumption, began.
        before: bytes that were trained on before that.
        width: of a bar behind the share that is done, in characters; 0 leaves it out.

    Example:
        >>> describe({"bits_per_byte": 2.5, "rate": 0.2, "entropy": 0.31}, done=50_000, total=100_000, seconds=10)
        '50% 2.500 bits/byte, rate 0.200, entropy 0.310, 5 kB/s, 0:10 left'
    """
    named = {"bits_per_byte": "{:.3f} bits/byte", "rate": "rate {:.3f}", "entropy": "entropy {:.3f}"}
    parts = [text.format(figures[name]) for name, text in named.items() if name in figures]
    speed = (done - before) / seconds if seconds > 0 else 0.0
    left = clock(max(0, total - done) / speed if speed else 0.0)  # the last update may go beyond
    drawn = f"\u2595{bar(done / total, width)}\u258f " if width else ""
    share = f"{min(1.0, done / total):.0%}".rjust(4 if width else 0)
    rate = f"{speed / 1e3:.0f} kB/s" if speed >= 1e3 else f"{speed:.0f} B/s"
    return f"{share} {drawn}{', '.join([*parts, rate, f'{left} left'])}"


class Progress:
    """Shows the state of a training: a bar in place on a terminal, a line now and then elsewhere.

    Args:
        total: bytes in all.
        done: bytes that were trained on before.
        every: seconds between lines where there is no terminal.
        stream: where to write.
    """

    def __init__(self, total: int, *, done: int = 0, every: float = 10.0, stream: TextIO | None = None) -> None:
        self.total, self.before, self.every = total, done, every
        self.stream = sys.stderr if stream is None else stream
        self.start = time.perf_counter()
        self.shown = 0.0
        self._length = 0  # of the line that stands on the terminal and will be written over

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.start

    def show(self, figures: Mapping[str, float], done: int) -> None:
        """Show an update.

        Args:
            figures: of the update.
            done: bytes trained on.
        """
        now = time.perf_counter()
        terminal = self.stream.isatty()
        if done < self.total and now - self.shown < (0.2 if terminal else self.every):
            return
        self.shown = now
        stands: dict[str, Any] = {"done": done, "total": self.total, "seconds": now - self.start, "before": self.before}
        if not terminal:
            self.stream.write(f"  {describe(figures, **stands)}\n")
        else:
            room = shutil.get_terminal_size((100, 24)).columns - 1  # a full line would break
            spare = room - len(describe(figures, **stands, width=1)) + 1
            line = describe(figures, **stands, width=max(0, min(_BAR, spare)) if self._blocks else 0)[:room]
            ending = "\n" if done >= self.total else ""
            self.stream.write(f"\r{line:<{min(self._length, room)}}{ending}")
            self._length = 0 if ending else len(line)
        self.stream.flush()

    def say(self, text: str) -> None:
        """Write a line that stays, above the bar.

        Args:
            text: without a line break.
        """
        ahead = f"\r{'':<{self._length}}\r" if self._length else ""
        self.stream.write(f"{ahead}{text}\n")
        self.stream.flush()
        self._length, self.shown = 0, 0.0  # the bar is drawn anew at once

    @property
    def _blocks(self) -> bool:
        """Whether the terminal can show block characters."""
        try:
            _EIGHTHS.encode(getattr(self.stream, "encoding", None) or "utf-8")
        except (LookupError, UnicodeEncodeError):
            return False
        return True


class MetricsTable:
    """A CSV file with a line per update, which is on disk before the next update begins.

    A training that resumes goes on after the last update that it keeps: lines of updates that will be done again are
    cut.

    Args:
        path: of the file.
        resume_after: the last update to keep; None begins anew and refuses a file that is there.
    """

    def __init__(self, path: Path, *, resume_after: int | None = None) -> None:
        self.path = path
        self.columns: list[str] = []
        if resume_after is None:
            if path.exists():
                raise FileExistsError(f"{path} holds another run; resume it, or choose another folder")
            return
        if path.exists():
            kept = [row for row in _whole_rows(path) if int(row["update"]) <= resume_after]
            if kept:
                self.columns = list(kept[0])
                text = io.StringIO()
                writer = csv.DictWriter(text, self.columns)
                writer.writeheader()
                writer.writerows(kept)
                replace_text(path, text.getvalue())
            else:
                path.unlink()

    def add(self, update: int, bytes_done: int, figures: Mapping[str, float]) -> None:
        """Write a line.

        Args:
            update: number of the update.
            bytes_done: bytes trained on.
            figures: what to note; the same ones every time.
        """
        row = {"update": update, "bytes": bytes_done, **figures}
        fresh = not self.columns
        if fresh:
            self.columns = list(row)
        if set(row) != set(self.columns):
            raise ValueError(f"figures must be {self.columns[2:]}, got {list(figures)}")
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            if fresh:
                writer.writeheader()
            writer.writerow(row)

    def read(self) -> dict[str, list[float]]:
        """All lines so far, one list per column."""
        return read_table(self.path)


def read_table(path: Path) -> dict[str, list[float]]:
    """The lines of a table that are whole, one list per column; nothing where there is no file.

    Args:
        path: of a file of :class:`MetricsTable`, which may be written at this moment.
    """
    rows = _whole_rows(path) if path.exists() else []
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else [])}


def _whole_rows(path: Path) -> list[dict[str, str]]:
    """The lines that have an end: the last one of a process that was killed may not."""
    text = path.read_text()
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))

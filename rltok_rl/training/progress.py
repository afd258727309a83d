"""What is seen of a training while it runs: one line that is written anew, and a table of figures."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO


def describe(figures: Mapping[str, float], *, done: int, total: int, seconds: float) -> str:
    """One line on how a training stands.

    Args:
        figures: of the last update.
        done: bytes trained on.
        total: bytes in all.
        seconds: since the training, or its resumption, began with 0 bytes of this count.

    Example:
        >>> describe({"bits_per_byte": 2.5, "rate": 0.2, "entropy": 0.31}, done=50_000, total=100_000, seconds=10)
        '50% 2.500 bits/byte, rate 0.200, entropy 0.310, 5 kB/s, 0:10 left'
    """
    named = {"bits_per_byte": "{:.3f} bits/byte", "rate": "rate {:.3f}", "entropy": "entropy {:.3f}"}
    parts = [text.format(figures[name]) for name, text in named.items() if name in figures]
    speed = done / seconds if seconds > 0 else 0.0
    left = (total - done) / speed if speed else 0.0
    minutes, rest = divmod(round(left), 60)
    return f"{done / total:.0%} {', '.join(parts)}, {speed / 1e3:.0f} kB/s, {minutes}:{rest:02d} left"


class Progress:
    """Shows the state of a training: in place on a terminal, as a line now and then elsewhere.

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
        line = describe(figures, done=done - self.before, total=self.total - self.before, seconds=now - self.start)
        ending = "\n" if not terminal or done >= self.total else ""
        self.stream.write(f"\r{line:<100}{ending}" if terminal else f"  {line}\n")
        self.stream.flush()


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
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            # Lines up to a checkpoint are whole; the last line of a process that was killed may not be.
            whole = [row for number, row in enumerate(rows, 1) if row["update"] == str(number)]
            kept = whole[:resume_after]
            if kept:
                self.columns = list(kept[0])
                partial = path.with_suffix(".partial")
                with partial.open("w", newline="") as file:
                    writer = csv.DictWriter(file, self.columns)
                    writer.writeheader()
                    writer.writerows(kept)
                partial.replace(path)
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
        if not self.path.exists():
            return {}
        with self.path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else [])}

"""Progress: a bar on terminals, lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from tqdm import tqdm

from rltok_rl.training.progress import Progress, bar, clock


@pytest.fixture(autouse=True)
def no_other_bars(monkeypatch):
    """Bars that other tests left open would take the first lines."""
    monkeypatch.setattr(tqdm, "_instances", WeakSet())


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Plain(Terminal):
    encoding = "ascii"


def shown(stream: io.StringIO, *steps: tuple[dict[str, float], int], seconds: float = 5.0, **options) -> str:
    progress = Progress(100, stream=stream, **{"every": 0.0, **options})
    progress.start -= seconds
    for metrics, done in steps:
        progress.shown = -1e9
        progress.show(metrics, done)
    return stream.getvalue()


def test_line_has_metrics_speed_and_eta():
    metrics = {"share": 0.456, "bits_per_byte": 2.0, "rate": 0.2, "entropy": 0.31, "loss": 9.0}
    line = shown(io.StringIO(), (metrics, 25))
    pattern = r"   25% share 0\.46, 2\.000 bits/byte, rate 0\.200, entropy 0\.310, (5\.0|4\.)\d+B/s, 00:1\d left\n"
    assert re.fullmatch(pattern, line), line
    assert shown(io.StringIO(), ({}, 105)).startswith("  100% ")  # the last update may go beyond
    resumed = shown(io.StringIO(), ({}, 100), done=90, seconds=500.0)
    assert "100% 0.02B/s" in resumed  # without the bytes before


def test_terminal_is_written_in_place_and_a_file_line_by_line():
    steps = [({"rate": 0.2}, 50), ({"rate": 0.2}, 100)]
    terminal, plain, file = (shown(stream, *steps) for stream in (Terminal(), Plain(), io.StringIO()))
    assert terminal.count("\r") >= 2 and terminal.count("\n") == 1 and terminal.endswith("\n")
    assert file.count("\n") == 2 and "\r" not in file
    assert plain.isascii() and "100%" in plain and "\u2588" in terminal


def test_lines_come_every_few_seconds_and_at_the_end():
    file = io.StringIO()
    progress = Progress(100, every=1e9, stream=file)
    progress.shown = progress.start
    for done in range(10, 101, 10):
        progress.show({}, done)
    assert file.getvalue().count("\n") == 1 and "100%" in file.getvalue()


def test_times_between_lines_and_between_bars(monkeypatch):
    """Ten seconds in a file, a fifth of one on a terminal; the first metrics are shown at once."""
    now = SimpleNamespace(perf_counter=lambda: seconds, time=lambda: seconds)
    monkeypatch.setattr("rltok_rl.training.progress.time", now)
    for stream, pause in ((io.StringIO(), 10.0), (Terminal(), 0.2)):
        seconds, drawn, before = 1000.0, [], 0
        progress = Progress(100, stream=stream)
        for share in (0.0, 0.9, 1.1, 1.9, 2.2):
            seconds = 1000.0 + share * pause
            progress.show({}, 10)
            drawn.append(len(stream.getvalue()) > before)
            before = len(stream.getvalue())
        assert drawn == [True, False, True, False, True], pause
        assert progress.seconds == pytest.approx(2.2 * pause)
    assert Progress(100).stream is sys.stderr


class Flushed(io.StringIO):
    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def test_every_line_is_flushed_and_the_end_shown_at_once():
    file, terminal = Flushed(), Terminal()
    progress = Progress(100, stream=file, every=0.0)
    for number, line in enumerate((lambda: progress.show({}, 10), lambda: progress.print("warning: x")), 1):
        line()
        assert file.flushes >= number and file.getvalue().count("\n") == number
    Progress(100, stream=terminal).show({}, 100)
    assert "100%" in terminal.getvalue()


def test_messages_stay_above_the_bar():
    terminal = Terminal()
    progress = Progress(100, stream=terminal)
    progress.show({"rate": 0.2}, 10)
    progress.print("warning: x")
    first, rest = terminal.getvalue().split("warning: x\n")
    file = io.StringIO()
    Progress(100, stream=file).print("warning: x")
    assert file.getvalue() == "warning: x\n"
    assert re.search("\r +\r$", first) and "10%" in rest  # the bar is wiped away, and drawn again


def test_bar_is_as_long_as_its_share():
    for share in (0.0, 0.001, 0.3, 0.5, 0.999, 1.0):
        eighths = [" \u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588".index(block) for block in bar(share, 20)]
        assert bar(share + 1, 20) == bar(1.0, 20) and bar(share - 1, 20) == bar(0.0, 20)
        assert len(eighths) == 20 and sum(eighths) == int(share * 160) and eighths == sorted(eighths, reverse=True)


def test_clock_rounds_to_seconds():
    assert [clock(x) for x in (0, 59.4, 59.6, 600, 3599.6)] == ["0:00", "0:59", "1:00", "10:00", "1:00:00"]

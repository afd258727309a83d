"""Progress: a bar on terminals, lines elsewhere."""

from __future__ import annotations

import io
import re
from weakref import WeakSet

import pytest
from tqdm import tqdm

from rltok_rl.training.progress import Progress, bar


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
        assert len(eighths) == 20 and sum(eighths) == int(share * 160) and eighths == sorted(eighths, reverse=True)

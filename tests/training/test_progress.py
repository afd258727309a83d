"""What is seen of a training: lines, tables, curves."""

from __future__ import annotations

import io

import pytest

from rltok_rl.training.progress import MetricsTable, Progress, describe
from rltok_rl.viz.curves import draw_curves, smooth


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_tells_how_it_stands():
    line = describe({"bits_per_byte": 2.0, "loss": 9.0}, done=25, total=100, seconds=5.0)
    assert line == "25% 2.000 bits/byte, 0 kB/s, 0:15 left"
    assert "0:00 left" in describe({}, done=0, total=10, seconds=0.0)


def test_a_terminal_is_written_in_place_and_a_file_line_by_line():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress(100, every=0.0, stream=stream)
        for done in (50, 100):
            progress.shown = -1e9
            progress.show({"rate": 0.2}, done)
    assert terminal.getvalue().count("\r") == 2 and terminal.getvalue().count("\n") == 1
    assert file.getvalue().count("\n") == 2 and "\r" not in file.getvalue()


def test_progress_is_quiet_in_between_and_speaks_at_the_end():
    file = io.StringIO()
    progress = Progress(100, every=1e9, stream=file)
    progress.shown = progress.start
    for done in range(10, 101, 10):
        progress.show({}, done)
    assert file.getvalue().count("\n") == 1 and "100%" in file.getvalue()


def test_speed_after_a_resumption_is_that_of_now():
    file = io.StringIO()
    progress = Progress(1000, done=900, every=0.0, stream=file)
    progress.start -= 10.0
    progress.show({}, 1000)
    assert "0 kB/s" in file.getvalue() and "100%" in file.getvalue()


def test_a_table_is_cut_back_to_where_training_resumes(tmp_path):
    path = tmp_path / "metrics.csv"
    table = MetricsTable(path)
    for update in range(1, 6):
        table.add(update, 10 * update, {"loss": 1 / 3 / update, "rate": 0.2})
    with pytest.raises(FileExistsError, match="holds another run; resume it, or choose another folder"):
        MetricsTable(path)
    resumed = MetricsTable(path, resume_after=3)
    resumed.add(4, 40, {"loss": 7.0, "rate": 0.1})
    found = resumed.read()
    assert found["update"] == [1, 2, 3, 4] and found["bytes"] == [10, 20, 30, 40]
    assert found["loss"] == [1 / 3, 1 / 6, 1 / 9, 7.0]  # to the last bit
    with pytest.raises(ValueError, match=r"figures must be \['loss', 'rate'\], got \['loss'\]"):
        resumed.add(5, 50, {"loss": 1.0})
    with path.open("a") as file:
        file.write("5")  # a process was killed while it wrote the fifth line, or the 52nd
    assert MetricsTable(path, resume_after=4).read()["update"] == [1, 2, 3, 4]
    with path.open("a") as file:
        file.write("3")
    assert MetricsTable(path, resume_after=4).read()["update"] == [1, 2, 3, 4]
    assert MetricsTable(path, resume_after=0).read() == {}


def test_curves_are_drawn(tmp_path):
    history = {
        "bytes": [1e6 * n for n in range(1, 50)],
        "bits_per_byte": [5 / n for n in range(1, 50)],
        "early_bits_per_byte": [6 / n for n in range(1, 50)],
        "rate": [0.2] * 49,
    }
    path = draw_curves(history, tmp_path / "curves.png", target_rate=0.2)
    assert path.stat().st_size > 10_000
    with pytest.raises(ValueError, match="history must hold at least one update, got none"):
        draw_curves({"bytes": []}, tmp_path / "none.png")
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        smooth([1.0], 0)

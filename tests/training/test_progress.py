"""What is seen of a training: lines, bars, tables."""

from __future__ import annotations

import io

import pytest

from rltok_rl.training.progress import MetricsTable, Progress, bar, describe, read_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_tells_how_it_stands():
    line = describe({"bits_per_byte": 2.0, "loss": 9.0}, done=25, total=100, seconds=5.0)
    assert line == "25% 2.000 bits/byte, 5 B/s, 0:15 left"
    assert "0:00 left" in describe({}, done=0, total=10, seconds=0.0)


def test_the_last_update_may_go_beyond():
    beyond = describe({}, done=105, total=100, seconds=10)  # the last update may go there
    assert beyond.startswith("100% ") and beyond.endswith("0:00 left")


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
    assert " 10 B/s" in file.getvalue() and "100%" in file.getvalue()


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


def test_lines_behind_a_gap_are_kept(tmp_path):
    """A machine that goes down may lose lines that checkpoints outlive; what comes after them is no less true."""
    path = tmp_path / "metrics.csv"
    table = MetricsTable(path)
    for update in (1, 2, 5, 6, 7):
        table.add(update, 10 * update, {"loss": 0.5})
    assert MetricsTable(path, resume_after=6).read()["update"] == [1, 2, 5, 6]


def test_a_table_can_be_read_while_it_is_written(tmp_path):
    path = tmp_path / "metrics.csv"
    assert read_table(path) == {}
    table = MetricsTable(path)
    table.add(1, 10, {"loss": 2.5})
    table.add(2, 20, {"loss": 1.25})
    whole = path.read_bytes()
    for cut in range(2, len(b"2,20,1.25\r\n")):
        path.write_bytes(whole[:-cut])
        assert read_table(path)["loss"] == [2.5]
    path.write_bytes(whole[:10])  # half a header
    assert read_table(path) == {}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.999, 1.0])
def test_a_bar_is_as_long_as_its_share(share):
    drawn = bar(share, 20)
    assert len(drawn) == 20
    eighths = [" \u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588".index(block) for block in drawn]
    assert sum(eighths) == int(share * 160) and eighths == sorted(eighths, reverse=True)


@pytest.mark.parametrize("columns", [20, 60, 79, 80, 200])
def test_a_bar_fits_its_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    progress = Progress(1000, stream=terminal)
    for done in (300, 1000):
        progress.shown = -1e9
        progress.show({"bits_per_byte": 2.5, "rate": 0.2, "entropy": 0.5}, done)
    shown = terminal.getvalue()
    assert all(len(line) < columns for line in shown.strip("\r\n").split("\r"))
    assert ("\u2588" in shown) == (columns > 60)


def test_a_terminal_without_block_characters_has_no_bar():
    terminal = Terminal()
    terminal.__class__ = type("Plain", (Terminal,), {"encoding": "ascii"})
    Progress(100, stream=terminal).show({"rate": 0.2}, 100)
    assert terminal.getvalue().isascii() and "100%" in terminal.getvalue()


def test_what_is_said_stays_above_the_bar():
    terminal = Terminal()
    progress = Progress(100, stream=terminal)
    progress.show({"rate": 0.2}, 10)
    progress.say("warning: x")
    progress.show({"rate": 0.2}, 20)
    first, rest = terminal.getvalue().split("warning: x\n")
    assert first.endswith("\r") and first.rstrip("\r").endswith("  ")  # the bar is wiped away
    assert rest.startswith("\r") and "20%" in rest  # and drawn anew at once
    file = io.StringIO()
    Progress(100, stream=file).say("warning: x")
    assert file.getvalue() == "warning: x\n"

"""The command rltok."""

from __future__ import annotations

import pytest
from rltok_rl.experiments.cli import COMMANDS, main

from ..forked import run_forked


def test_without_a_command_it_says_what_there_is(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*COMMANDS, "info"))


def test_info_names_versions(capsys):
    assert main(["info"]) == 0
    assert "torchrl" in capsys.readouterr().out


def test_an_unknown_command_is_named(capsys):
    assert main(["trian"]) == 2
    assert "'trian' is not a command; allowed are ['train'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train", "rate-control"])
def test_every_command_explains_itself(name):
    done = run_forked("rltok_rl.experiments.cli", name, "--help")
    assert done.returncode == 0 and len(done.stdout) > 200, done.stderr[-500:]


def test_ctrl_c_where_nothing_is_saved_ends_in_its_status(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["segment", "some text"]) == 130

"""Every rate control drives a policy to its target and keeps it there, by the code of the study."""

from __future__ import annotations

import pytest
from rltok_rl.experiments.studies import rate_control
from rltok_rl.experiments.studies.rate_control import COEFFICIENTS, STARTS, TARGETS, drive, main, summarise, table

from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.objectives.rate_loss import CONTROLLERS

from ..each import each


@each(control=COEFFICIENTS)
def test_reaches_its_targets_and_holds_them(control):
    """From below and from above: every control from both starts, to two of the targets."""
    place = list(COEFFICIENTS).index(control)
    for number, start in enumerate(STARTS):
        target = TARGETS[(place + number) % len(TARGETS)]
        slow = start == 0.8 and control in ("logit_pressure", "binomial", "price")
        run = drive(control, start, target, 0.0, num_updates=640 if slow else 160 if start == 0.05 else 220)
        assert run.updates is not None and run.holds and abs(run.error) < 0.01, (start, run.updates, run.error)


def test_some_hold_it_against_a_task_with_another_rate():
    """Eq. 24 settles where its push equals the pull: a known weakness, and a check that the test can tell."""
    for control, holds in (("hinge", True), ("price", True), ("logit_pressure", False)):
        run = drive(control, 0.05, 0.2, 0.3, num_updates=1000 if control == "price" else 200)
        assert run.holds == holds and (holds or run.error > 0.02), control


def test_runs_are_summarised_by_hand():
    assert set(COEFFICIENTS) == {*RATE_CONTROLS, *CONTROLLERS}
    rates = [0.5] * 50 + [0.2] * 50 + [0.1] * 50 + [0.2] * 200
    run = summarise("hinge", 0.5, 0.2, 0.0, rates)
    assert run.updates == 49 + 50  # a window of 50 with a single 0.5 in it averages 0.206
    assert run.overshoot == pytest.approx(0.1)
    assert run.error == pytest.approx(0.0, abs=1e-6) and run.holds
    assert summarise("hinge", 0.5, 0.9, 0.0, rates).updates is None
    assert run.settled == 146 + 50  # the first window with four of 0.1; five average 0.19, at the very edge

    # A rate that shoots through has neither settled nor held.
    rates = [0.05] * 50 + [0.2] * 50 + [0.3] * 300
    through = summarise("ratio", 0.05, 0.2, 0.3, rates)
    assert through.updates is not None and through.settled is None and not through.holds
    assert through.overshoot == pytest.approx(0.1)
    rates = [0.2] * 300 + [0.3] * 20 + [0.2] * 80  # away for a moment within the last quarter
    brief = summarise("ratio", 0.05, 0.2, 0.3, rates)
    assert brief.settled is not None and not brief.holds
    lines = table([brief, through]).splitlines()
    assert lines[-1].startswith("| `ratio` | 0.03 | 0.3 | 0 of 2 | never (never) | 0.1")


def test_the_command_writes_table_and_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rate_control, "RATE_CONTROLS", {"hinge": None})
    monkeypatch.setattr(rate_control, "CONTROLLERS", {})
    monkeypatch.setattr(rate_control, "PULLS", (0.0,))
    monkeypatch.setattr(rate_control, "STARTS", (0.05,))
    assert main(["--out", str(tmp_path), "--updates", "200"]) == 0
    assert (tmp_path / "rate-control.png").stat().st_size > 2_500
    assert "`hinge`" in (tmp_path / "rate-control.md").read_text() and "hinge" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--updates", "10"])

"""The tables of estimators have every measured candidate, and their place on a page is found."""

from __future__ import annotations

import pytest
from rltok_rl.experiments.reports.markdown import number, with_table
from rltok_rl.experiments.studies import moments
from rltok_rl.experiments.studies.estimator_table import MODELS, draw, gradient_table, learning_table, read_rows
from rltok_rl.experiments.studies.measured_estimators import ESTIMATORS

from ..layout import ROOT
from .results import RESULTS


def test_every_candidate_of_the_study_has_a_row():
    names = [estimator.candidate for estimator in ESTIMATORS]
    assert sorted({*names}) == sorted(moments.Options().estimators)  # natural gradients have two rows


def test_losses_without_files_are_those_of_their_page():
    page = (ROOT / "docs/results/counterfactuals.md").read_text()
    typed = [estimator.losses for estimator in ESTIMATORS if estimator.losses]
    assert typed and all(", ".join(f"{loss:.3f}" for loss in losses) in page for losses in typed)


@pytest.fixture(scope="module")
def rows():
    return read_rows(RESULTS)


def test_rows_are_ordered_by_score_and_those_that_learned_are_in_both_tables(rows):
    scores = [row.score for row in rows if row.score is not None]
    assert scores == sorted(scores, reverse=True) and all(row.score is None for row in rows[len(scores) :])
    learned = [row for row in rows if row.score is not None or row.loss is not None]
    for table, shown in ((learning_table(rows), learned), (gradient_table(rows), rows)):
        names = [line.split(" | ")[0] for line in table.splitlines()[2:]]
        assert names == [f"| {row.estimator.label}" for row in shown]


def test_trials_are_counted(rows):
    flips = next(row for row in rows if row.estimator.candidate == "local_flips@0.9")
    assert flips.suite_trials == pytest.approx(0.26, abs=0.005) and flips.books_trials == pytest.approx(
        0.289, abs=0.001
    )
    assert next(row for row in rows if row.estimator.system == "unscaled").books_trials == 0
    assert flips.suite_seconds == pytest.approx(13.8, abs=0.1) and flips.books_seconds == pytest.approx(125, abs=60)


@pytest.mark.parametrize("model", MODELS)
def test_only_clear_signals_and_biases_are_shown(model, rows):
    """A bias is clear if its square exceeds two standard errors, by which the square of its bound is larger."""
    place = 2 + 4 * [*MODELS].index(model)
    for row, line in zip(rows, gradient_table(rows).splitlines()[2:], strict=True):
        cells = [cell.split(", ") for cell in line.strip("| ").split(" | ")]
        signals, biases = cells[place : place + 2]
        for moment, signal in zip(row.moments[model], signals, strict=True):
            assert (signal == "lost") == (moment["ratio"] < 2 * moment["error"])
        if row.estimator.own_gradient:
            assert biases == ["-"]
            continue
        for moment, bias in zip(row.moments[model], biases, strict=True):
            clear = moment["bias"] ** 2 > moment["bias_limit"] ** 2 - moment["bias"] ** 2
            assert bias == (number(moment["bias"], 2) if clear else "-")


def test_the_figure_is_drawn(tmp_path, rows):
    assert draw(rows, tmp_path / "estimators.png").stat().st_size > 10_000


@pytest.mark.parametrize("text", ["", "<!-- table: a -->\n", 2 * "<!-- table: a -->\n<!-- end of table -->\n"])
def test_a_page_must_have_the_place_of_a_table_once(text):
    with pytest.raises(ValueError, match="text must have '<!-- table: a -->"):
        with_table(text, "a", "")

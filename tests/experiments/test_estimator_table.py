"""The tables of estimators have every measured candidate, and their place on a page is found."""

from __future__ import annotations

import re

import pytest
from rltok_rl.experiments.reports.markdown import with_table
from rltok_rl.experiments.studies import moments
from rltok_rl.experiments.studies.estimator_table import ESTIMATORS, draw, gradient_table, learning_table, read_rows

from ..layout import ROOT
from .results import RESULTS


def test_every_candidate_of_the_study_has_a_row():
    names = [estimator.candidate for estimator in ESTIMATORS]
    assert sorted(names) == sorted(moments.Options().estimators)


def test_losses_without_files_are_those_of_their_page():
    page = (ROOT / "docs/results/counterfactuals.md").read_text()
    typed = [estimator.losses for estimator in ESTIMATORS if estimator.losses]
    assert typed and all(", ".join(f"{loss:.3f}" for loss in losses) in page for losses in typed)


def test_rows_are_ordered_by_score_and_only_clear_biases_are_shown():
    rows = read_rows(RESULTS)
    scores = [row.score for row in rows if row.score is not None]
    assert scores == sorted(scores, reverse=True) and all(row.score is None for row in rows[len(scores) :])
    assert all((row.loss is None) == (row.books_trials is None) for row in rows)
    learning, gradients = (
        [line.split(" | ") for line in t(rows).splitlines()[2:]] for t in (learning_table, gradient_table)
    )
    assert (
        [line[0] for line in learning]
        == [line[0] for line in gradients]
        == [f"| {row.estimator.label}" for row in rows]
    )
    flips = next(row for row in rows if row.estimator.candidate == "local_flips@0.9")
    assert flips.suite_trials == pytest.approx(0.26, abs=0.005) and flips.books_trials == pytest.approx(
        0.289, abs=0.001
    )
    natural = [line for line in gradients if line[0].startswith("| natural")]
    assert len(natural) == 2 and all(line[2] == line[5] == "-" for line in natural)
    assert all(re.fullmatch(r"-|\d\.\d+(, .*)?", line[2].split(", ")[0]) for line in gradients)


def test_the_figure_is_drawn(tmp_path):
    assert draw(read_rows(RESULTS), tmp_path / "estimators.png").stat().st_size > 10_000


@pytest.mark.parametrize("text", ["", "<!-- table: a -->\n", 2 * "<!-- table: a -->\n<!-- end of table -->\n"])
def test_a_page_must_have_the_place_of_a_table_once(text):
    with pytest.raises(ValueError, match="text must have '<!-- table: a -->"):
        with_table(text, "a", "")

"""Scores and page of the boundary suite: statistics by their definitions, forfeits, statements, styles."""

from __future__ import annotations

import itertools
import json
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from rltok_rl.experiments.studies import suite_page
from rltok_rl.experiments.studies.suite_entries import ESTIMATORS, FIXED, NOT_DEFAULT
from rltok_rl.experiments.studies.suite_figures import DRAWN, drawn_entries, entry_styles
from rltok_rl.experiments.studies.suite_further import compare_further, seed_interval
from rltok_rl.experiments.studies.suite_scores import (
    best_by_iqm,
    contestants,
    improvement_interval,
    interquartile_mean,
    interval,
    paired_difference,
    probability_of_improvement,
    profile,
    profile_band,
    score_cells,
    signal_correlations,
    strata,
)
from rltok_rl.experiments.studies.suite_tables import SEED_PAIRS, summarise, task_table

from rltok_rl.viz.style import MOST_RUNS

from .suite_cells import CELLS, suite_cell

REFERENCES = (("oracle", 0.9, 0.1), ("uniform", 0.5, 0.1))


def test_statistics_are_their_definitions():
    draws = np.random.default_rng(0)
    sizes = {("delay", 1): 5, ("delay", 3): 3, ("pair", 1): 4}
    scores, others = ({key: draws.normal(size=n).round(1).tolist() for key, n in sizes.items()} for _ in range(2))
    pooled = sorted(itertools.chain(*scores.values()))  # 12 runs: 3 are cut off at either end
    assert interquartile_mean(pooled) == pytest.approx(sum(pooled[3:-3]) / 6)
    wins = [sum((x > y) + (x == y) / 2 for x in scores[key] for y in others[key]) / n**2 for key, n in sizes.items()]
    assert probability_of_improvement(scores, others) == pytest.approx(sum(wins) / 3)
    chances = []
    for _ in range(4_000):
        drawn = [{k: draws.choice(group, len(group)).tolist() for k, group in s.items()} for s in (scores, others)]
        chances.append(probability_of_improvement(*drawn))
    limits = improvement_interval(scores, others, resamples=20_000)
    assert limits == pytest.approx(np.quantile(chances, [0.025, 0.975]).tolist(), abs=0.02)
    assert limits == improvement_interval(scores, others, resamples=20_000)
    assert improvement_interval({**scores, ("pair", 9): [1.0]}, others) is not None  # without a counterpart
    for unusable in ({}, {("delay", 1): [1.0]}):
        assert improvement_interval(unusable, others) is None
    assert profile(scores, [-9.0, pooled[6], 9.0]) == [1.0, sum(x >= pooled[6] for x in pooled) / 12, 0.0]
    resampled = []
    for _ in range(20_000):
        parts = [draws.choice(group, len(group)) for group in scores.values()]
        middle = np.sort(np.concatenate(parts))[3:-3]
        resampled.append(middle.mean())
    limits = interval(scores, resamples=20_000)
    assert limits == pytest.approx(np.quantile(resampled, [0.025, 0.975]).tolist(), abs=0.02)
    assert limits == interval(scores, resamples=20_000) and interval({("delay", 1): [1.0]}) is None


def test_profiles_have_bands_and_signals_rank_cells():
    scores = {("delay", 1): [0.0, 1.0, 0.5, 0.2], ("pair", 1): [0.9, 0.4, 0.1]}
    levels = [-1.0, 0.45, 0.95]
    low, high = profile_band(scores, levels)
    for place, level in enumerate(levels):
        alone = interval(scores, lambda values, axis, level=level: np.mean(values >= level, axis=axis))
        assert (low[place], high[place]) == pytest.approx(alone, abs=0.15)
    assert low[0] == high[0] == 1 and profile_band({("delay", 1): [1.0]}, levels) is None
    looks = [[{"signal": 1.0 + place}, {}, {"signal": 1.0 - place}] for place in (11 * n % 15 for n in range(15))]
    cells = [one | {"looks": [*seen, seen[0]]} for one, seen in zip(CELLS[:15], looks, strict=True)]  # `delay`
    rows = score_cells(cells)
    assert rows.forfeited.sum() == 3 and not score_cells(CELLS).signal.notna().any()
    kept = rows[~rows.forfeited & ~rows.entry.isin(["uniform"])]  # no ties
    ranks = [kept[name].rank() for name in ("signal", "score")]
    alone = float(np.corrcoef(*ranks)[0, 1])
    assert signal_correlations(kept) == {("delay", 1): pytest.approx(alone)}
    by_evaluation = [signal_correlations(kept, evaluation=place) for place in range(4)]
    assert by_evaluation[1] == {} and [x["delay", 1] for x in (*by_evaluation[2:], by_evaluation[0])] == pytest.approx(
        [-alone, alone, alone]
    )
    assert f"to the last, it is {alone:.2f}, -, {-alone:.2f}, {alone:.2f}." in suite_page.read_signal(kept)[0]
    assert not suite_page.read_signal(score_cells(CELLS))


def test_scores_forfeits_and_cells_that_are_not_learnable():
    rows = score_cells(CELLS)
    assert {*rows[rows.forfeited].entry} == {"fast"} and (rows[rows.forfeited].score == 0).all()
    assert {*rows[~rows.learnable].task} == {"pair"}
    assert strata(rows, "good") == {("delay", 1): pytest.approx([0.75, 0.78, 0.81])}
    assert sum(strata(rows, "oracle")["delay", 1]) == pytest.approx(3)
    assert sum(strata(rows, "uniform")["delay", 1]) == pytest.approx(0)


def test_the_page_states_what_paired_tests_support(tmp_path):
    page = suite_page.write_page(CELLS, tmp_path, "rltok suite", missing=2)
    for words in (
        "`delay` (credit over time): `good` 0.78 is best, ahead of `bad` by 0.53 ± 0.01.",
        " Better than evenly spaced: `good`, `bad`.",
        "left out of all scores: `pair` grade 1 (0.56 and 0.51).",
        "`pair` (joint decisions): not learnable at this budget.",
        "**Missing cells of this command: 2.** The same",
        "| `fast` | 0.00× | - |",
        "| `good` | **0.78** | - |",
    ):
        assert words in page, page
    for name in ("tasks", "intervals", "profiles", "curves", "cost"):
        assert f"({name}.png)" in page and matplotlib.image.imread(tmp_path / f"{name}.png").shape[1] > 300
    saved = json.loads((tmp_path / "suite.json").read_text())
    assert len(saved["cells"]["data"]) == len(CELLS) and saved["summary"]["fast"]["forfeited"] == 3
    alone = suite_page.write_page([suite_cell("delay", "good", 0, 0.5)], tmp_path, "rltok suite")
    assert "not learnable" in alone


def test_an_entry_that_forfeits_every_cell_is_last_and_no_contestant():
    """Its scores of 0 would be best in a task where all others are below evenly spaced boundaries."""
    cells = [suite_cell("delay", entry, seed, share, rate) for seed in range(3) for entry, share, rate in REFERENCES]
    cells += [suite_cell("delay", "poor", seed, 0.3 + 0.01 * seed) for seed in range(3)]
    cells += [suite_cell("delay", "void", seed, 0.9, 0.2) for seed in range(3)]
    rows = score_cells(cells)
    assert contestants(rows) == ["uniform", "poor"] and best_by_iqm(rows, 5) == ["poor"]
    assert list(summarise(rows)) == ["oracle", "uniform", "poor", "void"]
    elsewhere = score_cells([*cells, *(suite_cell("pair", e, s, r) for s in range(3) for e, r, _ in REFERENCES)])
    elsewhere = pd.concat([elsewhere, elsewhere[elsewhere.entry == "void"].assign(task="pair", forfeited=False)])
    assert "void" in contestants(elsewhere) and "void" not in suite_page.read_task(elsewhere, "delay")
    assert "void" not in suite_page.read_task(rows, "delay") and "**0.00×**" not in task_table(rows, ["void", "poor"])


def test_within_a_task_seeds_are_paired_and_grades_are_averaged():
    """Cells of a seed fail together: two grades are not two samples."""
    cells = [suite_cell("delay", entry, seed, share) for seed in range(3) for entry, share, _ in REFERENCES]
    cells += [suite_cell("delay", "mine", seed, 0.6 + 0.1 * seed) for seed in range(3)]
    both = score_cells([*cells, *(cell | {"grade": 3} for cell in cells)])
    gaps = [paired_difference(rows, "mine", "uniform", SEED_PAIRS) for rows in (score_cells(cells), both)]
    assert gaps[0].half_width == pytest.approx(gaps[1].half_width)
    mine, uniform = both.entry == "mine", both.entry == "uniform"
    harder = both.assign(score=both.score - 5.0 * ((both.grade == 3) & (mine | uniform)))
    lost = harder[~(mine & (both.grade == 3) & (both.seed == 0))]  # the grades of a seed must be those of both entries
    assert paired_difference(lost, "mine", "uniform", SEED_PAIRS).half_width == pytest.approx(gaps[0].half_width)
    assert paired_difference(both, "mine", "nobody", SEED_PAIRS) is None


def test_figures_of_lines_have_the_best_and_the_paper():
    names = ["oracle", *(f"entry-{place}" for place in range(12)), "uniform", "paper", "last"]
    drawn = drawn_entries(names)
    assert drawn == [name for name in names if name not in (*(f"entry-{place}" for place in range(DRAWN, 12)), "last")]


def test_further_seeds_may_be_few_or_incomplete(tmp_path):
    def section(further: list[dict[str, Any]]) -> str:
        return suite_page.write_page(CELLS, tmp_path, "rltok suite", further=further).partition("## Further seeds")[2]

    alone = section([suite_cell("delay", "good", 3, 0.85)])
    assert (
        "| 3 |" not in alone and "seeds 3 | all |" in alone and "minus" not in alone and "| `good` | 0.780 [" in alone
    )
    one = [suite_cell("delay", entry, seed, 0.7 + 0.01 * seed) for entry in ("good", "bad") for seed in (3, 4)]
    assert "`good` minus `bad`" in section(one[:3])  # `bad` lacks a seed, which then does not count for `good`
    frames = [score_cells(CELLS), score_cells(one, references=CELLS)]
    assert frames[1].score.tolist() == pytest.approx([(0.73 - 0.5) / 0.4, (0.74 - 0.5) / 0.4] * 2, abs=0.03)
    assert list(compare_further(*frames)["good"]["seeds"])[:3] == pytest.approx([0.75, 0.78, 0.81])


def test_intervals_of_whole_seeds_are_wider_if_their_cells_fail_together():
    together = pd.DataFrame({seed: [float(seed < 4)] * 8 for seed in range(5)})
    alone = pd.DataFrame({seed: [float((task + seed) % 5 < 4) for task in range(8)] for seed in range(5)})
    widths = [np.diff(seed_interval(table))[0] for table in (together, alone)]
    assert widths[0] > widths[1] and seed_interval(together[[0]]) is None


def test_every_entry_has_a_style_and_further_ones_repeat_them():
    """A page that cannot be drawn would fail after hours of training."""
    styles = entry_styles([*FIXED, *(f"{name}@0.9" for name in ESTIMATORS if name not in NOT_DEFAULT)])
    assert len({(style.colour, style.dashes) for style in styles.values()}) == len(styles) > 23  # lines have no markers
    more = entry_styles([f"a:B@{number / 100}" for number in range(1, 60)])
    assert len(more) == 59 and len(set(map(repr, more.values()))) == MOST_RUNS


def test_commits_are_named_with_their_changes():
    results = [{"git": {"revision": "a" * 40, "dirty": dirty}} for dirty in (False, True, None, None)]
    (line,) = suite_page._revisions(results, 4)
    named = "aaaaaaaaaaaa with unknown changes (2), aaaaaaaaaaaa (1), aaaaaaaaaaaa with changes (1)"
    assert line == f"cells by commit: {named}"

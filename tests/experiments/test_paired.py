"""Paired tests decide what tables print bold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rltok_rl.experiments.reports.paired import (
    Difference,
    bootstrap_interval,
    paired_over_documents,
    paired_over_seeds,
    t_quantile,
    tied_with_best,
)


def test_quantiles_are_those_of_student():
    expected = {1: 12.706, 4: 2.776, 30: 2.042, 40: 2.021, 120: 1.980, 10**6: 1.960}
    assert {freedom: pytest.approx(t_quantile(freedom), abs=1e-3) for freedom in expected} == expected
    with pytest.raises(ValueError, match="freedom must be at least 1, got 0"):
        t_quantile(0)


def test_documents_and_seeds_are_paired():
    counts, hard = [100, 200, 300, 400], [1.0, 2.5, 1.5, 3.0]  # nats per byte, far apart from document to document
    easy = {"counts": counts, "nats": [n * h for n, h in zip(counts, hard, strict=True)]}
    worse = {"counts": counts, "nats": [n * (h + 0.1 * math.log(2)) for n, h in zip(counts, hard, strict=True)]}
    apart = paired_over_documents(worse, easy)
    assert apart.mean == pytest.approx(0.1) and apart.error == pytest.approx(0, abs=1e-12) and apart.pairs == 4
    assert apart.significant and not paired_over_documents(easy, easy).significant
    assert paired_over_documents(easy, {"counts": [1], "nats": [1.0]}) is None
    assert paired_over_documents({"counts": None}, {"counts": None}) is None

    apart = paired_over_seeds({2: 2.3, 0: 2.1, 7: 9.9}, {0: 2.2, 2: 2.6})
    assert (apart.mean, apart.error, apart.pairs) == (pytest.approx(-0.2), pytest.approx(0.1), 2)
    assert apart.half_width == pytest.approx(1.2706) and not apart.significant
    assert apart.bootstrap == (pytest.approx(-0.3), pytest.approx(-0.1))
    assert paired_over_seeds({0: 1.0}, {1: 1.0}) is None
    single = paired_over_seeds({0: 1.0}, {0: 2.0})
    assert (
        single.error is None and single.bootstrap is None and single.half_width == math.inf and not single.significant
    )


def test_bootstrap_lists_the_resamples_of_few_values_and_draws_those_of_many():
    assert bootstrap_interval([0.3, 0.1, 0.2]) == (pytest.approx(0.1), pytest.approx(0.3))  # 1 of 27 is above 2.5 %
    # Means of five are sums of Bin(5, 1/5) / 5: P(at most 2) = 0.942, P(at most 3) = 0.993.
    assert bootstrap_interval([1.0, 0.0, 0.0, 0.0, 0.0]) == (0.0, pytest.approx(0.6))
    values = [math.sin(n) for n in range(12)]
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values), "the same page every time"
    stats = pytest.importorskip("scipy.stats")
    theirs = stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", random_state=1)
    assert (low, high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)


def test_bold_needs_a_test():
    far, near, single = Difference(0.1, 0.01, 9), Difference(0.01, 0.01, 9), Difference(0.01, None, 1)
    for losses, differences, bold in (
        ([2.0, 2.01, 2.1], (None, near, far), {0, 1}),
        ([2.0, 2.01], (None, None), set()),
        ([2.0, 2.01], (None, single), set()),
        ([math.nan, 2.1], (None, far), set()),  # alone, nothing was tested against it
        ([], (), set()),
    ):
        assert tied_with_best(losses, lambda row, best, found=differences: found[row]) == bold, losses


def test_a_row_that_is_better_in_all_shared_seeds_is_bold_although_its_mean_is_worse():
    """Its own third seed, which the best row lacks, is a hard one."""
    losses = [{0: 1.0, 1: 1.01}, {0: 0.9, 1: 0.911, 2: 2.0}, {0: 1.5, 1: 1.51, 2: 2.2}]
    means = [sum(row.values()) / len(row) for row in losses]

    def difference(row: int, best: int) -> Difference | None:
        return paired_over_seeds(losses[row], losses[best])

    assert min(means) == means[0] and all(difference(row, 0).significant for row in (1, 2))
    assert tied_with_best(means, difference) == {0, 1}

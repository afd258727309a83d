"""Ratios of sums per row, and their errors."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch

from rltok_rl.evaluation import corpus_standard_error
from rltok_rl.functional.episodes import ratio_moments, ratio_with_error


def test_error_of_a_ratio_is_that_of_documents_and_of_all_parts_together():
    counts, nats = torch.tensor([10, 30, 25, 7]), torch.tensor([10.0, 60.0, 41.0, 12.0])
    sums = torch.stack((nats, counts.double()), -1)
    ratio, error = ratio_with_error(ratio_moments(sums), 4)
    assert ratio == pytest.approx(123 / 72)
    assert error == pytest.approx(corpus_standard_error(counts, nats) * math.log(2), rel=1e-9)
    parts = torch.stack([ratio_moments(part) for part in sums.split(2)]).mean(0)  # micro-batches or processes
    assert ratio_with_error(parts, 4) == pytest.approx((ratio, error), rel=1e-12)
    assert math.isnan(ratio_with_error(ratio_moments(sums[:1]), 1)[1])
    assert all(map(math.isnan, ratio_with_error(ratio_moments(torch.zeros(3, 2)), 3)))


def test_error_of_a_ratio_is_that_of_its_residuals():
    """Step by step, also of sums below 0; equal residuals have an error of 0, whatever rounding leaves."""
    for sign in (1, -1):
        sums = torch.rand(7, 2, dtype=torch.float64) * torch.tensor([3.0, sign])
        n, d = sums.mean(0).tolist()
        residuals = [float(x - n / d * y) for x, y in sums]
        expected = math.sqrt(fmean([e * e for e in residuals]) / 6) / abs(d)
        ratio, error = ratio_with_error(ratio_moments(sums), 7)
        assert (ratio, error) == (pytest.approx(n / d), pytest.approx(expected))
        assert ratio_with_error(ratio_moments(sums).tolist(), 7) == (ratio, error)
    for number in range(50):
        counts = torch.rand(5, dtype=torch.float64) + number
        assert ratio_with_error(ratio_moments(torch.stack((0.1 * counts, counts), -1)), 5)[1] < 1e-7

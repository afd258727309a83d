"""Paired tests: differences of systems over the same documents, or over the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import torch

from rltok_rl.evaluation import corpus_bits_per_byte, corpus_standard_error

_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of Student's t with 1 to 30 degrees of freedom."""
_MOST_ENUMERATED = 5  # values whose resamples are all listed: 5 ** 5 are 3,125
_NUM_RESAMPLES = 10_000


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t; above 30 degrees of freedom by an expansion."""
    if freedom < 1:
        raise ValueError(f"freedom must be at least 1, got {freedom}")
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences, its standard error (None for a single pair), and the number of pairs."""

    mean: float
    error: float | None
    pairs: int
    bootstrap: tuple[float, float] | None = None
    """95 % interval of :func:`bootstrap_interval`; None for a single pair, and over documents."""

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval, by Student's t; infinite for a single pair."""
        return math.inf if self.error is None else t_quantile(self.pairs - 1) * self.error

    @property
    def significant(self) -> bool:
        """Whether the 95 % interval excludes 0."""
        return abs(self.mean) > self.half_width


def paired_over_documents(row: Mapping[str, Any], other: Mapping[str, Any]) -> Difference | None:
    """Return bits per byte of ``row`` minus those of ``other``; None if their documents differ.

    Rows have the ``counts`` (bytes) and ``nats`` of each document or group of documents.
    """
    if not row["counts"] or row["counts"] != other["counts"]:
        return None
    counts = torch.tensor(row["counts"])
    nats = torch.tensor(row["nats"], dtype=torch.float64) - torch.tensor(other["nats"], dtype=torch.float64)
    return Difference(corpus_bits_per_byte(counts, nats), corpus_standard_error(counts, nats), len(counts))


def paired_over_seeds(losses: Mapping[Any, float], others: Mapping[Any, float]) -> Difference | None:
    """Return the mean difference of losses by seed, over shared seeds; None if there are none."""
    differences = (pd.Series(losses, dtype=float) - pd.Series(others, dtype=float)).dropna()
    if differences.empty:
        return None
    if len(differences) == 1:
        return Difference(float(differences.iloc[0]), None, 1)
    bootstrap = bootstrap_interval(differences.tolist())
    return Difference(float(differences.mean()), float(differences.sem()), len(differences), bootstrap)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean by the percentile bootstrap.

    It is exact for up to five values, whose resamples are all listed; for more, resamples are drawn with a fixed seed.
    It never leaves the range of the values, and with few of them covers the true mean less often than Student's t.

    Example:
        >>> bootstrap_interval([0.0, 0.0, 0.0, 1.0])  # the largest mean, 1, has a probability of 1 / 256
        (0.0, 0.75)
    """
    count = len(values)
    if count <= _MOST_ENUMERATED:
        places = np.array(list(product(range(count), repeat=count)))
    else:
        places = np.random.default_rng(0).integers(count, size=(_NUM_RESAMPLES, count))
    means = np.asarray(values, dtype=float)[places].mean(1)
    low, high = np.quantile(means, (0.025, 0.975), method="inverted_cdf")
    return float(low), float(high)


def tied_with_best(losses: Sequence[float], difference: Callable[[int, int], Difference | None]) -> set[int]:
    """Return the rows not significantly worse than the best; tables print them bold.

    A row without a test is never bold, nor is a best row that no other was tested against. A row that lacks some of the
    best row's seeds can be better in those that both have, although its mean is worse.

    Args:
        losses: lower is better; NaN excludes a row.
        difference: takes the places of two rows; the loss of the first minus that of the second, None without a pair.

    Example:
        >>> differences = {0: Difference(0.001, 0.002, 9), 2: Difference(0.1, 0.002, 9)}
        >>> sorted(tied_with_best([2.181, 2.18, 2.28], lambda row, best: differences[row]))
        [0, 1]
    """
    candidates = [row for row, loss in enumerate(losses) if not math.isnan(loss)]
    best = min(candidates, key=lambda row: losses[row], default=None)
    if best is None:
        return set()
    tests = {row: difference(row, best) for row in candidates if row != best}
    known = {row: test for row, test in tests.items() if test is not None and test.error is not None}
    return {best, *(row for row, test in known.items() if not test.significant or test.mean < 0)} if known else set()


def interval(difference: Difference | None) -> str:
    """Format a difference with its 95 % interval; a dash without a pair.

    Example:
        >>> interval(Difference(-0.05, 0.002, 3))
        '-0.050 [-0.059, -0.041]'
    """
    if difference is None:
        return "-"
    mean, half = difference.mean, difference.half_width
    return f"{mean:+.3f}" + ("" if difference.error is None else f" {_brackets(mean - half, mean + half)}")


def bootstrap_text(difference: Difference | None) -> str:
    """Format the bootstrap interval of a difference over seeds; a dash if there is none.

    Example:
        >>> bootstrap_text(Difference(-0.05, 0.002, 3, bootstrap=(-0.053, -0.046)))
        '[-0.053, -0.046]'
    """
    return "-" if difference is None or difference.bootstrap is None else _brackets(*difference.bootstrap)


def _brackets(low: float, high: float) -> str:
    return f"[{low:+.3f}, {high:+.3f}]"

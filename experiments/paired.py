"""Paired tests: which systems cannot be told from the best one.

Systems that are compared read the same held-out documents, or are trained from the same seeds. The differences on one
document (or of one seed) leave out what all systems have in common, so that they are known far better than the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

import torch

from rltok_rl.evaluation import corpus_bits_per_byte, corpus_standard_error

_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5 % quantiles of Student's t with 1 to 30 degrees of freedom."""


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Args:
        freedom: degrees of freedom, at least 1. Above 30 an expansion around the normal quantile is used.

    Example:
        >>> t_quantile(2), round(t_quantile(31), 3), round(t_quantile(1000), 3)
        (4.303, 2.039, 1.962)
    """
    if freedom < 1:
        raise ValueError(f"freedom must be at least 1, got {freedom}")
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences."""

    mean: float
    error: float | None
    """Standard error; None if there is one pair."""
    pairs: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval, by Student's t; infinite if there is one pair."""
        return math.inf if self.error is None else t_quantile(self.pairs - 1) * self.error

    @property
    def significant(self) -> bool:
        """Whether the 95 % interval leaves out 0."""
        return abs(self.mean) > self.half_width


def paired_over_documents(row: dict[str, Any], other: dict[str, Any]) -> Difference | None:
    """Bits per byte of a system minus those of another on the same documents; None if the documents differ.

    Args:
        row: ``counts`` (bytes) and ``nats`` of each document, or of each group of documents.
        other: the same of the other system.
    """
    if not row.get("counts") or row["counts"] != other.get("counts"):
        return None
    counts = torch.tensor(row["counts"])
    nats = torch.tensor(row["nats"], dtype=torch.float64) - torch.tensor(other["nats"], dtype=torch.float64)
    return Difference(corpus_bits_per_byte(counts, nats), corpus_standard_error(counts, nats), len(counts))


def paired_over_seeds(values: dict[Any, float], others: dict[Any, float]) -> Difference | None:
    """Differences of two systems that were trained from the same seeds; None if they share none.

    Args:
        values: by seed.
        others: by seed, of the other system.

    Example:
        >>> difference = paired_over_seeds({0: 2.1, 1: 2.2, 2: 2.3}, {0: 2.2, 1: 2.31, 2: 2.39})
        >>> round(difference.mean, 3), difference.pairs, difference.significant
        (-0.1, 3, True)
    """
    apart = [value - others[seed] for seed, value in values.items() if seed in others]
    if not apart:
        return None
    error = stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else None
    return Difference(fmean(apart), error, len(apart))


def tied_with_best(values: Sequence[float | None], differences: Sequence[Difference | None]) -> set[int]:
    """Numbers of the systems that a paired test cannot tell from the best: those that tables print bold.

    Args:
        values: of each system, lower is better; None leaves it out.
        differences: of each from the best one, None if nothing is paired. A system without a test is never bold, and
            neither is a best one that nothing was tested against.

    Example:
        >>> apart = [Difference(0.001, 0.002, 9), None, Difference(0.1, 0.002, 9)]
        >>> sorted(tied_with_best([2.181, 2.18, 2.28], apart))
        [0, 1]
    """
    known = [number for number, value in enumerate(values) if value is not None]
    if not known:
        return set()
    best = min(known, key=lambda number: values[number])  # type: ignore[arg-type, return-value]
    tested = {n: d for n in known if n != best and (d := differences[n]) is not None and d.error is not None}
    return {best, *(n for n, one in tested.items() if not one.significant)} if tested else set()

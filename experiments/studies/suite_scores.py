"""Scores of the boundary suite: interquartile means, bootstrap intervals, probability of improvement, paired tests.

A score is 0 for evenly spaced boundaries and 1 for the oracle's, in each task and grade. Runs are the random sample;
tasks and grades are strata, which are fixed.
"""

from __future__ import annotations

import itertools
import json
import math
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rltok_rl.experiments.reports.paired import Difference, paired_over_seeds, tied_with_best
from rltok_rl.experiments.reports.table import off_target

ORACLE, UNIFORM = "oracle", "uniform"
"""Entries whose mean shares define scores 1 and 0."""
LEAST_GAIN = 0.1
"""Share that the oracle must gain over evenly spaced boundaries. With less, or with a negative share of the oracle, a
task and grade is not learnable."""
RESAMPLES = 2000
Strata = Mapping[tuple[str, int], Sequence[float]]
"""Scores of all seeds by task and grade."""


def read_archive(folder: Path) -> list[dict[str, Any]]:
    """Return all cells of ``cells.tar.xz`` in a folder of results."""
    with tarfile.open(folder / "cells.tar.xz") as archive:
        files = [archive.extractfile(name) for name in archive.getnames() if name.endswith(".json")]
        return [json.loads(file.read()) for file in files if file is not None]


def read_other_entries(folder: Path) -> list[dict[str, Any]]:
    """Return the cells of ``other-entries.csv``, as :func:`score_cells` takes them.

    It has no FLOPs (NaN), but ``trials``, the share of trials in them; NaN where it was not recorded.
    """
    cells = pd.read_csv(folder / "other-entries.csv").to_dict("records")
    return [{**cell, "flops": math.nan, "total_flops": math.nan, "final": cell} for cell in cells]


def relative_score(share: Any, uniform: Any, oracle: Any) -> Any:
    """Return ``(share - uniform) / (oracle - uniform)``."""
    return (share - uniform) / (oracle - uniform)


def score_cells(
    results: Sequence[Mapping[str, Any]], *, references: Sequence[Mapping[str, Any]] | None = None
) -> pd.DataFrame:
    """Return a row per cell with its ``score``, and whether it is ``forfeited`` (score 0) and ``learnable``.

    Columns ``uniform`` and ``oracle`` are the mean shares that scores are relative to, over the seeds of these entries
    in ``references`` (default: ``results``). ``signal`` is the mean signal to noise of the policy gradient during
    training, NaN for entries without one, and ``signals`` the list of all evaluations.

    Example:
        >>> cells = [("oracle", 0.9, 0.1), ("uniform", 0.5, 0.1), ("mine", 0.7, 0.104), ("mine", 0.9, 0.2)]
        >>> key = {"task": "delay", "grade": 1, "target_rate": 0.1, "cpu_seconds": 1.0, "total_flops": 1.0}
        >>> rows = score_cells(
        ...     [
        ...         key | {"entry": entry, "seed": seed, "final": {"share": share, "rate": rate}}
        ...         for seed, (entry, share, rate) in enumerate(cells)
        ...     ]
        ... )
        >>> rows.score.round(3).tolist(), rows.forfeited.tolist()
        ([1.0, 0.0, 0.5, 0.0], [False, False, False, True])
    """
    rows = _cell_rows(results)
    ends = rows if references is None else _cell_rows(references)
    ends = ends.pivot_table("share", ["task", "grade"], "entry").reindex(columns=[UNIFORM, ORACLE])
    rows = rows.join(ends, on=["task", "grade"])
    rows["learnable"] = (rows[ORACLE] - rows[UNIFORM] >= LEAST_GAIN) & (rows[ORACLE] > 0)
    rows["forfeited"] = off_target(rows.rate, rows.target_rate) & ~rows.entry.isin((ORACLE, UNIFORM))
    rows["score"] = relative_score(rows.share, rows[UNIFORM], rows[ORACLE]).where(~rows.forfeited, 0.0)
    return rows


def _cell_rows(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    names = ("task", "grade", "entry", "seed", "target_rate", "cpu_seconds", "total_flops")
    rows = pd.DataFrame(
        [
            {name: cell[name] for name in names}
            | {name: cell["final"][name] for name in ("share", "rate")}
            | {"signals": np.asarray([snapshot.get("signal") for snapshot in cell.get("looks", [])], dtype=float)}
            for cell in results
        ]
    )
    rows["signal"] = [pd.Series(signals).mean() for signals in rows.signals]
    return rows


def strata(rows: pd.DataFrame, entry: str) -> dict[tuple[str, int], list[float]]:
    """Return the scores of an entry by task and grade, learnable ones only."""
    kept = rows[rows.learnable & (rows.entry == entry)]
    return {key: group.tolist() for key, group in kept.groupby(["task", "grade"], sort=False).score}


def interquartile_mean(scores: Any, axis: int = -1) -> Any:
    """Return the mean of the middle half: a quarter of the runs is cut off at either end, rounded down."""
    from scipy.stats import trim_mean

    return trim_mean(np.asarray(scores, dtype=float), 0.25, axis=axis)


def pooled_iqm(scores: Strata) -> float:
    """Return the interquartile mean of all scores of an entry; NaN without any."""
    pooled = [*itertools.chain(*scores.values())]
    return float(interquartile_mean(pooled)) if pooled else float("nan")


def interval(
    scores: Strata, statistic: Callable[..., Any] = interquartile_mean, *, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """Return a 95 % percentile interval of a statistic of all scores, resampling seeds within each task and grade.

    ``statistic`` takes an array and ``axis``. None if a stratum has a single seed.
    """
    limits = _limits(scores, statistic, resamples)
    return None if limits is None else (float(limits[0]), float(limits[1]))


def _limits(scores: Strata, statistic: Callable[..., Any], resamples: int) -> tuple[Any, Any] | None:
    from scipy.stats import bootstrap

    if not scores or min(map(len, scores.values())) < 2:
        return None

    def pooled(*parts: Any, axis: int) -> Any:
        return statistic(np.concatenate(parts, axis=axis), axis=axis)

    intervals = bootstrap([*scores.values()], pooled, method="percentile", n_resamples=resamples, batch=100, rng=0)
    low, high = intervals.confidence_interval
    return low, high


def _shared(scores: Strata, others: Strata) -> list[tuple[Any, Any]]:
    """Return the scores of both entries in each shared stratum, in the order of the first, so that sums are equal."""
    return [(np.asarray(scores[key]), np.asarray(others[key])) for key in scores if key in others]


def _wins(scores: Any, others: Any) -> Any:
    """Compare all pairs of runs: 1 for the higher score, 1/2 for a tie."""
    return (scores[:, None] > others) + (scores[:, None] == others) / 2


def probability_of_improvement(scores: Strata, others: Strata) -> float:
    """Return the probability that a run scores higher than one of another entry, averaged over shared strata.

    Ties count half, as in the Mann-Whitney statistic. NaN without shared strata.
    """
    chances = [_wins(x, y).mean() for x, y in _shared(scores, others)]
    return float(np.mean(chances)) if chances else float("nan")


def improvement_interval(scores: Strata, others: Strata, *, resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """Return a 95 % percentile interval of :func:`probability_of_improvement`, resampling the seeds of both entries.

    None without shared strata, or if one of them has a single seed.
    """
    shared = _shared(scores, others)
    if not shared or min(map(len, itertools.chain(*shared))) < 2:
        return None
    generator, chances = np.random.default_rng(0), np.zeros(resamples)
    for x, y in shared:
        wins = _wins(x, y)
        ours, theirs = (generator.multinomial(n, np.full(n, 1 / n), resamples) for n in wins.shape)  # how often each
        chances += np.einsum("rx,xy,ry->r", ours, wins, theirs) / wins.size / len(shared)
    low, high = np.quantile(chances, (0.025, 0.975))
    return float(low), float(high)


def profile(scores: Strata, levels: Sequence[float]) -> list[float]:
    """Return the share of runs that score at least each level (performance profile)."""
    pooled = np.concatenate([*scores.values()]) if scores else np.zeros(0)
    return [float(np.mean(pooled >= level)) if len(pooled) else float("nan") for level in levels]


def profile_band(scores: Strata, levels: Sequence[float]) -> tuple[Any, Any] | None:
    """Return 95 % limits of :func:`profile` at each level, as :func:`interval`."""

    def shares(values: Any, axis: int) -> Any:
        return np.stack([np.mean(values >= level, axis=axis) for level in levels])

    return _limits(scores, shares, RESAMPLES)


def contestants(rows: pd.DataFrame) -> list[str]:
    """Return all entries but the oracle and those whose cells are all forfeited, in the order of their first cells."""
    scored = rows[rows.learnable & ~rows.forfeited & (rows.entry != ORACLE)]
    return [entry for entry in rows.entry.unique() if (scored.entry == entry).any()]


def best_by_iqm(rows: pd.DataFrame, count: int) -> list[str]:
    """Return the entries with the highest interquartile means, the best first; references are no contestants."""
    means = {entry: pooled_iqm(strata(rows, entry)) for entry in contestants(rows) if entry != UNIFORM}
    return sorted(means, key=lambda entry: -means[entry])[:count]


def signal_correlations(rows: pd.DataFrame, *, evaluation: int | None = None) -> dict[tuple[str, int], float]:
    """Return Spearman's rank correlation of ``signal`` and ``score`` over the cells of each task and grade.

    ``evaluation`` is the place of one evaluation among those during training; None takes their mean. Tasks and grades
    with fewer than three cells that have a signal, or with one value for all, are left out.
    """
    from scipy.stats import spearmanr

    known = rows[rows.learnable & rows.signal.notna()]
    if evaluation is not None:
        known = known.assign(signal=[s[evaluation] if evaluation < len(s) else np.nan for s in known.signals])
        known = known[known.signal.notna()]
    groups = {
        key: cells
        for key, cells in known.groupby(["task", "grade"], sort=False)
        if min(len(cells) - 1, cells.signal.nunique(), cells.score.nunique()) > 1
    }
    return {key: float(spearmanr(cells.signal, cells.score).statistic) for key, cells in groups.items()}


def paired_difference(rows: pd.DataFrame, entry: str, other: str, by: Sequence[str]) -> Difference | None:
    """Return the mean score of an entry minus another's, paired over groups of learnable cells (columns ``by``).

    Cells (task, grade, seed) that only one of the two has are left out.
    """
    learnable = rows[rows.learnable]
    scores = [learnable[learnable.entry == name].set_index(["task", "grade", "seed"]).score for name in (entry, other)]
    means = pd.concat(scores, axis=1, join="inner", keys=(0, 1)).groupby(list(by)).mean()
    return paired_over_seeds(means[0].to_dict(), means[1].to_dict()) if len(means) else None


def best_entries(rows: pd.DataFrame, entries: Sequence[str], by: Sequence[str]) -> set[str]:
    """Return the entries not significantly worse than that of the highest mean score; empty without a test."""
    means = rows[rows.learnable].groupby("entry").score.mean()
    losses = [-float(means.get(entry, np.nan)) for entry in entries]
    # Losses are negative scores, so that the best one's score comes first.
    places = tied_with_best(losses, lambda row, best: paired_difference(rows, entries[best], entries[row], by))
    return {entries[place] for place in places}

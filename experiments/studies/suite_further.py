"""Further seeds of the best entries: what the seeds that chose them show, and what the others show."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rltok_rl.experiments.reports.markdown import bullets, markdown, score_text
from rltok_rl.experiments.studies.suite_scores import RESAMPLES, interquartile_mean, paired_difference
from rltok_rl.experiments.studies.suite_tables import PAIRS, SEED_PAIRS

PARTS = ("first", "further", "all")
"""Seeds that the statistics of an entry are over."""


def compare_further(rows: pd.DataFrame, more: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return statistics of the entries of ``more``: over their first seeds in ``rows``, their further ones, and all.

    An interval resamples whole seeds, each with its cells of all tasks: equal seeds have equal initial weights, so that
    cells of a seed fail together. None for a single seed, or if cells are missing.
    """
    both = pd.concat([rows, more])
    compared: dict[str, dict[str, Any]] = {}
    for entry in more.entry.unique():
        tables = {part: _scores(frame, entry) for part, frame in zip(PARTS, (rows, more, both), strict=True)}
        compared[entry] = {
            part: {"iqm": float(interquartile_mean(table.stack())), "interval": seed_interval(table)}
            for part, table in tables.items()
        }
        means = tables["all"].mean()
        compared[entry] |= {"mean": float(tables["all"].stack().mean()), "seeds": [float(mean) for mean in means]}
    return dict(sorted(compared.items(), key=lambda item: -item[1]["all"]["iqm"]))


def seed_interval(table: pd.DataFrame) -> tuple[float, float] | None:
    """Return a 95 % interval of the interquartile mean of scores, a row per task and grade and a column per seed.

    Example:
        >>> seed_interval(pd.DataFrame({0: [0.5, 0.5], 1: [0.5, 0.5]}))
        (0.5, 0.5)
    """
    scores = table.to_numpy(float)
    if scores.shape[1] < 2 or np.isnan(scores).any():
        return None
    seeds = np.random.default_rng(0).integers(scores.shape[1], size=(RESAMPLES, scores.shape[1]))
    drawn = scores[:, seeds].swapaxes(0, 1).reshape(RESAMPLES, -1)
    low, high = np.quantile(interquartile_mean(drawn), (0.025, 0.975))
    return float(low), float(high)


def further_section(rows: pd.DataFrame, more: pd.DataFrame, compared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the paragraphs of the page about further seeds."""
    first, further = (_span(frame.seed) for frame in (rows, more))
    text = (
        "The first seeds chose these entries, so that their scores there are slightly too high; further seeds are free "
        "of this. Intervals resample whole seeds, because the cells of a seed have equal initial weights and fail "
        f"together. All scores are relative to `oracle` and `uniform` in seeds {first}."
    )
    header = ["entry", f"IQM, seeds {first}", f"seeds {further}", "all", "mean", "lowest and highest mean of a seed"]
    body = [
        [
            f"`{entry}`",
            *(score_text(scores[part]["iqm"], scores[part]["interval"]) for part in PARTS),
            score_text(scores["mean"]),
            f"{min(scores['seeds']):.2f}, {max(scores['seeds']):.2f}",
        ]
        for entry, scores in compared.items()
    ]
    lines = ["## Further seeds", text, markdown(header, body)]
    if differences := _differences(pd.concat([rows, more]), list(compared)):
        lines += [
            "Mean differences, with 95 % intervals of t-tests paired over seeds, and over tasks and grades (which "
            "takes the cells of a seed to be independent):",
            bullets(differences),
        ]
    return lines


def _differences(rows: pd.DataFrame, entries: Sequence[str]) -> list[str]:
    """Compare entries pair by pair, seed by seed and place by place."""
    texts = []
    for entry, other in itertools.combinations(entries, 2):
        gaps = [paired_difference(rows, entry, other, pairs) for pairs in (SEED_PAIRS, PAIRS)]
        errors = [f"± {gap.half_width:.2f}" for gap in gaps if gap is not None and gap.error is not None]
        if gaps[0] is not None and errors:
            texts.append(f"`{entry}` minus `{other}`: {gaps[0].mean:.2f} {', '.join(errors)}")
    return texts


def _scores(rows: pd.DataFrame, entry: str) -> pd.DataFrame:
    """Return the scores of an entry: a row per task and grade, a column per seed."""
    return rows[rows.learnable & (rows.entry == entry)].pivot_table("score", ["task", "grade"], "seed")


def _span(seeds: pd.Series) -> str:
    low, high = int(seeds.min()), int(seeds.max())
    return f"{low} to {high}" if high > low else str(low)

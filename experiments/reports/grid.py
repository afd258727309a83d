"""Figure of a sweep: which option is the swept number, and the runs of each series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rltok_rl.ranges import is_number
from rltok_rl.viz.grid_figures import Series, draw_grid

METRICS = {
    "held_out_share": "share of the optimum, held out",
    "held_out_relative_return": "return over evenly spaced boundaries, nats, held out",
    "held_out_bits_per_byte": "bits per byte, held out",
}
"""Titles of panels; the return is left out if the share is known."""


def swept_number(options: pd.DataFrame) -> tuple[str, list[str]] | None:
    """Return the numeric option that takes most values within a series, and the other differing options, or None.

    A series holds the runs that are equal in all other options, apart from the seed.

    Example:
        >>> rows = [("paper", 0.9, 0), ("paper", 0.99, 0), ("flips", 0.9, 0), ("flips", 0.9, 1)]
        >>> swept_number(pd.DataFrame(rows, columns=["estimator.name", "estimator.gamma", "seed"]))
        ('estimator.gamma', ['estimator.name'])
    """
    differing = [name for name in options if name != "seed" and options[name].map(repr).nunique() > 1]
    best, most = None, 1
    for number in (name for name in differing if options[name].map(is_number).all()):
        others = [name for name in differing if name != number]
        values = options[number].groupby(_series(options, others).to_numpy()).nunique().max()
        if values > most:
            best, most = (number, others), values
    return best


def write_grid(table: pd.DataFrame, options: pd.DataFrame, out: Path, formats: Sequence[str]) -> str | None:
    """Draw ``grid.png`` (or other ``formats`` as well) and return the swept number; None if there is no sweep.

    Finished runs are drawn, or all if none is finished.
    """
    kept = table["finished"].astype(bool) if table["finished"].any() else table["finished"].notna()
    table, options = table[kept], options[kept]
    swept = swept_number(options)
    if swept is None:
        return None
    number, others = swept
    by_name = [name for name in others if name.endswith(".name")]  # a group's other options follow from its name
    few = by_name if _series(options, by_name).nunique() == _series(options, others).nunique() else others
    frame = table.assign(x=options[number].astype(float), series=_series(options, few))
    known = {name: title for name, title in METRICS.items() if frame[name].notna().any()}
    if "held_out_share" in known:
        known.pop("held_out_relative_return", None)
    panels = {title: _values(frame, name) for name, title in known.items()}
    if not panels:
        return None
    for suffix in formats:
        draw_grid(number, panels, out / f"grid.{suffix}")
    return number


def _values(frame: pd.DataFrame, metric: str) -> Series:
    """Values of a metric over seeds, by series and number."""
    rows = frame[frame[metric].notna()]
    return {
        str(name): {float(x): cells[metric].astype(float).tolist() for x, cells in group.groupby("x")}
        for name, group in rows.groupby("series", sort=False)
    }


def _series(options: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Name the series of each run by its values of some options; others than names of choices with the option."""
    return options.apply(lambda row: ", ".join(_text(name, row[name]) for name in names), axis=1).astype(str)


def _text(name: str, value: Any) -> str:
    return str(value) if name.endswith(".name") else f"{name.rpartition('.')[2]} {value}"

"""Systems of a comparison over several seeds: losses by seed, paired differences, rates, and which are best."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from rltok_rl.experiments.reports.markdown import markdown, number, percent, with_error, with_unit
from rltok_rl.experiments.reports.paired import (
    Difference,
    bootstrap_text,
    interval,
    paired_over_documents,
    paired_over_seeds,
    tied_with_best,
)
from rltok_rl.experiments.reports.table import (
    COMPARED_TOLERANCE,
    equal_budgets,
    flops_with_trials,
    off_target,
    rate_with_target,
    total_flops,
)

from rltok_rl.renamed import current_text
from rltok_rl.viz.difference_figure import SystemDifference

_REFERENCES = ("uniform", "unscaled", "ours")
_FEWEST = 3
"""Seeds that a system needs to be bold, unless none has so many."""
OFF = "†"
"""Mark of a rate that is too far from its target."""
HEADER = (
    *("system", "estimator", "total FLOPs", "CPU hours", "bits per byte", "each seed"),
    *("minus {reference}: over seeds", "bootstrap over seeds", "over {unit}s", "boundaries per byte (target)"),
    *("rate of each seed", "bytes", "spaces that have a boundary", "boundaries at a space (and at any edge of a word)"),
)


def preferred_reference(systems: Collection[str]) -> str | None:
    """Return the system that others are compared with, evenly spaced boundaries or else a recipe; None without them."""
    return next((name for name in _REFERENCES if name in systems), None)


class SeedTable:
    """Systems of ``compare-seeds.json``: losses by seed, and differences from each other."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        rows = [row for system in content["systems"] for row in system["rows"].values()]
        self.rows = pd.DataFrame(rows, dtype=object)
        self.losses = self.rows.pivot(index="seed", columns="system", values="bits_per_byte").astype(float)
        self.systems = list(self.rows["system"].unique())
        self.reference = preferred_reference(self.systems) or self.systems[0]
        self.unit = content["data"]["split_by"] or "document"
        self.total_flops = list(map(total_flops, rows))
        self.has_target = self.rows["target_rate"].notna() & ~self.rows["target_rates"].astype(bool)
        """By row, whether the system has one target rate: not if the text decides, or if scripts have their own."""
        rates, targets = (self.rows[name].where(self.has_target).astype(float) for name in ("rate", "target_rate"))
        self.off_target = off_target(rates, targets, COMPARED_TOLERANCE)
        """By row, whether the rate is too far from its target."""
        self.not_comparable = set(self.rows.loc[self.off_target | self.rows["oracle"].astype(bool), "system"])
        """Oracles, and systems with a seed whose rate is off its target."""

    def over_seeds(self, system: str, other: str) -> Difference | None:
        """Paired difference over seeds."""
        return paired_over_seeds(self.losses[system].dropna(), self.losses[other].dropna())

    def trials(self, system: str) -> float:
        """Return the mean share of trials in the FLOPs of a system's runs."""
        runs = self.rows[self.rows["system"] == system]
        return float((runs["tried_flops"] / (runs["flops"] + runs["tried_flops"])).astype(float).mean())

    def over_documents(self, system: str, other: str) -> Difference | None:
        """Paired difference over documents or groups, whose nats are averaged over shared seeds."""
        seeds = self.losses[[system, other]].dropna().index
        if seeds.empty:
            return None
        shared = self.rows[self.rows["seed"].isin(seeds)].set_index("system")

        def mean(name: str) -> dict[str, Any]:
            rows = shared.loc[[name]]
            return {"counts": rows["counts"].iloc[0], "nats": np.mean(rows["nats"].tolist(), axis=0).tolist()}

        return paired_over_documents(mean(system), mean(other))

    def best(self) -> set[int]:
        """Places of the systems that a paired test over seeds cannot tell from the best; empty if budgets are unequal.

        Oracles are left out, systems with a seed whose rate is off its target, and those with two seeds if others have
        more, from which a test tells nothing; nothing is best if targets differ.
        """
        targets = self.rows["target_rate"].dropna().unique()
        if not equal_budgets(self.total_flops) or len(targets) > 1:
            return set()
        seeds = self.losses.count()
        too_few = set(seeds.index[seeds < min(_FEWEST, seeds.max())])
        left_out = self.not_comparable | too_few
        means = [math.nan if name in left_out else self.losses[name].mean() for name in self.systems]
        return tied_with_best(means, lambda row, best: self.over_seeds(self.systems[row], self.systems[best]))

    def differences(self) -> list[SystemDifference]:
        """Differences of systems that share two seeds with the reference; empty for fewer than two such systems."""
        differences = []
        for name in self.systems:
            by_seed = (self.losses[name] - self.losses[self.reference]).dropna().tolist()
            if name != self.reference and len(by_seed) > 1:
                over_seeds = self.over_seeds(name, self.reference)
                assert over_seeds is not None
                width = over_seeds.half_width
                comparable = name not in self.not_comparable
                differences.append(SystemDifference(name, by_seed, over_seeds.mean, width, comparable))
        return differences if len(differences) > 1 else []

    def num_seeds(self) -> str:
        """How many seeds the systems have, in words."""
        fewest, most = self.losses.count().min(), self.losses.count().max()
        if most == 1:
            return "1 seed"
        return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


def seeds_table(table: SeedTable) -> str:
    """Return the table of systems as Markdown."""
    bold, body = table.best(), []
    for place, name in enumerate(table.systems):
        rows = table.rows[table.rows["system"] == name]
        first, mean = rows.iloc[0], rows[["flops", "rate", "bytes"]].astype(float).mean()
        losses = table.losses[name].dropna()
        loss = with_error(losses.mean(), losses.std())
        tried = None if rows["tried_flops"].isna().any() else rows["tried_flops"].mean()
        over_seeds, over_documents = (
            None if name == table.reference else difference(name, table.reference)
            for difference in (table.over_seeds, table.over_documents)
        )
        rates = zip(rows["rate"], table.off_target[rows.index], strict=True)
        body.append(
            [
                f"{name}{' *' if first['oracle'] else ''}",
                current_text(first["estimator"]),
                flops_with_trials(mean["flops"], tried),
                _cpu_hours(rows),
                f"**{loss}**" if place in bold else loss,
                ", ".join(map(with_error, losses)),
                *(interval(over_seeds), bootstrap_text(over_seeds), interval(over_documents)),
                rate_with_target({**first, "rate": mean["rate"]}),
                ", ".join(f"{rate:.3f}{f' {OFF}' if off else ''}" for rate, off in rates),
                with_unit(mean["bytes"], "B"),
                ", ".join("-" if share is None else percent(share) for share in rows["space_recall"]),
                ", ".join(map(_at_edges, rows.to_dict("records"))),
            ]
        )
    return markdown([name.format(reference=table.reference, unit=table.unit) for name in HEADER], body)


def _cpu_hours(rows: pd.DataFrame) -> str:
    """Mean CPU hours of a system's runs; a dash unless all of them have recorded theirs."""
    seconds = rows.get("cpu_seconds", pd.Series([None]))
    return "-" if seconds.isna().any() else number(seconds.mean() / 3600)


def _at_edges(row: Mapping[str, Any]) -> str:
    """Shares of boundaries at a space and at any edge of a word, if they are known."""
    if row.get("space_precision") is None:
        return "-"
    edge = row.get("edge_precision")
    return f"{100 * row['space_precision']:.0f} %" + ("" if edge is None else f" ({100 * edge:.0f} %)")


def rate_notes(table: SeedTable) -> list[str]:
    """Return the lines below the table that name systems whose rates are off their target, and those without one."""
    off, without = table.rows[table.off_target], table.rows.loc[~table.has_target, "system"].unique()
    systems, notes = [], []
    for name, rows in off.groupby("system", sort=False):
        seeds = (f"{seed} ({100 * (rate / target - 1):+.1f} %)" for seed, rate, target in _rates(rows))
        systems.append(f"{name} in seed{'s' if len(rows) > 1 else ''} {', '.join(seeds)}")
    if systems:
        limit = f"{100 * COMPARED_TOLERANCE:g} %"
        notes.append(
            f"{OFF} The rate is more than {limit} off its target, so the system is never bold: {'; '.join(systems)}."
        )
    if len(without):
        notes.append(f"Without one target rate, so that no rate is marked: {', '.join(without)}.")
    return notes


def _rates(rows: pd.DataFrame) -> list[tuple[int, float, float]]:
    return list(rows[["seed", "rate", "target_rate"]].itertuples(index=False, name=None))

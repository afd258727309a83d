"""Systems of a comparison over several seeds: losses by seed, paired differences, and which are best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from rltok_rl.experiments.reports.paired import Difference, paired_over_documents, paired_over_seeds, tied_with_best
from rltok_rl.experiments.reports.table import equal_budgets, total_flops

REFERENCE = "uniform"
BOLD_TOLERANCE = 0.1
"""Relative distance of a system's mean rate from its target up to which it is compared with the best.

More than entries of the leaderboard may have: the paper's rate control lets rewards pull rates off by several per cent.
"""


class SeedTable:
    """Systems of ``compare-seeds.json``: losses by seed, and differences from each other."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        rows = [row for system in content["systems"] for row in system["rows"].values()]
        self.rows = pd.DataFrame(rows, dtype=object)
        self.losses = self.rows.pivot(index="seed", columns="system", values="bits_per_byte").astype(float)
        self.systems = list(self.rows["system"].unique())
        self.reference = REFERENCE if REFERENCE in self.systems else self.systems[0]
        self.unit = content["data"]["split_by"] or "document"
        self.total_flops = list(map(total_flops, rows))

    def over_seeds(self, system: str, other: str) -> Difference | None:
        """Paired difference over seeds."""
        return paired_over_seeds(self.losses[system].dropna(), self.losses[other].dropna())

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

        Oracles are left out, and systems whose boundaries are not as many as their target asks for; nothing is best if
        targets differ.
        """
        targets = self.rows["target_rate"].dropna().unique()
        if not equal_budgets(self.total_flops) or len(targets) > 1:
            return set()
        systems = self.rows.groupby("system")
        off = (systems["rate"].mean() / systems["target_rate"].first().astype(float) - 1).abs() > BOLD_TOLERANCE
        out = systems["oracle"].first().astype(bool) | off
        means = [math.nan if out[name] else self.losses[name].mean() for name in self.systems]
        return tied_with_best(means, lambda row, best: self.over_seeds(self.systems[row], self.systems[best]))

    def num_seeds(self) -> str:
        """How many seeds the systems have, in words."""
        fewest, most = self.losses.count().min(), self.losses.count().max()
        return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"

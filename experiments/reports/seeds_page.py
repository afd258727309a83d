"""Page of a comparison over several seeds: means, paired differences over seeds and over documents, one figure.

    rltok train --multirun experiment=compare-seeds data.source=books
    rltok report runs/compare-seeds

Every folder in the given one is a comparison of the same systems with another seed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rltok_rl.experiments.reports.markdown import bullets, markdown, percent, with_error, with_unit
from rltok_rl.experiments.reports.paired import Difference, paired_over_documents, paired_over_seeds, tied_with_best
from rltok_rl.experiments.reports.systems_page import evaluated_systems, is_comparison, system_rows
from rltok_rl.experiments.reports.table import equal_budgets, flops_with_trials, rate_with_target, total_flops
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.foreign import MOST_STATE, read_json
from rltok_rl.renamed import current_text
from rltok_rl.training.atomic_files import replace_text
from rltok_rl.training.environment import without_folders
from rltok_rl.viz.run_figures import draw_loss_against_flops

PAGE, TABLE, FIGURE = "compare-seeds.md", "compare-seeds.json", "compare-seeds.png"
SHARES = (0.1, 0.2, 0.3, 1.0)
"""Shares of a run's updates at which the policy's entropy is shown (Figure 13 of the paper)."""
HEADER = (
    *("system", "estimator", "total FLOPs", "bits per byte", "each seed", "minus {reference}: over seeds"),
    *("over {unit}s", "boundaries per byte (target)", "bytes", "spaces that have a boundary"),
)
_REFERENCE = "uniform"
RATE_TOLERANCE = 0.1
"""Relative distance of a system's mean rate from its target up to which it is compared with the best."""
MOST_PAIRED = 4
"""Systems of which all pairs are compared."""


def seed_folders(folder: Path) -> list[Path]:
    """Return the comparisons in a folder, one per seed."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and is_comparison(path)]


def write_seeds_page(folder: Path, *, formats: Sequence[str] = ("png",)) -> Path:
    """Write ``compare-seeds.md``, ``compare-seeds.json`` and ``compare-seeds.png`` (or other ``formats`` as well)."""
    runs: dict[str, RunFolder] = {}
    systems: dict[str, dict[int, dict[str, Any]]] = {}
    for path in seed_folders(folder):
        folders = {name: read_run(path / name) for name in evaluated_systems(path)}
        for row in system_rows(folders):
            name, seed, run = row["system"], row["seed"], folders[row["system"]]
            rows = systems.setdefault(name, {})
            if seed in rows:
                raise ValueError(f"seed {seed} of {name!r} must be there once, got it twice, also in {run.path}")
            rows[seed] = {**row, "entropy": entropy_at_shares(run)}
            runs[f"{name} {path.name}"] = run
    order = sorted(systems, key=lambda name: name == _REFERENCE)  # the reference comes last
    content = _content(list(runs.values()), {name: dict(sorted(systems[name].items())) for name in order})
    replace_text(folder / TABLE, json.dumps(content, indent=None, separators=(",", ":")) + "\n")
    groups = {name: [label for label in runs if label.rpartition(" ")[0] == name] for name in order}
    if all(run.history for run in runs.values()):
        histories = {label: (run.history, run.held_out) for label, run in runs.items()}
        for suffix in formats:
            draw_loss_against_flops(histories, (folder / FIGURE).with_suffix(f".{suffix}"), groups=groups)
    replace_text(folder / PAGE, seeds_page(read_json(folder / TABLE, MOST_STATE)))
    return folder / PAGE


def _content(runs: Sequence[RunFolder], systems: Mapping[str, dict[int, dict[str, Any]]]) -> dict[str, Any]:
    """Everything that the page shows: it can be written again without the runs."""
    first, summaries = runs[0], [run.summary or {} for run in runs]
    data = ("source", "split_by", "held_out", "num_rows", "num_steps")
    return {
        "commands": sorted({without_folders(summary.get("command", "")) for summary in summaries}),
        "machines": sorted({summary.get("machine", "") for summary in summaries}),
        "revisions": sorted({start["git"]["revision"] for run in runs for start in run.starts if start.get("git")}),
        "data": {name: first.option(f"data.{name}") for name in data},
        "model": {"preset": first.option("model.preset"), **(first.option("model.overrides") or {})},
        "systems": [{"name": name, "rows": rows} for name, rows in systems.items()],
    }


def entropy_at_shares(run: RunFolder) -> list[float] | None:
    """Return the policy's entropy at :data:`SHARES`, means over a fortieth of the updates; None without a policy."""
    values = pd.Series(run.history.get("entropy", []), dtype=float).dropna()
    if values.empty:
        return None
    means = values.rolling(max(1, len(values) // 40)).mean().bfill()
    return [float(means.iloc[max(0, round(share * len(values)) - 1)]) for share in SHARES]


class SeedTable:
    """Systems of ``compare-seeds.json``: losses by seed, and differences from each other."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        rows = [row for system in content["systems"] for row in system["rows"].values()]
        self.rows = pd.DataFrame(rows, dtype=object)
        self.losses = self.rows.pivot(index="seed", columns="system", values="bits_per_byte").astype(float)
        self.systems = list(self.rows["system"].unique())
        self.reference = _REFERENCE if _REFERENCE in self.systems else self.systems[0]
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
        off = (systems["rate"].mean() / systems["target_rate"].first().astype(float) - 1).abs() > RATE_TOLERANCE
        out = systems["oracle"].first().astype(bool) | off
        means = [math.nan if out[name] else self.losses[name].mean() for name in self.systems]
        return tied_with_best(means, lambda row, best: self.over_seeds(self.systems[row], self.systems[best]))


def seeds_page(content: Mapping[str, Any]) -> str:
    """Return the page as Markdown, from the content of ``compare-seeds.json``."""
    table, data = SeedTable(content), content["data"]
    first, flops, unit, reference = table.rows.iloc[0], table.total_flops, table.unit, table.reference
    options = ", ".join(f"{name} {value}" for name, value in content["model"].items() if name != "preset")
    notes = [
        f"{first['predicted']:,} held-out bytes in {first['documents']:,} {unit}s, the same for all systems and seeds; "
        + (f"no {unit} is on both sides of the split." if data["split_by"] else "split by single documents."),
        "Bits per byte: mean ± standard deviation over seeds. Bold: not distinguishable from the best by a paired test "
        "over seeds (95 %), if total FLOPs differ by at most 2 % and all targets are equal. Systems with one seed, or "
        f"more than {percent(RATE_TOLERANCE)} off their target, are never bold.",
        f"Differences to {reference} are paired, with their 95 % interval (Student's t): by seed (the same order "
        f"of the training text, the same initial weights), and by {unit}, averaged over seeds.",
        f"Total FLOPs include an estimator's trials; they differ by {percent(max(flops) / min(flops) - 1)} at most.",
        "The commands stand for one seed (`seed=`) and some of the systems (`compare.systems=`) each.",
        f"Machine: {'; '.join(content['machines'])}. Revision: {', '.join(r[:10] for r in content['revisions'])}.",
    ]
    parts = [
        f"# {with_unit(min(flops), 'FLOPs')} in total, {table.losses[reference].count()} seeds",
        "\n".join(f"    {command}" for command in dict.fromkeys(map(_of_all_runs, content["commands"]))),
        f"`{data['source']}`, {data['num_rows']} rows of {data['num_steps']} bytes; model "
        f"`{content['model']['preset']}` with {options or 'nothing replaced'}, {first['parameters']:,} parameters.",
        seeds_table(content),
        bullets(notes),
        *_pairs(table),
        f"![Bits per byte against total FLOPs]({FIGURE})",
        "Left: training, a thin line for each seed (dots: held-out text). Right: mean and standard deviation over "
        "seeds on the held-out windows of the evaluations during training, which are fewer than those of the table.",
        *_entropies(table),
    ]
    return "\n\n".join(parts) + "\n"


def _of_all_runs(command: str) -> str:
    """Return a command without its seed and its choice of systems.

    Example:
        >>> _of_all_runs("rltok train experiment=compare-seeds seed=1 'compare.systems=[uniform]' data.source=books")
        'rltok train experiment=compare-seeds data.source=books'
    """
    command = command.replace("python -m rltok_rl.experiments.train", "rltok train")
    return re.sub(r" seed=\d+| '?compare\.systems=\[[^\]]*\]'?", "", command)


def seeds_table(content: Mapping[str, Any]) -> str:
    """Return the table of systems as Markdown, from the content of ``compare-seeds.json``."""
    table = SeedTable(content)
    bold, body = table.best(), []
    for place, name in enumerate(table.systems):
        rows = table.rows[table.rows["system"] == name]
        first, mean = rows.iloc[0], rows[["flops", "rate", "bytes"]].astype(float).mean()
        losses = table.losses[name].dropna()
        loss = with_error(losses.mean(), losses.std())
        tried = None if rows["tried_flops"].isna().any() else rows["tried_flops"].mean()
        differences = [table.over_seeds(name, table.reference), table.over_documents(name, table.reference)]
        body.append(
            [
                f"{name}{' *' if first['oracle'] else ''}",
                current_text(first["estimator"]),
                flops_with_trials(mean["flops"], tried),
                f"**{loss}**" if place in bold else loss,
                ", ".join(map(with_error, losses)),
                *(interval(None if name == table.reference else difference) for difference in differences),
                rate_with_target({**first, "rate": mean["rate"]}),
                with_unit(mean["bytes"], "B"),
                ", ".join("-" if share is None else percent(share) for share in rows["space_recall"]),
            ]
        )
    return markdown([name.format(reference=table.reference, unit=table.unit) for name in HEADER], body)


def interval(difference: Difference | None) -> str:
    """Format a difference with its 95 % interval; a dash without a pair.

    Example:
        >>> interval(Difference(-0.05, 0.002, 3))
        '-0.050 [-0.059, -0.041]'
    """
    if difference is None:
        return "-"
    mean, half = difference.mean, difference.half_width
    return f"{mean:+.3f}" + ("" if difference.error is None else f" [{mean - half:+.3f}, {mean + half:+.3f}]")


def _pairs(table: SeedTable) -> list[str]:
    """Differences of all pairs of systems without the reference, if they are few."""
    names, lines = [name for name in table.systems if name != table.reference], []
    for name, other in combinations(names if len(names) <= MOST_PAIRED else [], 2):
        by_seed, by_unit = table.over_seeds(name, other), table.over_documents(name, other)
        if by_seed is None or by_seed.error is None:
            verdict = "one seed or none in common, so without a test over seeds"
        else:
            verdict = f"over seeds they {'can' if by_seed.significant else 'cannot'} be told apart"
        difference = f"{interval(by_seed)} over seeds, {interval(by_unit)} over {table.unit}s"
        lines.append(f"{name} minus {other}: {difference}; {verdict}.")
    return [bullets(lines)] if lines else []


def _entropies(table: SeedTable) -> list[str]:
    """Entropy of learned policies during training."""
    body = [
        [f"{row['system']}, seed {row['seed']}", *map(with_error, row["entropy"])]
        for row in table.rows.to_dict("records")
        if row.get("entropy")
    ]
    header = ["policy entropy, nats per decision", *(f"at {100 * share:.0f} % of the run" for share in SHARES)]
    return ["When boundaries settle:", markdown(header, body)] if body else []

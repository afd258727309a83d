"""Page of a comparison with several peak learning rates: the loss of each system at each, and the best for each.

    rltok train --multirun experiment=compare-lr data.source=books
    rltok report runs/compare-lr

Every folder in the given one is a comparison with another ``optim.lr``. Seeds that choose a learning rate have no part
in the comparison that uses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rltok_rl.experiments.reports.markdown import bullets, code, markdown, with_error
from rltok_rl.experiments.reports.provenance import provenance, provenance_notes
from rltok_rl.experiments.reports.seed_table import OFF
from rltok_rl.experiments.reports.seeds_page import comparisons
from rltok_rl.experiments.reports.systems_page import evaluated_systems, system_rows
from rltok_rl.experiments.reports.table import COMPARED_TOLERANCE, off_target
from rltok_rl.experiments.runs.folder import read_run

from rltok_rl.data.disk import replace_text
from rltok_rl.foreign import MOST_STATE, read_json
from rltok_rl.training.environment import without_folders
from rltok_rl.viz.grid_figures import draw_grid

PAGE, TABLE, FIGURE = "compare-lr.md", "compare-lr.json", "compare-lr.png"
_COLUMNS = ("system", "lr", "seed", "bits_per_byte", "rate", "target_rate", "cpu_capabilities", "revisions")
_TITLE = "bits per byte on held-out text: lower is better"


def has_learning_rates(folder: Path) -> bool:
    """Whether a folder holds comparisons that train a system and seed with several peak learning rates."""
    runs = [read_run(path / name) for path in comparisons(folder) for name in evaluated_systems(path)]
    trained = {(run.path.name, run.option("seed"), run.option("optim.lr")) for run in runs}
    return len(trained) > len({key[:2] for key in trained})


def write_learning_rates_page(folder: Path, *, formats: Sequence[str] = ("png",)) -> Path:
    """Write ``compare-lr.md``, ``compare-lr.json``, and the figure in ``formats``."""
    rows, commands = [], set()
    for path in comparisons(folder):
        runs = {name: read_run(path / name) for name in evaluated_systems(path)}
        for row, run in zip(system_rows(runs), runs.values(), strict=True):
            lr = float(run.option("optim.lr"))
            rows.append({name: {**row, **provenance(run), "lr": lr}[name] for name in _COLUMNS})
            commands.add(without_folders((run.summary or {}).get("command", "")))
    content = {"commands": sorted(commands), "rows": rows}
    replace_text(folder / TABLE, json.dumps(content, indent=None, separators=(",", ":")) + "\n")
    table = pd.DataFrame(rows)
    by_system = {
        name: {lr: losses.tolist() for lr, losses in group.groupby("lr")["bits_per_byte"]}
        for name, group in table.groupby("system", sort=False)
    }
    for suffix in formats:
        draw_grid("optim.lr", {_TITLE: by_system}, (folder / FIGURE).with_suffix(f".{suffix}"))
    replace_text(folder / PAGE, learning_rates_page(read_json(folder / TABLE, MOST_STATE)))
    return folder / PAGE


def best_learning_rates(table: pd.DataFrame) -> dict[str, float]:
    """Return each system's learning rate with the lowest mean loss, among those whose rate is on its target, if any.

    Args:
        table: rows with ``system``, ``lr``, ``bits_per_byte``, ``rate`` and ``target_rate``.
    """
    means = (
        table.groupby(["system", "lr"], sort=False)[["bits_per_byte", "rate", "target_rate"]]
        .mean()
        .dropna(subset=["bits_per_byte"])
    )
    best = {}
    for system, rows in means.groupby("system", sort=False):
        on_target = rows[~off_target(rows["rate"], rows["target_rate"], COMPARED_TOLERANCE)]
        best[str(system)] = float((rows if on_target.empty else on_target)["bits_per_byte"].idxmin()[1])
    return best


def learning_rates_page(content: Mapping[str, Any]) -> str:
    """Return the page, from the content of ``compare-lr.json``."""
    table = pd.DataFrame(content["rows"]).astype({"bits_per_byte": float, "rate": float, "target_rate": float})
    best, tried = best_learning_rates(table), sorted(table["lr"].unique())
    systems = list(table["system"].unique())
    body = [[name, *(_cell(table, name, lr, bold=lr == best.get(name)) for lr in tried)] for name in systems]
    seeds = ", ".join(map(str, sorted(table["seed"].unique())))
    chosen = ", ".join(f"{name}: {lr:g}" for name, lr in best.items())
    lines = [
        "Bits per byte on held-out text (boundaries per byte), means over seeds. Bold: the lowest of a system.",
        f"{OFF} Boundaries per byte are more than {100 * COMPARED_TOLERANCE:g} % off their target; never bold, unless "
        "all of a system's are.",
        *_at_the_edge(table, best),
        *provenance_notes(table),
    ]
    parts = [
        f"# Peak learning rates, seed {seeds}",
        "\n".join(f"    {command}" for command in content["commands"]),
        markdown(["system", *(code(f"optim.lr={lr:g}") for lr in tried)], body),
        bullets(lines),
        f"For a comparison of other seeds: `'compare.learning_rates={{{chosen}}}'`.",
        f"![Bits per byte over the peak learning rate]({FIGURE})",
    ]
    return "\n\n".join(parts) + "\n"


def _cell(table: pd.DataFrame, system: str, lr: float, *, bold: bool) -> str:
    rows = table[(table["system"] == system) & (table["lr"] == lr)]
    if rows.empty:
        return "-"
    loss, rate, target = with_error(rows["bits_per_byte"].mean()), rows["rate"].mean(), rows["target_rate"].iloc[0]
    off = bool(off_target(rate, target, COMPARED_TOLERANCE))  # not if there is no target, NaN
    return f"{f'**{loss}**' if bold else loss} ({rate:.3f}{f' {OFF}' if off else ''})"


def _at_the_edge(table: pd.DataFrame, best: Mapping[str, float]) -> list[str]:
    """Return a line that names the systems whose best learning rate is the smallest or the largest that they had."""
    tried = {name: group["lr"] for name, group in table.groupby("system", sort=False)}
    edge = [name for name, lr in best.items() if lr in (tried[name].min(), tried[name].max())]
    if not edge:
        return []
    return [f"The best is the smallest or the largest value tried, so that another may be better: {', '.join(edge)}."]
